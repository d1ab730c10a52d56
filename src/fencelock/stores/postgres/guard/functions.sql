-- What the guard does inside the database, after guard_schema.sql. A transaction that holds a lease presents it: it takes
-- the resource's advisory lock, shared, compares the mark, and leaves a note: a setting that is local to the transaction, and
-- whose name nobody else knows. It is undone together with the lock, by a savepoint too. A seal takes the same lock alone, so
-- it waits for all who have presented, and they for it, in the order in which they came. So a mark that was presented stays
-- what it was until the transaction ends, and the triggers of protected tables need not read it.
--
-- What runs with its owner's rights names everything completely, or has a search_path of its own; and debug_print_plan is off
-- where variables hold what nobody else may see, since any role may set it on and have plans sent to itself.
--
-- Errors: FL001 unfenced write, FL002 stale token, FL003 collision, FL004 wrong lock or source, FL005 not sealed, FL006
-- a transaction that cannot do it, FL009 a mark that would not be kept, FL010 a table that cannot be protected. Those of a
-- resource say in their DETAIL, as JSON, which resource, token and mark.

-- name: create_mark_key
-- The advisory lock that stands for a resource's mark. Should two resources share one, their transactions wait for each
-- other's seals, and no more.
CREATE FUNCTION fencelock.mark_key(p_resource text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT pg_catalog.hashtextextended(p_resource COLLATE pg_catalog."C", 7378697628973295216) $$;

-- name: create_secret
-- What nobody but these functions knows. It never changes, and is called immutable so that each session reads it once: the
-- triggers do not have to read a table for each statement.
CREATE FUNCTION fencelock.secret() RETURNS text LANGUAGE sql IMMUTABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$ SELECT secret FROM fencelock.guard $$;

-- name: create_note_name
-- The setting that holds the note of a resource. Nobody else knows its name, and no list of settings shows it, so that nobody
-- sets it by hand. The secret is a constant of this function's plan, which debug_print_plan would show to whoever asks; it is
-- called volatile so that the name is a constant of nobody's.
CREATE FUNCTION fencelock.note_name(p_resource text) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET debug_print_plan = off AS
$$
BEGIN
    RETURN 'fencelock.n' OPERATOR(pg_catalog.||) pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(
        fencelock.secret() OPERATOR(pg_catalog.||) p_resource, pg_catalog.getdatabaseencoding())), 'hex');
END
$$;

-- name: create_looks_back
-- Whether this transaction sees the database as it was at its first statement. Then reading a mark is not enough: its row is
-- locked too, which fails (40001) if the mark has changed since.
CREATE FUNCTION fencelock.looks_back() RETURNS boolean LANGUAGE sql STABLE AS
$$ SELECT pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) ANY ('{"repeatable read","serializable"}') $$;

-- name: create_limit_time
-- Have the server end what takes longer in this transaction, for which `p_setting` is the limit: a holder that is frozen
-- inside it must not keep its successor waiting (G3). A limit of the session's own that is lower stays.
CREATE FUNCTION fencelock.limit_time(p_setting text, p_limit_ms integer) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    usual constant text := current_setting(p_setting);
BEGIN
    IF usual <> '0' AND usual::interval <= make_interval(secs => p_limit_ms / 1000.0) THEN
        RETURN usual;
    END IF;
    RETURN set_config(p_setting, p_limit_ms::text, true);
END
$$;

-- name: create_refuse
-- Say why a lease is not admitted to a resource whose mark is another. Never returns.
CREATE FUNCTION fencelock.refuse(p_resource text, p_lock bytea, p_token bigint, p_claim text, p_source_id text, p_history_id text)
RETURNS void LANGUAGE plpgsql AS
$$
DECLARE
    mark fencelock.mark;
    reason text;
    code text := 'FL002';
    remedy text := 'Stop, and acquire the lock again.';
    numbers text;
