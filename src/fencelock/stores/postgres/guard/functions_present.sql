-- The guard's functions, second file: presenting a lease. store.py installs the files in this order: schema,
-- functions_rights, functions_present, functions_triggers, functions_effects, functions_marks, functions_floors, protection.
--
-- A transaction that holds a lease presents it: `offer` takes the resource's advisory lock, shared, compares the mark,
-- and records the result in a setting that is local to the transaction and whose name only these functions can compute.
-- Setting and lock end together with the transaction, or at ROLLBACK TO an earlier savepoint. A seal takes the same lock
-- exclusively, so it waits for all transactions that have presented, and they for it, in order of arrival. A presented
-- mark therefore stays what it was until the transaction ends, and the triggers of protected tables need not read it.
--
-- Functions with their owner's rights schema-qualify every name, or set their own search_path. debug_print_plan is off
-- where variables hold secrets, since any role may set it on and have plans sent to itself.
--
-- Errors: FL001 unfenced write, FL002 stale token, FL003 collision, FL004 wrong lock or source, FL005 not sealed, FL006 a
-- transaction that cannot do it, FL007 the guarded transaction ended before, FL009 a forbidden change of a mark, FL010 a
-- table that cannot be protected, FL012 an implausible token, FL013 a signature that is missing or wrong, FL014 a role
-- without a right, FL015 a role or a mark that does not exist, FL017 a token that is not above the floor of purged marks,
-- FL018 a table that was rebuilt without its triggers.
-- Errors about a resource carry in their DETAIL, as JSON, the resource, and the numbers or the role.

-- name: create_mark_key
-- The advisory lock that stands for a resource's mark. Two resources with the same key only wait for each other's seals.
CREATE FUNCTION fencelock.mark_key(p_resource text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT pg_catalog.hashtextextended(p_resource COLLATE pg_catalog."C", 7378697628973295216) $$;

-- name: create_secret
-- A value that only these functions know. It never changes, and is declared immutable so that each session reads it once:
-- the triggers need not read a table for each statement.
CREATE FUNCTION fencelock.secret() RETURNS text LANGUAGE sql IMMUTABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$ SELECT secret FROM fencelock.guard $$;

-- name: create_note_name
-- The name of the setting that records a presented resource. Other roles cannot compute it, and no list of settings shows
-- it, so nobody can set it by hand. The secret is a constant of this function's plan, which debug_print_plan would print;
-- the function is volatile so that its result does not become a constant of another plan.
CREATE FUNCTION fencelock.note_name(p_resource text) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET debug_print_plan = off AS
$$
BEGIN
    RETURN 'fencelock.n' OPERATOR(pg_catalog.||) pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(
        fencelock.secret() OPERATOR(pg_catalog.||) p_resource, pg_catalog.getdatabaseencoding())), 'hex');
END
$$;

-- name: create_note
-- Write the setting that records a presented resource. Inside a parallel operation, into which a caller's own function can
-- lead, the server sets nothing, and its error shows the setting's name: so it has to refuse one of no importance first.
CREATE FUNCTION fencelock.note(p_resource text, p_value text) RETURNS boolean LANGUAGE plpgsql AS
$$
BEGIN
    IF pg_catalog.set_config('fencelock.note', '', true) IS NULL THEN END IF;
    RETURN pg_catalog.set_config(fencelock.note_name(p_resource), p_value, true) IS NOT NULL;
END
$$;

-- name: create_keeps_snapshot
-- Whether this transaction keeps the snapshot of its first statement. Then reading a mark is not enough: its row is
-- locked too, which fails (40001) if the mark has changed since.
CREATE FUNCTION fencelock.keeps_snapshot() RETURNS boolean LANGUAGE sql STABLE AS
$$ SELECT pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) ANY ('{"repeatable read","serializable"}') $$;

