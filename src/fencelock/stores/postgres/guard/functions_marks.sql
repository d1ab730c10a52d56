-- The guard's functions, last file: reading and writing marks, sealing and presenting from any language, and what
-- operators do.

-- name: create_is_of
-- Whether a mark is the lease's with this digest now, and open.
CREATE FUNCTION fencelock.is_of(p_resource text, p_digest text) RETURNS boolean LANGUAGE sql VOLATILE AS
$$ SELECT EXISTS (SELECT FROM fencelock.mark WHERE resource = p_resource AND digest = p_digest AND NOT is_closed) $$;

-- name: create_read_marks
-- The marks of these resources, locked: 'shared'; 'alone', before writing them; or 'alone unless ours', before writing
-- only those with another digest, so that transactions of one lease do not wait for each other.
CREATE FUNCTION fencelock.read_marks(p_resources text[], p_digest text, p_hold text, p_limit_ms integer)
RETURNS TABLE (
    resource text, lock bytea, token bigint, source_id text, history_id text, digest text, is_closed boolean)
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
            wanted, p_hold <> 'shared' AND NOT (p_hold = 'alone unless ours' AND fencelock.is_of(wanted, p_digest)));
    END LOOP;
    RETURN QUERY
    SELECT mark.resource, mark.lock, coalesce(mark.token, 0), mark.source_id, mark.history_id,
        mark.digest, mark.is_closed
    FROM fencelock.mark AS mark WHERE mark.resource = ANY (p_resources);
END
$$;

