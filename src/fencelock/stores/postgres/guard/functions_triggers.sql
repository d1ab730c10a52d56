-- The guard's functions, third file: what the triggers of protected tables do. `protection.sql` creates the triggers.
--
-- They read no mark: a transaction that has presented one holds the lock that keeps it as it is, see
-- functions_present.sql.

-- name: create_refuse_write
-- Raise the reason why a protected table refuses a write. Never returns.
CREATE FUNCTION fencelock.refuse_write(p_resource text, p_schema text, p_table text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    RAISE 'table %.% belongs to resource % and takes writes only with its newest sealed token', p_schema, p_table, p_resource
        USING ERRCODE = 'FL001', SCHEMA = p_schema, TABLE = p_table,
            HINT = 'Write inside guard.transaction(lease), or present the sequencer in this transaction: SELECT '
                'fencelock.present(...). fencelock marks shows its lock.';
END
$$;

-- name: create_enforce
-- The trigger of a protected table: refuses a write unless its transaction has presented the resource's mark.
CREATE FUNCTION fencelock.enforce() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$
DECLARE
    resource constant pg_catalog.text := TG_ARGV[0];  -- schema-qualified: the caller's schema may have a type of that name
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
-- Count an observed write in a row of its own, so that writers do not wait for each other. One in 64 calls merges
-- unlocked rows of the same kind; a transaction with an old snapshot does not, since a row that another merged would be a
-- conflict for it.
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
    IF own % fold_every <> 0 OR fencelock.keeps_snapshot() THEN
        RETURN;
    END IF;
    -- SKIP LOCKED: rows of transactions in progress are left for a later call.
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
-- The trigger of an observed table: counts a write that enforcement would refuse, and lets it pass.
CREATE FUNCTION fencelock.observe() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$
DECLARE
    resource constant pg_catalog.text := TG_ARGV[0];  -- schema-qualified: the caller's schema may have a type of that name
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