-- name: create_limit_time
-- Let the server end this transaction when it exceeds `p_setting`: a holder that freezes inside it must not block its
-- successor (G3). A lower limit of the session's own stays.
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
-- Raise the reason why a lease is not admitted to a resource with another mark. Never returns.
CREATE FUNCTION fencelock.refuse(p_resource text, p_shown fencelock.sequencer) RETURNS void LANGUAGE plpgsql AS
$$
DECLARE
    mark fencelock.mark;
    reason text;
    code text := 'FL002';
    remedy text := 'Stop, and acquire the lock again.';
    numbers text;
BEGIN
    SELECT * INTO mark FROM fencelock.mark WHERE resource = p_resource;
    numbers := json_build_object('resource', p_resource, 'token', p_shown.token::text, 'mark', coalesce(mark.token, 0)::text);
    IF mark.lock <> p_shown.lock THEN
        code := 'FL004';
        reason := 'the resource is bound to another lock';
        remedy := 'Acquire that lock, or move the resource by fencelock rebind.';
    ELSIF mark.source_id <> p_shown.source_id THEN
        code := 'FL004';
        reason := 'the resource is bound to another source, whose tokens cannot be compared';
        remedy := 'Use that source, or move the resource by fencelock rebind.';
    ELSIF mark.token IS NULL OR mark.token < p_shown.token THEN
        code := 'FL005';
        reason := 'this token has not sealed the resource';
        remedy := 'Seal it before anything is read: SELECT fencelock.seal(...). If it was sealed before, the database went '
            'back in time, and all that was read from it is void.';
    ELSIF mark.token > p_shown.token THEN
        reason := 'a newer holder has sealed the resource';
    ELSIF mark.digest IS NULL THEN
        reason := 'an operator has raised the mark over every token issued until then';
    ELSIF (mark.digest, mark.history_id) <> (p_shown.digest, p_shown.history_id) THEN
        code := 'FL003';
        reason := 'another lease has sealed the resource with the same token: the source issued it twice';
        remedy := 'Stop the users of that source, and run fencelock epoch --raise.';
    ELSE
        reason := 'its own holder closed it';
    END IF;
    RAISE 'token % at mark % of resource %: %', p_shown.token, coalesce(mark.token, 0), p_resource, reason
        USING ERRCODE = code, DETAIL = numbers, HINT = remedy;
END
$$;

