-- The guard's functions, second file: reading and writing marks, sealing and presenting from any language, and what
-- operators do.

-- name: create_is_of
-- Whether a mark is this claim's now, and open.
CREATE FUNCTION fencelock.is_of(p_resource text, p_claim text) RETURNS boolean LANGUAGE sql VOLATILE AS
$$ SELECT EXISTS (SELECT FROM fencelock.mark WHERE resource = p_resource AND claim = p_claim AND NOT is_closed) $$;

-- name: create_read_marks
-- The marks of these resources, locked: 'shared'; 'alone', before writing them; or 'alone unless ours', before writing
-- only those of other claims, so that transactions of one lease do not wait for each other. A claim is shown only to a
-- caller that knows it, otherwise as '*'.
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
-- The marks of one resource, or of all, without waiting and without claims.
CREATE FUNCTION fencelock.show_marks(p_resource text)
RETURNS TABLE (
    resource text, lock bytea, token bigint, source_id text, history_id text, claim text, is_closed boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
    SELECT resource, lock, coalesce(token, 0), source_id, history_id, CASE WHEN claim IS NOT NULL THEN '*' END, is_closed
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

-- name: create_write_mark
-- Raise a mark, or close one's own, as the flows decided; the table's trigger refuses what no lease may do. Presenting
-- ends with it. The commit is flushed, whatever the session's settings are (G4).
CREATE FUNCTION fencelock.write_mark(
    p_resource text, p_lock bytea, p_token bigint, p_source_id text, p_history_id text, p_claim text, p_is_closed boolean)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    ignored text := set_config(fencelock.note_name(p_resource), '', true);
    form constant text := '^[A-Za-z0-9_-]{1,64}$';
BEGIN
    IF fencelock.keeps_snapshot() THEN
        RAISE 'a seal needs READ COMMITTED, and this transaction keeps an older snapshot (%)',
            current_setting('transaction_isolation')
            USING ERRCODE = 'FL006', HINT = 'Seal in a transaction of its own, before this one begins.';
    END IF;
    IF (p_token > 0 AND p_claim ~ form AND p_source_id ~ form AND p_history_id ~ form) IS NOT TRUE THEN
        RAISE 'a lease''s mark needs a token, a claim, a source and a history' USING ERRCODE = '22023';
    END IF;
    -- A mark that a crash could lose would admit the old holder again.
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
-- Split a sequencer: fl1.<source-id>.<history-id>.<mode>.<token>.<claim>.<lock, base64url>. The error does not show it,
-- since it contains the claim.
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
-- token. The session's own idle limit applies: the database does not know the lease's time left.
CREATE FUNCTION fencelock.present(p_sequencer text, VARIADIC p_resources text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    parsed record;
    wanted constant text[] := ARRAY(SELECT DISTINCT name COLLATE "C" FROM unnest(p_resources) AS name ORDER BY 1);
    not_ours integer[];
BEGIN
    parsed := fencelock.parse(p_sequencer);
    not_ours := fencelock.offer(wanted, parsed.lock, parsed.token, parsed.claim, parsed.source_id, parsed.history_id, NULL);
    IF cardinality(not_ours) > 0 THEN
        PERFORM fencelock.refuse(
            wanted[not_ours[1]], parsed.lock, parsed.token, parsed.claim, parsed.source_id, parsed.history_id);
    END IF;
    RETURN parsed.token;
END
$$;

-- name: create_seal
-- Raise the marks of these resources to the sequencer's token, for any client in any language: before its first read, and
-- preferably in a transaction of its own. Return the token. Repeating a seal is allowed.
CREATE FUNCTION fencelock.seal(p_sequencer text, VARIADIC p_resources text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    parsed record;
    wanted text;
    is_raised boolean;
    mark fencelock.mark;
BEGIN
    parsed := fencelock.parse(p_sequencer);
    FOR wanted IN SELECT DISTINCT name COLLATE "C" FROM unnest(p_resources) AS name ORDER BY 1 LOOP
        PERFORM fencelock.hold_mark(wanted, NOT (fencelock.keeps_snapshot() OR fencelock.is_of(wanted, parsed.claim)));
        SELECT * INTO mark FROM fencelock.mark WHERE resource = wanted;
        is_raised := NOT FOUND OR (
            mark.lock = parsed.lock AND (mark.source_id IS NULL OR mark.source_id = parsed.source_id)
            AND coalesce(mark.token, 0) < parsed.token);
        IF is_raised THEN
            PERFORM fencelock.write_mark(
                wanted, parsed.lock, parsed.token, parsed.source_id, parsed.history_id, parsed.claim, false);
        ELSIF (mark.lock, mark.token, mark.claim, mark.source_id, mark.history_id, mark.is_closed)
            IS DISTINCT FROM (parsed.lock, parsed.token, parsed.claim, parsed.source_id, parsed.history_id, false) THEN
            PERFORM fencelock.refuse(
                wanted, parsed.lock, parsed.token, parsed.claim, parsed.source_id, parsed.history_id);
        END IF;
    END LOOP;
    RETURN parsed.token;
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
-- Change a mark in a way that only an operator may, by the audit entry that was just written for it (G8).
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