BEGIN
    SELECT * INTO mark FROM fencelock.mark WHERE resource = p_resource;
    numbers := json_build_object('resource', p_resource, 'token', p_token::text, 'mark', coalesce(mark.token, 0)::text);
    IF mark.lock <> p_lock THEN
        code := 'FL004';
        reason := 'the resource is bound to another lock';
        remedy := 'Acquire that lock, or move the resource by fencelock rebind.';
    ELSIF mark.source_id <> p_source_id THEN
        code := 'FL004';
        reason := 'the resource is bound to another source, whose tokens cannot be compared';
        remedy := 'Use that source, or move the resource by fencelock rebind.';
    ELSIF mark.token IS NULL OR mark.token < p_token THEN
        code := 'FL005';
        reason := 'this token has not sealed the resource';
        remedy := 'Seal it before anything is read: SELECT fencelock.seal(...). If it was sealed before, the database went '
            'back in time, and all that was read from it is void.';
    ELSIF mark.token > p_token THEN
        reason := 'a newer holder has sealed the resource';
    ELSIF mark.claim IS NULL THEN
        reason := 'an operator has raised the mark over every token issued until then';
    ELSIF (mark.claim, mark.history_id) <> (p_claim, p_history_id) THEN
        code := 'FL003';
        reason := 'another lease has sealed the resource with the same token: the source issued it twice';
        remedy := 'Stop the users of that source, and run fencelock epoch --raise.';
    ELSE
        reason := 'its own holder closed it';
    END IF;
    RAISE 'token % at mark % of resource %: %', p_token, coalesce(mark.token, 0), p_resource, reason
        USING ERRCODE = code, DETAIL = numbers, HINT = remedy;
END
$$;

-- name: create_check_unmarked
-- Fail as a changed mark does (40001) if the resource has a mark that this transaction, which looks back, cannot see: it was
-- made since. To find out, one is made and undone.
CREATE FUNCTION fencelock.check_unmarked(p_resource text) RETURNS void LANGUAGE plpgsql AS
$$
BEGIN
    INSERT INTO fencelock.mark (resource, lock) VALUES (p_resource, 'any');
    RAISE 'undone' USING ERRCODE = 'FL000';
EXCEPTION
    WHEN SQLSTATE 'FL000' THEN
        RETURN;
    WHEN unique_violation THEN
        RAISE 'resource % was sealed for the first time after this transaction began', p_resource USING ERRCODE = '40001';
END
$$;

-- name: create_hold_mark
-- Hold a resource's mark still until the end of the transaction: shared by all who present its lease, or alone. (Whether a
-- void is NULL is asked because plpgsql evaluates a condition in half a microsecond, and a PERFORM in two.)
CREATE FUNCTION fencelock.hold_mark(p_resource text, p_is_alone boolean) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    IF p_is_alone THEN
        IF pg_advisory_xact_lock(fencelock.mark_key(p_resource)) IS NULL THEN END IF;
    ELSE
        IF pg_advisory_xact_lock_shared(fencelock.mark_key(p_resource)) IS NULL THEN END IF;
    END IF;
    IF fencelock.looks_back() THEN
        PERFORM FROM fencelock.mark WHERE resource = p_resource FOR SHARE;
        IF NOT FOUND THEN
            PERFORM fencelock.check_unmarked(p_resource);
        END IF;
    END IF;
    RETURN true;
END
$$;

-- name: create_offer
-- Admit this transaction's writes to each resource whose mark is exactly this lease's, and open; return the places, from 1,
-- of those whose mark is not. Resources come in the order of their bytes, so that nobody waits in a circle. It is part of
-- every guarded transaction: names in it are complete, since setting a search_path takes as long as all the rest.
CREATE FUNCTION fencelock.offer(
    p_resources text[], p_lock bytea, p_token bigint, p_claim text, p_source_id text, p_history_id text, p_limit_ms integer)
RETURNS integer[] LANGUAGE plpgsql SECURITY DEFINER AS
$$
DECLARE
    place pg_catalog.int4 := 0;
    wanted pg_catalog.text;
    not_ours pg_catalog.int4[] := '{}';
    xid constant pg_catalog.xid8 := pg_catalog.pg_current_xact_id();  -- A standby, which lags, has none to give.
