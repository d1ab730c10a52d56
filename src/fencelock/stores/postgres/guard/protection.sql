-- Protected tables: the triggers by which the database itself refuses, or counts, writes that present no token. The
-- triggers alone say which table belongs to which resource, and in which mode.
--
-- An ordinary table has one statement trigger for all kinds of writes. A write to a partition by name does not fire its
-- parent's statement triggers, so a partitioned table has a row trigger, which the server copies to each new partition,
-- and one for TRUNCATE on every partition, which it does not copy. All fire for any session_replication_role (ENABLE
-- ALWAYS).

-- name: create_first_argument
-- The resource that a trigger was created for; NULL for a trigger without arguments, since the planner may call this for
-- other triggers too.
CREATE FUNCTION fencelock.first_argument(p_tgargs bytea) RETURNS text LANGUAGE sql STABLE AS
$$
    SELECT pg_catalog.convert_from(
        pg_catalog.substring(p_tgargs, 1, nullif(pg_catalog.position(p_tgargs, pg_catalog.decode('00', 'hex')), 0) - 1),
        pg_catalog.getdatabaseencoding())
$$;

-- name: create_our_trigger
-- Every existing trigger of fencelock. `covers` is pg_trigger.tgtype: 62 statements of all kinds, 31 rows of a
-- partitioned table, 34 TRUNCATE alone.
CREATE VIEW fencelock.our_trigger AS
SELECT made.tgrelid AS relation, fencelock.first_argument(made.tgargs) AS resource, function.proname::text AS mode,
    made.tgtype AS covers, made.tgparentid <> 0 AS is_inherited, made.tgenabled = 'A' AS is_on
FROM pg_catalog.pg_trigger AS made JOIN pg_catalog.pg_proc AS function ON function.oid = made.tgfoid
WHERE function.pronamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'fencelock')
    AND function.proname IN ('enforce', 'observe');

-- name: create_protected_table
-- The tables that are protected now. `is_whole`: every written row meets a trigger. `truncatable`: the partitions that
-- TRUNCATE can empty by name.
CREATE VIEW fencelock.protected_table AS
SELECT root.relation, pg_catalog.format('%I.%I', namespace.nspname, class.relname) AS name, root.resource, root.mode,
    root.is_on AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_partition_tree(root.relation) AS part
        WHERE root.covers = 31 AND NOT EXISTS (
            SELECT FROM fencelock.our_trigger AS rows
            WHERE rows.relation = part.relid AND rows.covers = 31 AND rows.is_on
                AND (rows.resource, rows.mode) = (root.resource, root.mode))
    ) AS is_whole,
    ARRAY(
        SELECT part.relid::pg_catalog.text FROM pg_catalog.pg_partition_tree(root.relation) AS part
        WHERE root.covers = 31 AND NOT EXISTS (
            SELECT FROM fencelock.our_trigger AS emptying
            WHERE emptying.relation = part.relid AND emptying.covers IN (34, 62) AND emptying.is_on)
        ORDER BY 1
    ) AS truncatable
FROM fencelock.our_trigger AS root
JOIN pg_catalog.pg_class AS class ON class.oid = root.relation
JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
WHERE root.covers = 62 OR (root.covers = 31 AND NOT root.is_inherited);

-- name: create_check_tables
-- Refuse to present a lease if a table that the resource protects exists, and its rows meet no trigger: it was rebuilt, and
-- any writer gets in (G16). A table that was dropped is no reason, and partitions are doctor's part. Every guarded
-- transaction runs this, so names are schema-qualified, as in `offer`.
CREATE FUNCTION fencelock.check_tables(p_resource text) RETURNS boolean LANGUAGE plpgsql STABLE AS
$$
DECLARE
    known pg_catalog.record;  -- schema-qualified: the caller may have a temporary type of that name
    present pg_catalog.oid;
