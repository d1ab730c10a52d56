-- The guard's functions about floors: what purged marks leave in their place, so that no stale holder gets in again (G15).
--
-- A purge takes the lock of each mark, and keeps it until its end. So who has the lock of a mark that is gone, and reads the
-- floor afterwards, reads one that is not below the mark.

-- name: create_check_floor
-- Refuse a mark that gets a source, unless its token is above the source's floor. An operator's may equal it: such a mark
-- admits only higher ones. A transaction that keeps a snapshot is refused (40001) if the floor has changed since.
CREATE FUNCTION fencelock.check_floor(p_resource text, p_source_id text, p_token bigint, p_digest text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    floor bigint;
BEGIN
    IF fencelock.keeps_snapshot() THEN
        INSERT INTO fencelock.floor (source_id, token) VALUES (p_source_id, 0) ON CONFLICT DO NOTHING;
        PERFORM FROM fencelock.floor WHERE source_id = p_source_id FOR SHARE;
    END IF;
    SELECT kept.token INTO floor FROM fencelock.floor AS kept WHERE kept.source_id = p_source_id;
    IF p_token - (p_digest IS NOT NULL)::integer < floor THEN
        RAISE 'resource % has no mark of source %, and marks of that source up to token % were purged here: token % is '
            'refused, for it may be older than what was purged', p_resource, p_source_id, floor, p_token
            USING ERRCODE = 'FL017', HINT = 'Nothing was written. Acquire the lock again.', DETAIL = json_build_object(
                'resource', p_resource, 'token', p_token::text, 'mark', floor::text, 'source', p_source_id);
    END IF;
END
$$;

-- name: create_is_purgeable
-- Whether a floor may stand for a resource's mark: it has a token of a source, no operator has ever moved it to another lock or
-- source, no table is protected by it, and it requires no signature.
CREATE FUNCTION fencelock.is_purgeable(p_resource text) RETURNS boolean LANGUAGE sql STABLE AS
$$
    SELECT EXISTS (
        SELECT FROM fencelock.mark AS mark
        WHERE mark.resource OPERATOR(pg_catalog.=) p_resource AND mark.source_id IS NOT NULL AND mark.token IS NOT NULL
            AND NOT mark.requires_signature
            AND NOT EXISTS (
                SELECT FROM fencelock.protection AS kept WHERE kept.resource OPERATOR(pg_catalog.=) mark.resource)
            AND (mark.audit_id IS NULL OR NOT EXISTS (
                SELECT FROM fencelock.guard_audit AS entry
                WHERE entry.resource OPERATOR(pg_catalog.=) mark.resource
                    AND entry.action OPERATOR(pg_catalog.=) 'rebind')))
$$;

-- name: create_purge_marks
-- Forget those of these marks that are still exactly the same, and purgeable, and raise the floor of their source in their
-- place; return how many there were. A mark that another transaction has locked is in use, and stays: nobody waits for another
-- one here, and so nobody in a circle.
CREATE FUNCTION fencelock.purge_marks(p_marks jsonb, p_source_id text, p_floor bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    wanted text;
    held text[] := '{}';
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    FOR wanted IN SELECT (one ->> 'resource') COLLATE "C" FROM jsonb_array_elements(p_marks) AS one ORDER BY 1 LOOP
        IF pg_try_advisory_xact_lock(fencelock.mark_key(wanted)) THEN
            held := array_append(held, wanted);
        END IF;
    END LOOP;
    SELECT coalesce(array_agg(mark.resource), '{}') INTO held
    FROM fencelock.mark AS mark
    JOIN jsonb_to_recordset(p_marks) AS one (
        resource text, lock text, token bigint, history_id text, digest text, is_closed boolean) USING (resource)
    WHERE mark.resource = ANY (held) AND mark.source_id = p_source_id AND mark.token = one.token AND mark.token <= p_floor
        AND mark.lock = convert_to(one.lock, 'UTF8') AND mark.is_closed = one.is_closed
        AND (mark.history_id, mark.digest) IS NOT DISTINCT FROM (one.history_id, one.digest)
        AND fencelock.is_purgeable(mark.resource);
    IF cardinality(held) > 0 THEN
        INSERT INTO fencelock.floor AS floor (source_id, token) VALUES (p_source_id, p_floor)
        ON CONFLICT (source_id) DO UPDATE SET token = excluded.token WHERE floor.token < excluded.token;
        DELETE FROM fencelock.mark WHERE resource = ANY (held);
    END IF;
    RETURN cardinality(held);
END
$$;

-- name: create_set_floor
-- Set the floor of a source from what an operator has seen, by the audit entry that was just written for it.
CREATE FUNCTION fencelock.set_floor(p_source_id text, p_token bigint, p_seen bigint, p_audit_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    found_token bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    INSERT INTO fencelock.floor (source_id, token) VALUES (p_source_id, 0) ON CONFLICT DO NOTHING;
    SELECT token INTO found_token FROM fencelock.floor WHERE source_id = p_source_id FOR UPDATE;
    IF found_token <> p_seen THEN
        RAISE 'the floor of source % is % now, not %: look again before you set it', p_source_id, found_token, p_seen
            USING ERRCODE = 'FL009';
    END IF;
    UPDATE fencelock.floor SET token = p_token, audit_id = p_audit_id WHERE source_id = p_source_id;
END
$$;