BEGIN
    IF p_limit_ms IS NULL THEN
    ELSIF pg_catalog.current_setting('idle_in_transaction_session_timeout') OPERATOR(pg_catalog.<>) '0' THEN
        IF fencelock.limit_time('idle_in_transaction_session_timeout', p_limit_ms) IS NULL THEN END IF;
    ELSIF pg_catalog.set_config('idle_in_transaction_session_timeout', p_limit_ms::pg_catalog.text, true) IS NULL THEN
    END IF;
    FOREACH wanted IN ARRAY p_resources LOOP
        place := place OPERATOR(pg_catalog.+) 1;
        IF fencelock.looks_back() THEN
            IF fencelock.hold_mark(wanted, false) THEN END IF;
        ELSIF pg_catalog.pg_advisory_xact_lock_shared(fencelock.mark_key(wanted)) IS NULL THEN
        END IF;
        PERFORM FROM fencelock.mark AS mark
        WHERE mark.resource OPERATOR(pg_catalog.=) wanted AND mark.token OPERATOR(pg_catalog.=) p_token
            AND mark.claim OPERATOR(pg_catalog.=) p_claim AND mark.lock OPERATOR(pg_catalog.=) p_lock
            AND mark.source_id OPERATOR(pg_catalog.=) p_source_id
            AND mark.history_id OPERATOR(pg_catalog.=) p_history_id AND NOT mark.is_closed;
        IF NOT FOUND THEN
            not_ours := pg_catalog.array_append(not_ours, place);
        ELSIF pg_catalog.set_config(fencelock.note_name(wanted), 'presented', true) IS NULL THEN
        END IF;
    END LOOP;
    RETURN not_ours;
END
$$;