-- name: create_show_marks
-- The marks of one resource, or of all, without waiting.
CREATE FUNCTION fencelock.show_marks(p_resource text)
RETURNS TABLE (
    resource text, lock bytea, token bigint, source_id text, history_id text, digest text, is_closed boolean,
    requires_signature boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
    SELECT resource, lock, coalesce(token, 0), source_id, history_id, digest, is_closed, requires_signature
    FROM fencelock.mark WHERE p_resource IS NULL OR resource = p_resource ORDER BY resource
$$;

-- name: create_show_observations
-- What observe mode let pass. Only members of the schema's owner see who it was, as with other clients' activity in
-- PostgreSQL.
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

-- name: create_begin_change
-- Prepare to raise or close a mark for a lease: lock it alone, check the right, and end presenting. The commit will be
-- flushed, whatever the session's settings are (G4).
CREATE FUNCTION fencelock.begin_change(p_resource text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    ignored text;
BEGIN
    PERFORM fencelock.note(p_resource, '');
    IF fencelock.keeps_snapshot() THEN
        RAISE 'a seal needs READ COMMITTED, and this transaction keeps an older snapshot (%)',
            current_setting('transaction_isolation')
            USING ERRCODE = 'FL006', HINT = 'Seal in a transaction of its own, before this one begins.';
    END IF;
    -- A mark that a crash could lose would admit the old holder again.
    IF current_setting('synchronous_commit') = 'off' THEN
        ignored := set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM fencelock.hold_mark(p_resource, true);
    PERFORM fencelock.check_right(p_resource);
END
$$;

-- name: create_raise_mark
-- Raise a mark to a sequencer's token. The signature comes before any comparison; the table's trigger refuses what no
-- lease may do.
CREATE FUNCTION fencelock.raise_mark(p_resource text, p_shown fencelock.sequencer) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    mark fencelock.mark;
BEGIN
    PERFORM fencelock.begin_change(p_resource);
    SELECT * INTO mark FROM fencelock.mark WHERE resource = p_resource;
    IF mark.requires_signature THEN
        PERFORM fencelock.check_signature(p_resource, p_shown);
    END IF;
    PERFORM fencelock.check_plausible(p_resource, p_shown.token, coalesce(mark.token, 0));
    UPDATE fencelock.mark
    SET lock = p_shown.lock, token = p_shown.token, source_id = p_shown.source_id, history_id = p_shown.history_id,
        digest = p_shown.digest, is_closed = false, raised_at = clock_timestamp()
    WHERE resource = p_resource;
    IF NOT FOUND THEN
        INSERT INTO fencelock.mark (resource, lock, token, source_id, history_id, digest)
        VALUES (p_resource, p_shown.lock, p_shown.token, p_shown.source_id, p_shown.history_id, p_shown.digest);
    END IF;
END
$$;

-- name: create_in_order
-- The resources, each once, in the order of their bytes; refuse none, which would do nothing and look like success.
CREATE FUNCTION fencelock.in_order(p_resources text[]) RETURNS text[] LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    IF cardinality(p_resources) > 0 THEN
        RETURN ARRAY(SELECT DISTINCT name COLLATE "C" FROM unnest(p_resources) AS name ORDER BY 1);
    END IF;
    RAISE 'no resource is named' USING ERRCODE = '22023';
END
$$;

-- name: create_raise_marks
-- Raise the marks of these resources to the sequencer's token, as the flows decided; rewrite one that is the lease's
-- already. Resources come in the order of their bytes, so that transactions never wait in a circle.
CREATE FUNCTION fencelock.raise_marks(p_sequencer text, VARIADIC p_resources text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    shown constant fencelock.sequencer := fencelock.parse(p_sequencer);
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY fencelock.in_order(p_resources) LOOP
        PERFORM fencelock.raise_mark(wanted, shown);
    END LOOP;
END
$$;

-- name: create_close_marks
-- Close the marks of these resources that belong to the lease with this claim: who was only shown its sequencer may not.
CREATE FUNCTION fencelock.close_marks(p_claim text, VARIADIC p_resources text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    own_digest constant text := fencelock.one_way(fencelock.one_way(p_claim));
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY fencelock.in_order(p_resources) LOOP
        PERFORM fencelock.begin_change(wanted);
        UPDATE fencelock.mark SET is_closed = true, raised_at = clock_timestamp() WHERE resource = wanted AND digest = own_digest;
    END LOOP;
END
$$;

-- name: create_present
-- Admit this transaction's writes to these resources, for any client in any language that has a sequencer; return its
-- token. The session's own idle limit applies: the database does not know the lease's time left.
CREATE FUNCTION fencelock.present(p_sequencer text, VARIADIC p_resources text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    shown constant fencelock.sequencer := fencelock.parse(p_sequencer);
    wanted constant text[] := fencelock.in_order(p_resources);
    not_ours integer[];
BEGIN
    not_ours := fencelock.offer(wanted, shown.lock, shown.token, shown.proof, shown.source_id, shown.history_id, NULL);
    IF cardinality(not_ours) > 0 THEN
        PERFORM fencelock.refuse(wanted[not_ours[1]], shown);
    END IF;
    RETURN shown.token;
END
$$;

-- name: create_seal
-- Raise the marks of these resources to the sequencer's token, for any client in any language: before its first read, and
-- preferably in a transaction of its own. Return the token. Repeating a seal is allowed.
CREATE FUNCTION fencelock.seal(p_sequencer text, VARIADIC p_resources text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    shown constant fencelock.sequencer := fencelock.parse(p_sequencer);
    wanted text;
    mark fencelock.mark;
BEGIN
    FOREACH wanted IN ARRAY fencelock.in_order(p_resources) LOOP
        PERFORM fencelock.hold_mark(wanted, NOT (fencelock.keeps_snapshot() OR fencelock.is_of(wanted, shown.digest)));
        PERFORM fencelock.check_right(wanted);
        SELECT * INTO mark FROM fencelock.mark WHERE resource = wanted;
        IF (mark.lock, mark.token, mark.digest, mark.source_id, mark.history_id, mark.is_closed)
            IS NOT DISTINCT FROM (shown.lock, shown.token, shown.digest, shown.source_id, shown.history_id, false) THEN
            CONTINUE;
        END IF;
        IF mark.requires_signature THEN
            PERFORM fencelock.check_signature(wanted, shown);
        END IF;
        IF mark.resource IS NULL OR (
            mark.lock = shown.lock AND (mark.source_id IS NULL OR mark.source_id = shown.source_id)
            AND coalesce(mark.token, 0) < shown.token) THEN
            PERFORM fencelock.raise_mark(wanted, shown);
        ELSE
            PERFORM fencelock.refuse(wanted, shown);
        END IF;
    END LOOP;
    RETURN shown.token;
END
$$;

-- name: create_make_mark
-- Bind a new resource to its lock.
CREATE FUNCTION fencelock.make_mark(p_resource text, p_lock bytea) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    PERFORM fencelock.hold_mark(p_resource, true);
    INSERT INTO fencelock.mark (resource, lock) VALUES (p_resource, p_lock) ON CONFLICT (resource) DO NOTHING;
END
$$;

-- name: create_write_audit
-- Record an operator's action; the database adds the time and the role.
CREATE FUNCTION fencelock.write_audit(
    p_who text, p_action text, p_resource text, p_from_token bigint, p_to_token bigint, p_reason text)
RETURNS bigint LANGUAGE sql SET search_path = pg_catalog, pg_temp AS
$$
    INSERT INTO fencelock.guard_audit (who, action, resource, from_token, to_token, reason)
    VALUES (p_who, p_action, p_resource, p_from_token, p_to_token, p_reason) RETURNING id
$$;

-- name: create_change_mark
-- Change a mark in a way that only an operator may, by the audit entry that was just written for it (G8). `p_sequencer` is
-- the one whose token the mark gets, if there is one.
CREATE FUNCTION fencelock.change_mark(
    p_resource text, p_lock bytea, p_token bigint, p_source_id text, p_history_id text, p_digest text, p_is_closed boolean,
    p_sequencer text, p_is_implausible boolean, p_audit_id bigint)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    ignored text := set_config('synchronous_commit', 'on', true);
    before fencelock.mark;
BEGIN
    PERFORM fencelock.note(p_resource, '');
    PERFORM fencelock.hold_mark(p_resource, true);
    SELECT * INTO before FROM fencelock.mark WHERE resource = p_resource;
    IF before.requires_signature AND p_sequencer IS NOT NULL THEN
        PERFORM fencelock.check_signature(p_resource, fencelock.parse(p_sequencer));
    END IF;
    IF NOT p_is_implausible THEN
        PERFORM fencelock.check_plausible(p_resource, p_token, coalesce(before.token, 0));
    END IF;
    UPDATE fencelock.mark
    SET lock = p_lock, token = nullif(p_token, 0), source_id = p_source_id, history_id = p_history_id, digest = p_digest,
        is_closed = p_is_closed, audit_id = p_audit_id, raised_at = clock_timestamp()
    WHERE resource = p_resource;
    IF NOT FOUND THEN
        INSERT INTO fencelock.mark (resource, lock, token, source_id, history_id, digest, is_closed, audit_id)
        VALUES (p_resource, p_lock, nullif(p_token, 0), p_source_id, p_history_id, p_digest, p_is_closed, p_audit_id);
    END IF;
END
$$;