BEGIN
    -- A loop of index scans: in one join the planner, which knows no numbers of rows, would read whole catalogs.
    FOR known IN
        SELECT name, relation, pg_catalog.parse_ident(name) AS parts FROM fencelock.protection
        WHERE resource OPERATOR(pg_catalog.=) p_resource AND mode OPERATOR(pg_catalog.=) 'enforce'
    LOOP
        -- Whatever has its name now; if nothing has, the table itself, which was renamed or dropped.
        present := coalesce(
            (SELECT class.oid FROM pg_catalog.pg_class AS class
             WHERE class.relname OPERATOR(pg_catalog.=) known.parts[2]::pg_catalog.name
                 AND class.relnamespace OPERATOR(pg_catalog.=) (
                     SELECT namespace.oid FROM pg_catalog.pg_namespace AS namespace
                     WHERE namespace.nspname OPERATOR(pg_catalog.=) known.parts[1]::pg_catalog.name)),
            known.relation);
        IF NOT EXISTS (
            SELECT FROM pg_catalog.pg_trigger AS made
            WHERE made.tgrelid OPERATOR(pg_catalog.=) present
                AND made.tgname OPERATOR(pg_catalog.=) ANY ('{fencelock,fencelock_rows}')
                AND made.tgtype OPERATOR(pg_catalog.=) ANY ('{62,31}') AND made.tgenabled OPERATOR(pg_catalog.=) 'A')
        THEN
            PERFORM FROM pg_catalog.pg_class AS class
            WHERE class.oid OPERATOR(pg_catalog.=) present AND class.relkind OPERATOR(pg_catalog.=) ANY ('{r,p}');
            IF FOUND THEN
                RAISE 'table % of resource % exists, and its rows meet no trigger of fencelock: it was rebuilt, or its '
                    'triggers were dropped or disabled, so any writer gets in', known.name, p_resource
                    USING ERRCODE = 'FL018', HINT = pg_catalog.concat(
                        'Run fencelock protect URL --resource ... --lock ... --table ', known.name, ', or fencelock '
                        'unprotect. The next time rebuild it inside guard.rebuilding(...).');
            END IF;
        END IF;
    END LOOP;
    RETURN true;
END
$$;

-- name: create_tree
-- A table and all its partitions.
CREATE FUNCTION fencelock.tree(p_table regclass) RETURNS SETOF regclass LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS
$$ SELECT p_table UNION SELECT relid FROM pg_partition_tree(p_table) $$;

-- name: create_why_not
-- The reason why a table cannot be protected; NULL if it can.
CREATE FUNCTION fencelock.why_not(p_table regclass) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS
$$
    SELECT CASE
        WHEN namespace.nspname IN ('fencelock', 'information_schema') OR starts_with(namespace.nspname, 'pg_')
            THEN 'a table of the system''s own, or a temporary one'
        WHEN class.relkind = 'v' THEN 'a view: protect the tables that it shows'
        WHEN class.relkind = 'm' THEN 'a materialised view, which is not written directly: protect the tables that it shows'
        WHEN class.relkind = 'f' THEN 'a foreign table, whose rows others may write at their own server'
        WHEN class.relkind NOT IN ('r', 'p') THEN 'no table'
        WHEN class.relispartition THEN 'a partition: protect the table that it is a partition of'
        WHEN class.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE p_table IN (inhrelid, inhparent))
            THEN 'in an inheritance tree, where a write to a child by name passes the triggers of its parent: use partitions'
        WHEN EXISTS (SELECT FROM fencelock.tree(p_table) AS part JOIN pg_subscription_rel ON srrelid = part)
            THEN 'fed by a subscription, which presents no token: protect the table that it publishes'
        WHEN EXISTS (SELECT FROM fencelock.tree(p_table) AS part JOIN pg_class ON oid = part AND relkind = 'f')
            THEN 'partly a foreign table, whose rows others may write at their own server'
    END
    FROM pg_class AS class JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
    WHERE class.oid = p_table
$$;

-- name: create_protect_table
-- Create the triggers of a table; return the mode that was in force, NULL if none was, and 'orphaned' if there were triggers
-- without a record. It waits a few seconds for writers inside the table; readers are not affected.
CREATE FUNCTION fencelock.protect_table(p_table regclass, p_resource text, p_mode text) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS
$$
DECLARE
    part regclass;
    before fencelock.protected_table;
    other fencelock.our_trigger;
    is_recorded constant boolean := EXISTS (
        SELECT FROM fencelock.protection WHERE (relation, name, mode) = (p_table, p_table::text, p_mode));
    is_orphaned constant boolean := EXISTS (
        SELECT FROM fencelock.our_trigger WHERE relation = p_table AND covers IN (31, 62))
        AND NOT EXISTS (SELECT FROM fencelock.protection WHERE relation = p_table);
    reason constant text := fencelock.why_not(p_table);
    is_plain constant boolean := (SELECT relkind = 'r' FROM pg_class WHERE oid = p_table);