-- name: create_withdraw
-- Take back what was presented to these resources, whose mark stays held.
CREATE FUNCTION fencelock.withdraw(VARIADIC p_resources text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    wanted text;
    ignored text;
BEGIN
    FOREACH wanted IN ARRAY p_resources LOOP
        ignored := set_config(fencelock.note_name(wanted), '', true);
    END LOOP;
END
$$;

-- name: create_refuse_end
-- Say why a transaction is not to be committed as a guarded one. Never returns.
CREATE FUNCTION fencelock.refuse_end(p_resource text) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    RAISE 'resource % is not presented any more: the guarded transaction ended before', p_resource USING ERRCODE = 'FL007';
END
$$;

-- name: create_is_presented
-- Whether this transaction has presented the mark of the resource, and so holds it still. Every name in it is complete: the
-- triggers call it with whatever search_path their session has, since setting one takes them longer than all the rest.
CREATE FUNCTION fencelock.is_presented(p_resource text) RETURNS boolean LANGUAGE sql VOLATILE AS
$$
    SELECT pg_catalog.current_setting(fencelock.note_name(p_resource), true) OPERATOR(pg_catalog.=) 'presented' IS TRUE
$$;

-- name: create_confirm
-- Make sure, before COMMIT, that this is the transaction in which the resource was presented: code that ended it, and began
-- another, must not have that one committed as a guarded one. Names are complete, as in `offer`.
CREATE FUNCTION fencelock.confirm(p_resource text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS
$$
BEGIN
    RETURN fencelock.is_presented(p_resource) OR fencelock.refuse_end(p_resource);
END
$$;

-- name: create_refuse_write
-- Say why a protected table takes no write. Never returns.
CREATE FUNCTION fencelock.refuse_write(p_resource text, p_schema text, p_table text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    RAISE 'table %.% belongs to resource % and takes writes only from the holder of its lock', p_schema, p_table, p_resource
        USING ERRCODE = 'FL001', SCHEMA = p_schema, TABLE = p_table,
            HINT = 'Write inside guard.transaction(lease), or present the sequencer in this transaction: SELECT '
                'fencelock.present(...). fencelock marks tells which lock it is.';
END
$$;

-- name: create_enforce
-- The trigger of a protected table: refuse a write unless its transaction has presented the mark of the resource.
CREATE FUNCTION fencelock.enforce() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$
DECLARE
    resource constant pg_catalog.text := TG_ARGV[0];  -- not a type of that name in a schema of the caller's
BEGIN
    IF NOT fencelock.is_presented(resource) THEN
        PERFORM fencelock.refuse_write(resource, TG_TABLE_SCHEMA, TG_TABLE_NAME);
    END IF;
    IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END
$$;

-- name: create_count
-- Add to what was observed. Now and then rows that are nobody's at the moment are folded into one for each sort; not by a
-- transaction that looks back, for which a row folded by somebody else would be a conflict.
CREATE FUNCTION fencelock.count_observed(p_resource text, p_table text, p_kind text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    fold_every constant integer := 64;
    fold_at_once constant integer := 256;
    own bigint;
BEGIN
    INSERT INTO fencelock.observation (
        resource, table_name, kind, role, application_name, address, times, first_at, last_at)
    VALUES (p_resource, p_table, p_kind, session_user, current_setting('application_name'), inet_client_addr(), 1,
            clock_timestamp(), clock_timestamp())
    RETURNING id INTO own;
    IF own % fold_every <> 0 OR fencelock.looks_back() THEN
        RETURN;
    END IF;
    WITH chosen AS (
        SELECT id FROM fencelock.observation ORDER BY id LIMIT fold_at_once FOR UPDATE SKIP LOCKED
    ), taken AS (
        DELETE FROM fencelock.observation AS observed USING chosen WHERE observed.id = chosen.id RETURNING observed.*
    )
    INSERT INTO fencelock.observation (
        resource, table_name, kind, role, application_name, address, times, first_at, last_at)
    SELECT resource, table_name, kind, role, application_name, address, sum(times), min(first_at), max(last_at)
    FROM taken GROUP BY resource, table_name, kind, role, application_name, address;
END
$$;

-- name: create_observe
-- The trigger of a table that is only observed: count a write that enforcement would refuse, and let it pass.
CREATE FUNCTION fencelock.observe() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$
DECLARE
    resource constant pg_catalog.text := TG_ARGV[0];  -- not a type of that name in a schema of the caller's
BEGIN
    IF NOT fencelock.is_presented(resource) THEN
        PERFORM fencelock.count_observed(
            resource, pg_catalog.format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME), pg_catalog.lower(TG_OP));
    END IF;
    IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END
$$;

-- name: create_record_refusal
-- Count a lease that enforcement would have refused.
CREATE FUNCTION fencelock.record_refusal(p_resource text, p_kind text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
BEGIN
    IF p_kind NOT IN ('stale', 'collision', 'wrong-lock', 'seal-lost') THEN
        RAISE 'a refusal is stale, collision, wrong-lock or seal-lost, not %', p_kind USING ERRCODE = '22023';
    END IF;
    PERFORM fencelock.check_name('resource', convert_to(p_resource, 'UTF8'));
    PERFORM fencelock.count_observed(p_resource, '', p_kind);
END
$$;

-- name: create_is_of
-- Whether a mark is this claim's at the moment, and open.
CREATE FUNCTION fencelock.is_of(p_resource text, p_claim text) RETURNS boolean LANGUAGE sql VOLATILE AS
$$ SELECT EXISTS (SELECT FROM fencelock.mark WHERE resource = p_resource AND claim = p_claim AND NOT is_closed) $$;

-- name: create_read_marks
-- The marks that are known of these resources, held still: 'shared'; 'alone', for whoever is about to write them; or 'alone
-- unless ours', for whoever writes only what is not this claim's: others of one lease do not wait for each other then. A
-- claim is shown to those who know it, and any other one as '*'.
CREATE FUNCTION fencelock.read_marks(p_resources text[], p_claim text, p_hold text, p_limit_ms integer)
RETURNS TABLE (
    resource text, lock bytea, token bigint, source_id text, history_id text, claim text, is_closed boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    wanted text;
BEGIN
    IF p_limit_ms IS NOT NULL THEN
        PERFORM fencelock.limit_time('idle_in_transaction_session_timeout', p_limit_ms);
    END IF;
    FOREACH wanted IN ARRAY p_resources LOOP
        PERFORM fencelock.hold_mark(
            wanted, p_hold <> 'shared' AND NOT (p_hold = 'alone unless ours' AND fencelock.is_of(wanted, p_claim)));
    END LOOP;
    RETURN QUERY
    SELECT mark.resource, mark.lock, coalesce(mark.token, 0), mark.source_id, mark.history_id,
        CASE WHEN mark.claim = p_claim THEN mark.claim WHEN mark.claim IS NOT NULL THEN '*' END, mark.is_closed
    FROM fencelock.mark AS mark WHERE mark.resource = ANY (p_resources);
END
$$;

-- name: create_show_marks
-- The marks of one resource, or of all, without waiting for anybody and without any claim.
CREATE FUNCTION fencelock.show_marks(p_resource text)
RETURNS TABLE (
    resource text, lock bytea, token bigint, source_id text, history_id text, claim text, is_closed boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
    SELECT resource, lock, coalesce(token, 0), source_id, history_id, CASE WHEN claim IS NOT NULL THEN '*' END, is_closed
    FROM fencelock.mark WHERE p_resource IS NULL OR resource = p_resource ORDER BY resource
$$;

-- name: create_show_observations
-- What observe mode let pass. Who it was is told to the schema's owner, as is the rest of what clients of a server do.
CREATE FUNCTION fencelock.show_observations(p_resource text)
RETURNS TABLE (
    resource text, table_name text, kind text, times bigint, first_at timestamptz, last_at timestamptz, role text,
    application_name text, address text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
    SELECT seen.resource, seen.table_name, seen.kind, sum(seen.times)::bigint, min(seen.first_at), max(seen.last_at),
        who.role, who.application_name, who.address
    FROM fencelock.observation AS seen
    LEFT JOIN LATERAL (
        SELECT seen.role, seen.application_name, host(seen.address) WHERE pg_has_role(session_user, current_user, 'member')
    ) AS who (role, application_name, address) ON true
    WHERE p_resource IS NULL OR seen.resource = p_resource
    GROUP BY seen.resource, seen.table_name, seen.kind, who.role, who.application_name, who.address
    ORDER BY 1, 2, 3, 7, 8, 9
$$;

-- name: create_write_mark
-- Raise a mark, or close one's own, as the flows decided; the table itself refuses what no lease may do. What was presented
-- before is so no more. The commit reaches the disk, whatever the session's settings (G4).
CREATE FUNCTION fencelock.write_mark(
    p_resource text, p_lock bytea, p_token bigint, p_source_id text, p_history_id text, p_claim text, p_is_closed boolean)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    ignored text := set_config(fencelock.note_name(p_resource), '', true);
    form constant text := '^[A-Za-z0-9_-]{1,64}$';
BEGIN
    IF fencelock.looks_back() THEN
        RAISE 'a mark is raised at READ COMMITTED, and this transaction looks at the past (%)',
            current_setting('transaction_isolation')
            USING ERRCODE = 'FL006', HINT = 'Seal in a transaction of its own, before this one begins.';
    END IF;
    IF (p_token > 0 AND p_claim ~ form AND p_source_id ~ form AND p_history_id ~ form) IS NOT TRUE THEN
        RAISE 'a lease''s mark has a token, a claim, a source and a history' USING ERRCODE = '22023';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        ignored := set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM fencelock.hold_mark(p_resource, true);
    INSERT INTO fencelock.mark AS mark (resource, lock, token, source_id, history_id, claim, is_closed)
    VALUES (p_resource, p_lock, p_token, p_source_id, p_history_id, p_claim, p_is_closed)
    ON CONFLICT (resource) DO UPDATE
    SET lock = excluded.lock, token = excluded.token, source_id = excluded.source_id, history_id = excluded.history_id,
        claim = excluded.claim, is_closed = excluded.is_closed;
END
$$;

-- name: create_parse
-- Take a sequencer apart: fl1.<source-id>.<history-id>.<mode>.<token>.<claim>.<lock, base64url>. What is wrong with it is
-- said without showing it.
CREATE FUNCTION fencelock.parse(
    p_sequencer text, OUT lock bytea, OUT token bigint, OUT claim text, OUT source_id text, OUT history_id text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    part constant text[] := string_to_array(p_sequencer, '.');
    padded constant text := rpad(part[7], (length(part[7]) + 3) / 4 * 4, '=');
BEGIN
    IF p_sequencer IS NULL OR p_sequencer !~ '^fl1([.][A-Za-z0-9_-]{1,64}){2}[.]x[.][1-9][0-9]{0,18}[.][A-Za-z0-9_-]{1,64}[.][A-Za-z0-9_-]+$'
        OR part[5]::numeric > 9223372036854775807 OR length(part[7]) % 4 = 1 THEN
        RAISE 'not a sequencer: expected fl1.<source-id>.<history-id>.<mode>.<token>.<claim>.<lock, base64url>'
            USING ERRCODE = '22023';
    END IF;
    source_id := part[2];
    history_id := part[3];
    token := part[5]::bigint;
    claim := part[6];
    lock := decode(translate(padded, '-_', '+/'), 'base64');
END
$$;

-- name: create_present
-- Admit this transaction's writes to these resources, for any client in any language that has a sequencer; return its
-- token. The transaction may be idle for as long as its session allows: the client knows its lease's time left, not we.
CREATE FUNCTION fencelock.present(p_sequencer text, VARIADIC p_resources text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    proof record;
    wanted constant text[] := ARRAY(SELECT DISTINCT name COLLATE "C" FROM unnest(p_resources) AS name ORDER BY 1);
    not_ours integer[];
BEGIN
    proof := fencelock.parse(p_sequencer);
    not_ours := fencelock.offer(wanted, proof.lock, proof.token, proof.claim, proof.source_id, proof.history_id, NULL);
    IF cardinality(not_ours) > 0 THEN
        PERFORM fencelock.refuse(
            wanted[not_ours[1]], proof.lock, proof.token, proof.claim, proof.source_id, proof.history_id);
    END IF;
    RETURN proof.token;
END
$$;

-- name: create_seal
-- Raise the marks of these resources to the sequencer's token, for any client in any language: before it reads anything,
-- and best in a transaction of its own. Return the token. Once sealed, it may be repeated.
CREATE FUNCTION fencelock.seal(p_sequencer text, VARIADIC p_resources text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    proof record;
    wanted text;
    is_raised boolean;
    mark fencelock.mark;
BEGIN
    proof := fencelock.parse(p_sequencer);
    FOR wanted IN SELECT DISTINCT name COLLATE "C" FROM unnest(p_resources) AS name ORDER BY 1 LOOP
        PERFORM fencelock.hold_mark(wanted, NOT (fencelock.looks_back() OR fencelock.is_of(wanted, proof.claim)));
        SELECT * INTO mark FROM fencelock.mark WHERE resource = wanted;
        is_raised := NOT FOUND OR (
            mark.lock = proof.lock AND (mark.source_id IS NULL OR mark.source_id = proof.source_id)
            AND coalesce(mark.token, 0) < proof.token);
        IF is_raised THEN
            PERFORM fencelock.write_mark(
                wanted, proof.lock, proof.token, proof.source_id, proof.history_id, proof.claim, false);
        ELSIF (mark.lock, mark.token, mark.claim, mark.source_id, mark.history_id, mark.is_closed)
            IS DISTINCT FROM (proof.lock, proof.token, proof.claim, proof.source_id, proof.history_id, false) THEN
            PERFORM fencelock.refuse(
                wanted, proof.lock, proof.token, proof.claim, proof.source_id, proof.history_id);
        END IF;
    END LOOP;
    RETURN proof.token;
END
$$;

-- name: create_make_mark
-- A resource that is new here knows its lock from now on.
CREATE FUNCTION fencelock.make_mark(p_resource text, p_lock bytea) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    PERFORM fencelock.hold_mark(p_resource, true);
    INSERT INTO fencelock.mark (resource, lock) VALUES (p_resource, p_lock) ON CONFLICT (resource) DO NOTHING;
END
$$;

-- name: create_write_audit
-- An operator's deed; the database adds when, and in which role.
CREATE FUNCTION fencelock.write_audit(
    p_who text, p_action text, p_resource text, p_from_token bigint, p_to_token bigint, p_reason text)
RETURNS bigint LANGUAGE sql SET search_path = pg_catalog, pg_temp AS
$$
    INSERT INTO fencelock.guard_audit (who, action, resource, from_token, to_token, reason)
    VALUES (p_who, p_action, p_resource, p_from_token, p_to_token, p_reason) RETURNING id
$$;

-- name: create_change_mark
-- Any change of a mark that a lease may not make, by the audit entry that was just written for it (G8).
CREATE FUNCTION fencelock.change_mark(
    p_resource text, p_lock bytea, p_token bigint, p_source_id text, p_history_id text, p_claim text, p_is_closed boolean,
    p_audit_id bigint)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    ignored text := set_config('synchronous_commit', 'on', true);
BEGIN
    ignored := set_config(fencelock.note_name(p_resource), '', true);
    PERFORM fencelock.hold_mark(p_resource, true);
    INSERT INTO fencelock.mark AS mark (resource, lock, token, source_id, history_id, claim, is_closed, audit_id)
    VALUES (p_resource, p_lock, nullif(p_token, 0), p_source_id, p_history_id, p_claim, p_is_closed, p_audit_id)
    ON CONFLICT (resource) DO UPDATE
    SET lock = excluded.lock, token = excluded.token, source_id = excluded.source_id, history_id = excluded.history_id,
        claim = excluded.claim, is_closed = excluded.is_closed, audit_id = excluded.audit_id;
END
$$;