-- name: create_check_unmarked
-- Fail as a changed mark does (40001) if the resource has got a mark that this transaction's snapshot does not show. To
-- find out, insert one and undo it.
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
-- Lock a resource's mark until the end of the transaction, shared by all who present its lease, or exclusively. The block
-- with an EXCEPTION makes the lock the transaction's: one that is taken while a cursor is read is the cursor's, and ends
-- with the cursor if a later row of it fails. (An IF on a void function's result costs plpgsql less than a PERFORM.)
CREATE FUNCTION fencelock.hold_mark(p_resource text, p_is_alone boolean) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    BEGIN
        IF p_is_alone THEN
            IF pg_advisory_xact_lock(fencelock.mark_key(p_resource)) IS NULL THEN END IF;
        ELSE
            IF pg_advisory_xact_lock_shared(fencelock.mark_key(p_resource)) IS NULL THEN END IF;
        END IF;
    EXCEPTION WHEN SQLSTATE 'FL000' THEN  -- Nothing raises it.
    END;
    IF fencelock.keeps_snapshot() THEN
        PERFORM FROM fencelock.mark WHERE resource = p_resource FOR SHARE;
        IF NOT FOUND THEN
            PERFORM fencelock.check_unmarked(p_resource);
        END IF;
    END IF;
    RETURN true;
END
$$;

-- name: create_offer
-- Admit this transaction's writes to each resource whose open mark is exactly this lease's; return the positions, from 1,
-- of the other resources. The mark has H(proof): who reads it cannot present. Resources come in the order of their
-- bytes, so that transactions never wait in a circle. Every guarded transaction runs this, so names are
-- schema-qualified: setting a search_path would take as long as all the rest.
CREATE FUNCTION fencelock.offer(
    p_resources text[], p_lock bytea, p_token bigint, p_proof text, p_source_id text, p_history_id text, p_limit_ms integer)
RETURNS integer[] LANGUAGE plpgsql SECURITY DEFINER AS
$$
DECLARE
    own_digest constant pg_catalog.text := fencelock.one_way(p_proof);
    nth pg_catalog.int4 := 0;
    wanted pg_catalog.text;
    not_ours pg_catalog.int4[] := '{}';
    xid constant pg_catalog.xid8 := pg_catalog.pg_current_xact_id();  -- Fails on a standby, which lags behind.
BEGIN
    IF p_limit_ms IS NULL THEN
    ELSIF pg_catalog.current_setting('idle_in_transaction_session_timeout') OPERATOR(pg_catalog.<>) '0' THEN
        IF fencelock.limit_time('idle_in_transaction_session_timeout', p_limit_ms) IS NULL THEN END IF;
    ELSIF pg_catalog.set_config('idle_in_transaction_session_timeout', p_limit_ms::pg_catalog.text, true) IS NULL THEN
    END IF;
    FOREACH wanted IN ARRAY p_resources LOOP
        nth := nth OPERATOR(pg_catalog.+) 1;
        IF fencelock.keeps_snapshot() THEN
            IF fencelock.hold_mark(wanted, false) THEN END IF;
        ELSE
            BEGIN  -- As in hold_mark.
                IF pg_catalog.pg_advisory_xact_lock_shared(fencelock.mark_key(wanted)) IS NULL THEN END IF;
            EXCEPTION WHEN SQLSTATE 'FL000' THEN
            END;
        END IF;
        -- The lock is taken: a seal that was in progress is visible now, and so is a right that was taken away.
        IF fencelock.check_right(wanted) THEN END IF;
        PERFORM FROM fencelock.mark AS mark
        WHERE mark.resource OPERATOR(pg_catalog.=) wanted AND mark.token OPERATOR(pg_catalog.=) p_token
            AND mark.digest OPERATOR(pg_catalog.=) own_digest AND mark.lock OPERATOR(pg_catalog.=) p_lock
            AND mark.source_id OPERATOR(pg_catalog.=) p_source_id
            AND mark.history_id OPERATOR(pg_catalog.=) p_history_id AND NOT mark.is_closed;
        IF NOT FOUND THEN
            not_ours := pg_catalog.array_append(not_ours, nth);
        ELSIF fencelock.check_tables(wanted) AND fencelock.note(wanted, 'presented') THEN
        END IF;
    END LOOP;
    RETURN not_ours;
END
$$;

-- name: create_withdraw
-- Take back what was presented to these resources; their marks stay locked.
CREATE FUNCTION fencelock.withdraw(VARIADIC p_resources text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY p_resources LOOP
        PERFORM fencelock.note(wanted, '');
    END LOOP;
END
$$;

-- name: create_refuse_end
-- Raise the reason why a transaction must not be committed as a guarded one. Never returns.
CREATE FUNCTION fencelock.refuse_end(p_resource text) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    RAISE 'no token is presented for resource %: the guarded transaction has already ended', p_resource USING ERRCODE = 'FL007';
END
$$;

-- name: create_is_presented
-- Whether this transaction has presented the resource's mark, and so still has it locked. Triggers call it with any
-- search_path of their session, so names are schema-qualified: setting a search_path would take longer than all the rest.
CREATE FUNCTION fencelock.is_presented(p_resource text) RETURNS boolean LANGUAGE sql VOLATILE AS
$$
    SELECT pg_catalog.current_setting(fencelock.note_name(p_resource), true) OPERATOR(pg_catalog.=) 'presented' IS TRUE
$$;

-- name: create_confirm
-- Check before COMMIT that the resource was presented in this very transaction: if the block's code ended that one and
-- began another, the second must not be committed as a guarded one. Names are schema-qualified, as in `offer`.
CREATE FUNCTION fencelock.confirm(p_resource text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS
$$
BEGIN
    RETURN fencelock.is_presented(p_resource) OR fencelock.refuse_end(p_resource);
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