BEGIN
    IF reason IS NOT NULL THEN
        RAISE 'table % cannot be protected: it is %', p_table, reason USING ERRCODE = 'FL010';
    END IF;
    SELECT * INTO other FROM fencelock.our_trigger
    WHERE relation IN (SELECT fencelock.tree(p_table)) AND resource <> p_resource LIMIT 1;
    IF FOUND THEN
        RAISE 'table % belongs to resource % already, and a table has one resource: unprotect it there first, or name that '
            'resource', other.relation::regclass, other.resource USING ERRCODE = 'FL010';
    END IF;
    SELECT * INTO before FROM fencelock.protected_table WHERE relation = p_table;
    IF before.mode = p_mode AND before.is_whole AND before.truncatable = '{}' AND is_recorded THEN
        RETURN p_mode;
    END IF;
    IF is_plain THEN
        EXECUTE format(
            'CREATE OR REPLACE TRIGGER fencelock BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s FOR EACH STATEMENT '
            'EXECUTE FUNCTION fencelock.%I(%L)', p_table, p_mode, p_resource);
    ELSE
        EXECUTE format(
            'CREATE OR REPLACE TRIGGER fencelock_rows BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW '
            'EXECUTE FUNCTION fencelock.%I(%L)', p_table, p_mode, p_resource);
    END IF;
    FOR part IN SELECT fencelock.tree(p_table) LOOP
        IF NOT is_plain THEN
            EXECUTE format(
                'CREATE OR REPLACE TRIGGER fencelock BEFORE TRUNCATE ON %s FOR EACH STATEMENT '
                'EXECUTE FUNCTION fencelock.%I(%L)', part, p_mode, p_resource);
            EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER fencelock_rows', part);
        END IF;
        EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER fencelock', part);
    END LOOP;
    -- A table that had this name may have another one now; forget one that was dropped, and a partition that was protected
    -- by itself before.
    UPDATE fencelock.protection SET name = relation::text
    WHERE name = p_table::text AND relation <> p_table AND EXISTS (SELECT FROM pg_class WHERE oid = relation);
    DELETE FROM fencelock.protection WHERE relation IN (SELECT fencelock.tree(p_table)) OR name = p_table::text;
    INSERT INTO fencelock.protection (relation, name, resource, mode) VALUES (p_table, p_table::text, p_resource, p_mode);
    RETURN CASE WHEN is_orphaned THEN 'orphaned' ELSE before.mode END;
END
$$;

-- name: create_unprotect_table
-- Drop the triggers of a table. It waits a few seconds for all transactions inside it.
CREATE FUNCTION fencelock.unprotect_table(p_table regclass) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS
$$
DECLARE
    part regclass;
BEGIN
    IF EXISTS (SELECT FROM pg_class WHERE oid = p_table) THEN
        IF EXISTS (SELECT FROM fencelock.our_trigger WHERE relation = p_table AND covers = 31 AND NOT is_inherited) THEN
            EXECUTE format('DROP TRIGGER fencelock_rows ON %s', p_table);
        END IF;
        FOR part IN SELECT fencelock.tree(p_table) LOOP
            EXECUTE format('DROP TRIGGER IF EXISTS fencelock ON %s', part);
        END LOOP;
    END IF;
    DELETE FROM fencelock.protection WHERE relation = p_table;
END
$$;

-- name: revoke_functions
-- No function may be called, except those that are granted next.
REVOKE ALL ON FUNCTION
    fencelock.mark_key, fencelock.note_name, fencelock.note, fencelock.secret, fencelock.keeps_snapshot,
    fencelock.limit_time,
    fencelock.refuse, fencelock.refuse_write, fencelock.check_unmarked, fencelock.is_of, fencelock.hold_mark, fencelock.offer,
    fencelock.withdraw, fencelock.refuse_end, fencelock.confirm, fencelock.is_presented, fencelock.enforce,
    fencelock.count_observed, fencelock.observe, fencelock.record_refusal, fencelock.read_marks, fencelock.show_marks,
    fencelock.show_observations, fencelock.parse, fencelock.check_right, fencelock.check_signature,
    fencelock.check_plausible, fencelock.in_order, fencelock.begin_change, fencelock.raise_mark, fencelock.raise_marks,
    fencelock.close_marks, fencelock.present, fencelock.seal, fencelock.make_mark, fencelock.write_audit, fencelock.change_mark,
    fencelock.check_effect, fencelock.begin_effect, fencelock.read_effect, fencelock.write_effect, fencelock.keep_effect,
    fencelock.grant_right, fencelock.revoke_rights, fencelock.require_signature, fencelock.keep_mark, fencelock.keep_audit,
    fencelock.check_name, fencelock.check_new_mark, fencelock.first_argument, fencelock.check_tables, fencelock.keep_floor,
    fencelock.check_floor, fencelock.is_purgeable, fencelock.purge_marks, fencelock.set_floor,
    fencelock.tree, fencelock.why_not, fencelock.protect_table, fencelock.unprotect_table
FROM PUBLIC;

-- name: grant_functions
-- What a holder needs, for every role that has USAGE on the schema. Sealing, presenting and closing check the session's
-- right themselves. None of it lowers a mark, or admits a transaction that has not presented the mark's own lease.
GRANT EXECUTE ON FUNCTION
    fencelock.mark_key, fencelock.limit_time, fencelock.offer, fencelock.withdraw, fencelock.confirm, fencelock.record_refusal,
    fencelock.read_marks, fencelock.show_marks, fencelock.show_observations, fencelock.raise_marks, fencelock.close_marks,
    fencelock.present, fencelock.seal, fencelock.begin_effect, fencelock.read_effect, fencelock.write_effect,
    fencelock.first_argument
TO PUBLIC;

-- name: grant_views
-- Which tables are protected is no secret.
GRANT SELECT ON fencelock.our_trigger, fencelock.protected_table TO PUBLIC;
