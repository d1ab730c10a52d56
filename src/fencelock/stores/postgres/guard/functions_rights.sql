-- The guard's functions, first file: who may seal, present and close (G12). Sequencers, rights, signatures and the ceiling.

-- name: create_parse
-- Split a sequencer: fl2.<key id>.<source id>.<history id>.<mode>.<token>.<proof>.<lock>.<signature>; lock and signature
-- are base64url. There is one way to write each. The error does not show it, since it contains the proof.
CREATE FUNCTION fencelock.parse(p_sequencer text) RETURNS fencelock.sequencer LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    part constant text[] := string_to_array(p_sequencer, '.');
    shown fencelock.sequencer;
BEGIN
    IF p_sequencer IS NULL OR length(p_sequencer) > 1000 OR p_sequencer !~ (
            '^fl2([.][A-Za-z0-9_-]{1,64}){3}[.]x[.][1-9][0-9]{0,18}[.][0-9a-f]{32}[.][A-Za-z0-9_-]+[.]([A-Za-z0-9_-]{22})?$')
        OR part[6]::numeric > 9223372036854775807 OR length(part[8]) % 4 = 1 OR (part[2] = '0') <> (part[9] = '') THEN
        RAISE 'not a sequencer: %', CASE
            WHEN p_sequencer ~ '^fl[0-9]{1,3}[.]' AND part[1] <> 'fl2' THEN format('it has the format %s', part[1])
            WHEN part[1] = 'fl2' AND cardinality(part) < 9 OR length(part[9]) BETWEEN 1 AND 21 THEN 'it was cut off'
            ELSE 'expected fl2.<key id>.<source id>.<history id>.<mode>.<token>.<proof>.<lock>.<signature>' END
            USING ERRCODE = '22023';
    END IF;
    shown.lock := decode(rpad(translate(part[8], '-_', '+/'), (length(part[8]) + 3) / 4 * 4, '='), 'base64');
    IF fencelock.base64url(shown.lock) <> part[8] THEN
        RAISE 'not a sequencer: its lock is not written as base64url writes it' USING ERRCODE = '22023';
    END IF;
    shown.token := part[6]::bigint;
    shown.source_id := part[3];
    shown.history_id := part[4];
    shown.proof := part[7];
    shown.digest := fencelock.one_way(shown.proof);
    shown.key_id := part[2];
    shown.signature := part[9];
    shown.signed_text := array_to_string(part[1:6], '.') || '.' || shown.digest || '.' || part[8];
    RETURN shown;
END
$$;

-- name: create_check_right
-- Refuse a role that may not seal, present or close the resource. The session's own role counts, not that of SET ROLE or of
-- a function. Call it after the mark is locked: a session that waited for the lock is refused if its right was taken
-- meanwhile.
CREATE FUNCTION fencelock.check_right(p_resource text) RETURNS boolean LANGUAGE plpgsql AS
$$
BEGIN
    -- ANALYZE, REINDEX, REFRESH and autovacuum run functions of a table's owner in the session of somebody else, often of a
    -- superuser. The server forbids UNLISTEN there (42501); elsewhere this one does nothing.
    UNLISTEN fencelock;
    IF pg_catalog.pg_has_role(session_user, current_user, 'MEMBER') THEN
        RETURN true;
    END IF;
    PERFORM FROM fencelock.guard_right AS held
    WHERE held.resource OPERATOR(pg_catalog.=) p_resource AND pg_catalog.pg_has_role(
        session_user, pg_catalog.to_regrole(pg_catalog.quote_ident(held.role)), 'MEMBER');
    IF FOUND THEN
        RETURN true;
    END IF;
    PERFORM FROM fencelock.guard_right AS held
    WHERE pg_catalog.right(held.resource, 1) OPERATOR(pg_catalog.=) '*'
        AND pg_catalog.starts_with(p_resource, pg_catalog.left(held.resource, -1)) AND pg_catalog.pg_has_role(
            session_user, pg_catalog.to_regrole(pg_catalog.quote_ident(held.role)), 'MEMBER');
    IF FOUND THEN
        RETURN true;
    END IF;
    RAISE 'role % has no right to resource %: it may neither seal nor present nor close it', session_user, p_resource
        USING ERRCODE = 'FL014', DETAIL = pg_catalog.json_build_object('resource', p_resource, 'role', session_user),
            HINT = pg_catalog.format(
                'As the owner of the schema fencelock, run fencelock grant URL --resource %L --role %L', p_resource,
                session_user);
END
$$;

