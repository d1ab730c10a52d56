-- The guard's functions, third file: effects outside of the database (`fencelock.dispatch`). Only a transaction that has
-- presented the resource's mark reads or writes them.

-- name: create_read_effect
-- What a presented resource keeps of one effect, and nobody else begins it until this transaction ends. (Advisory locks
-- with two keys are apart from those with one, which marks have.)
CREATE FUNCTION fencelock.read_effect(p_resource text, p_key text)
RETURNS TABLE (key text, token bigint, holder text, began_at timestamptz, result text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
BEGIN
    PERFORM fencelock.confirm(p_resource);
    PERFORM pg_advisory_xact_lock(hashtext(p_resource COLLATE "C"), hashtext(p_key COLLATE "C"));
    RETURN QUERY SELECT kept.key, kept.token, kept.holder, kept.began_at, kept.result
        FROM fencelock.effect AS kept WHERE kept.resource = p_resource AND kept.key = p_key;
END
$$;

-- name: create_write_effect
-- Keep an effect under the token of the presented mark, or forget it, if it has no holder. The commit is flushed, whatever
-- the session's settings are: the effect begins after it.
CREATE FUNCTION fencelock.write_effect(p_resource text, p_key text, p_holder text, p_began_at text, p_result text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    ignored text;
BEGIN
    PERFORM fencelock.confirm(p_resource);
    IF current_setting('synchronous_commit') = 'off' THEN
        ignored := set_config('synchronous_commit', 'on', true);
    END IF;
    IF p_holder = '' THEN
        DELETE FROM fencelock.effect WHERE resource = p_resource AND key = p_key;
        RETURN;
    END IF;
    INSERT INTO fencelock.effect AS kept (resource, key, token, holder, began_at, result)
    SELECT p_resource, p_key, mark.token, p_holder, coalesce(nullif(p_began_at, '')::timestamptz, clock_timestamp()), p_result
    FROM fencelock.mark AS mark WHERE mark.resource = p_resource
    ON CONFLICT (resource, key) DO UPDATE
    SET token = excluded.token, holder = excluded.holder, began_at = excluded.began_at, result = excluded.result;
END
$$;
