-- The guard's functions, fourth file: what is done once per key (`once=`, `fencelock.dispatch`). Only a transaction that has
-- presented the resource's mark writes it; a role that may present the resource reads it, with a stale token too.

-- name: create_check_effect
-- Refuse a transaction that has not presented the resource's mark, and have its commit flushed, whatever the session's
-- settings are: an effect outside of the database begins after it.
CREATE FUNCTION fencelock.check_effect(p_resource text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    ignored text;
BEGIN
    PERFORM fencelock.confirm(p_resource);
    IF current_setting('synchronous_commit') = 'off' THEN
        ignored := set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- name: create_begin_effect
-- Keep an intent under the token of the presented mark, unless something is kept under its key: returns that. A second
-- transaction that begins the same one waits here for the end of the first. (It may be purged in between: hence the loop.)
CREATE FUNCTION fencelock.begin_effect(p_resource text, p_key text, p_holder text, p_request_digest text)
RETURNS SETOF fencelock.effect LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET debug_print_plan = off AS
$$
BEGIN
    PERFORM fencelock.check_effect(p_resource);
    LOOP
        INSERT INTO fencelock.effect (resource, key, token, holder, began_at, request_digest)
        SELECT p_resource, p_key, mark.token, p_holder, clock_timestamp(), p_request_digest
        FROM fencelock.mark AS mark WHERE mark.resource = p_resource
        ON CONFLICT DO NOTHING;
        EXIT WHEN FOUND;
        RETURN QUERY SELECT * FROM fencelock.effect AS kept WHERE kept.resource = p_resource AND kept.key = p_key;
        EXIT WHEN FOUND;
    END LOOP;
END
$$;

-- name: create_read_effect
-- What the resource keeps under a key.
CREATE FUNCTION fencelock.read_effect(p_resource text, p_key text)
RETURNS SETOF fencelock.effect LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET debug_print_plan = off AS
$$
BEGIN
    PERFORM fencelock.check_right(p_resource);
    RETURN QUERY SELECT * FROM fencelock.effect AS kept WHERE kept.resource = p_resource AND kept.key = p_key;
END
$$;

-- name: create_write_effect
-- Keep an effect under the token of the presented mark, or forget it, if it has no holder. A result leaves the time at which
-- its effect began, and is never taken back: its key would be done again.
CREATE FUNCTION fencelock.write_effect(
    p_resource text, p_key text, p_holder text, p_result text, p_request_digest text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
BEGIN
    PERFORM fencelock.check_effect(p_resource);
    IF p_holder = '' THEN
        DELETE FROM fencelock.effect WHERE resource = p_resource AND key = p_key AND result IS NULL;
        PERFORM FROM fencelock.effect WHERE resource = p_resource AND key = p_key;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    ELSE
        -- Another transaction of this lease may have written the result meanwhile: the row is compared once it is locked.
        INSERT INTO fencelock.effect AS kept (resource, key, token, holder, began_at, result, request_digest)
        SELECT p_resource, p_key, mark.token, p_holder, clock_timestamp(), p_result, p_request_digest
        FROM fencelock.mark AS mark WHERE mark.resource = p_resource
        ON CONFLICT (resource, key) DO UPDATE
        SET token = excluded.token, holder = excluded.holder, result = excluded.result,
            request_digest = excluded.request_digest,
            began_at = CASE WHEN excluded.result IS NULL THEN excluded.began_at ELSE kept.began_at END
        WHERE kept.result IS NULL OR excluded.result IS NOT NULL;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    RAISE 'key % of resource % was done, and keeps its result', p_key, p_resource
        USING ERRCODE = 'FL009', HINT = 'Run fencelock purge --done, which forgets old results.';
END
$$;

-- name: create_keep_effect
-- Refuse to delete an intent outside of a guarded transaction, and a result whose token is still the mark: its holder may
-- ask for it again, after a commit whose reply was lost.
CREATE FUNCTION fencelock.keep_effect() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    IF OLD.result IS NULL AND NOT fencelock.is_presented(OLD.resource) THEN
        RAISE 'key % of resource % was begun, and its result is not recorded', OLD.key, OLD.resource
            USING ERRCODE = 'FL009', HINT = 'Find out whether it happened, and record it: dispatch(..., may_repeat=True).';
    ELSIF OLD.result IS NOT NULL AND EXISTS (
        SELECT FROM fencelock.mark AS mark WHERE mark.resource = OLD.resource AND mark.token = OLD.token) THEN
        RAISE 'key % of resource % was done under the token that is the mark', OLD.key, OLD.resource
            USING ERRCODE = 'FL009', HINT = 'Run fencelock purge --done, which leaves such keys.';
    END IF;
    RETURN OLD;
END
$$;

-- name: create_keep_effect_row
-- Protects keys even from mistakes of their owner.
CREATE TRIGGER keep_effect BEFORE DELETE ON fencelock.effect
FOR EACH ROW EXECUTE FUNCTION fencelock.keep_effect();