-- name: create_check_signature
-- Refuse a sequencer that is not signed with a key of this guard. The key is read each time: one that was retired a moment
-- ago, perhaps while this session was open, signs nothing; and one that was ever retired, by no clock.
CREATE FUNCTION fencelock.check_signature(p_resource text, p_shown fencelock.sequencer) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    reason text;
BEGIN
    SELECT CASE
        WHEN p_shown.key_id = '0' THEN 'it has none'
        WHEN key.key_id IS NULL THEN format('this guard does not know its key %s', p_shown.key_id)
        WHEN key.retired_s IS NOT NULL THEN format('its key %s is retired', p_shown.key_id)
        WHEN fencelock.signature_of(key.inner_pad, key.outer_pad, p_shown.signed_text) <> p_shown.signature
            THEN format('it is not the one that key %s gives', p_shown.key_id)
    END INTO reason
    FROM (VALUES (true)) AS once LEFT JOIN fencelock.guard_key AS key ON key.key_id = p_shown.key_id;
    IF reason IS NOT NULL THEN
        RAISE 'resource % requires a signature of the sequencer (token %), and %', p_resource, p_shown.token, reason
            USING ERRCODE = 'FL013', DETAIL = json_build_object('resource', p_resource, 'token', p_shown.token::text),
                HINT = 'Take the sequencer from the lease. If the source has a new key, run fencelock keys install.';
    END IF;
END
$$;

-- name: create_check_plausible
-- Refuse a token that no source can have issued by now: a guard against accidents, such as a timestamp in nanoseconds. A
-- history that an operator begins starts above 2**30 tokens for each second since 2026; 2**50 more are allowed, and 2**50
-- above the mark whatever the clock says.
CREATE FUNCTION fencelock.check_plausible(p_resource text, p_token bigint, p_mark bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    by_clock constant numeric := trunc(extract(epoch FROM clock_timestamp()) - 1767225600) * 1073741824;
    ceiling constant numeric := least(greatest(by_clock, p_mark) + 1125899906842624, 9223372036854775807);
BEGIN
    IF p_token > ceiling THEN
        RAISE 'resource % is not sealed with token %: no source can have issued a token above % by now', p_resource, p_token,
            ceiling
            USING ERRCODE = 'FL012', DETAIL = json_build_object(
                'resource', p_resource, 'token', p_token::text, 'ceiling', ceiling::text), HINT = 'Find out who made the '
                'token. If its source was restored under a wrong clock, run fencelock marks URL --raise-to SOURCE --implausible.';
    END IF;
END
$$;

-- name: create_grant_right
-- Let a role, and its members, seal, present and close a resource, or all with a prefix.
CREATE FUNCTION fencelock.grant_right(p_resource text, p_role text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    PERFORM fencelock.check_name('resource', convert_to(p_resource, 'UTF8'));
    IF to_regrole(quote_ident(p_role)) IS NULL THEN
        RAISE 'there is no role %', p_role USING ERRCODE = 'FL015', HINT = 'Create it first, then grant the right.';
    END IF;
    INSERT INTO fencelock.guard_right (resource, role) VALUES (p_resource, p_role) ON CONFLICT DO NOTHING;
END
$$;

-- name: create_revoke_rights
-- Take every right of a role that covers one of these resources; a resource that ends in * stands for the right of that
-- name. It waits for no mark: a seal that waits for one checks its right afterwards.
CREATE FUNCTION fencelock.revoke_rights(p_resources text[], p_role text) RETURNS TABLE (resource text) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    RETURN QUERY
    DELETE FROM fencelock.guard_right AS held USING unnest(p_resources) AS wanted
    WHERE held.role = p_role AND (
        held.resource = wanted OR (
            right(wanted, 1) <> '*' AND right(held.resource, 1) = '*' AND starts_with(wanted, left(held.resource, -1))))
    RETURNING held.resource;
END
$$;

-- name: create_require_signature
-- Require a signature of every sequencer that raises this mark, or no longer. Without a key, no holder could seal.
CREATE FUNCTION fencelock.require_signature(p_resource text, p_is_required boolean) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    IF p_is_required AND NOT EXISTS (SELECT FROM fencelock.guard_key WHERE retired_s IS NULL) THEN
        RAISE 'this guard has no key, so it would accept no signature, and nobody could seal resource %', p_resource
            USING ERRCODE = 'FL015', HINT = 'First run fencelock keys install GUARD_URL --source SOURCE.';
    END IF;
    PERFORM set_config('synchronous_commit', 'on', true);
    PERFORM fencelock.hold_mark(p_resource, true);
    UPDATE fencelock.mark SET requires_signature = p_is_required WHERE resource = p_resource;
    IF NOT FOUND THEN
        RAISE 'resource % has no mark', p_resource USING ERRCODE = 'FL015', HINT = 'Run fencelock protect first.';
    END IF;
END
$$;
