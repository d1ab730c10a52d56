-- The queries of `fencelock doctor` about a guarded database. None of them writes.

-- name: has_schema
-- Whether this database has a guard's schema, whether this role may use it, and whether everybody may call what only the
-- other functions call.
SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = namespace.oid AND relname = 'guard'),
    has_schema_privilege(namespace.oid, 'USAGE'), EXISTS (
        SELECT FROM pg_proc WHERE pronamespace = namespace.oid AND proname = 'secret'
            AND has_function_privilege('public', oid, 'EXECUTE'))
FROM pg_namespace AS namespace WHERE nspname = 'fencelock';

-- name: is_left
-- Whether the database has the triggers' function, whether fencelock's tables are there or not.
SELECT to_regprocedure('fencelock.enforce()') IS NOT NULL;

-- name: has_records
-- Whether there are records of protected tables.
SELECT to_regclass('fencelock.protection') IS NOT NULL;

-- name: triggered
-- Every table with triggers of fencelock.
SELECT name, resource FROM fencelock.protected_table ORDER BY 1;

-- name: orphaned
-- Tables with triggers of fencelock, and without a record.
SELECT name, resource FROM fencelock.protected_table
WHERE relation NOT IN (SELECT relation FROM fencelock.protection) ORDER BY 1;

-- name: lost
-- Tables that were protected, and are not, or not completely: dropped, recreated, triggers dropped or disabled; or
-- renamed, and another table has the name now.
SELECT protection.name, protection.resource FROM fencelock.protection
LEFT JOIN fencelock.protected_table AS protected USING (relation)
WHERE protected.is_whole IS NOT TRUE OR EXISTS (
    SELECT FROM pg_class AS class JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
    WHERE format('%I.%I', namespace.nspname, class.relname) = protection.name AND class.relkind IN ('r', 'p')
        AND NOT EXISTS (SELECT FROM fencelock.protected_table AS namesake WHERE namesake.relation = class.oid))
ORDER BY 1;

-- name: observed
-- Tables in observe mode.
SELECT name, resource FROM fencelock.protected_table WHERE is_whole AND mode = 'observe' ORDER BY 1;

-- name: truncatable
-- Partitions without a trigger for TRUNCATE: they were created after `protect`.
SELECT name, resource, array_to_string(truncatable, ', ') FROM fencelock.protected_table
WHERE truncatable <> '{}' ORDER BY 1;

-- name: unprotected
-- Resources with a mark and without a table.
SELECT resource FROM fencelock.show_marks(NULL) AS mark
WHERE NOT EXISTS (SELECT FROM fencelock.protection WHERE protection.resource = mark.resource) ORDER BY 1;

-- name: became_unprotectable
-- Protected tables that could not be protected today: in an inheritance tree, fed by a subscription, or a partition of a
-- table that the same resource does not protect.
SELECT protected.name, protected.resource, way.reason
FROM fencelock.protected_table AS protected CROSS JOIN LATERAL (
    SELECT 'it is fed by a subscription' FROM pg_subscription_rel WHERE srrelid = protected.relation
    UNION
    SELECT 'another table inherits from it, and can be written by its own name'
    FROM pg_inherits JOIN pg_class ON oid = inhparent WHERE inhparent = protected.relation AND relkind = 'r'
    UNION
    SELECT format('%s has it among its heirs or partitions, and is written past them', inhparent::regclass)
    FROM pg_inherits WHERE inhrelid = protected.relation AND NOT EXISTS (
        SELECT FROM fencelock.our_trigger AS rows
        WHERE rows.relation = protected.relation AND rows.covers = 31 AND rows.is_on
            AND rows.resource = protected.resource)
) AS way (reason)
ORDER BY 1, 3;

-- name: references
-- Unprotected tables with a foreign key to a protected one: their rows keep its rows from being deleted, and follow its
-- changes.
SELECT DISTINCT made.conrelid::regclass::text, protected.name, protected.resource
FROM pg_constraint AS made JOIN fencelock.protected_table AS protected ON protected.relation = made.confrelid
WHERE made.contype = 'f' AND made.conparentid = 0
    AND NOT EXISTS (
        SELECT FROM fencelock.our_trigger AS own WHERE own.relation = made.conrelid AND own.covers IN (31, 62))
ORDER BY 1, 2;

-- name: powers
-- What this role could do past the triggers: as a superuser, as the owner of these tables, by TRIGGER on these, with which
-- CREATE OR REPLACE TRIGGER replaces one, or by rights on the marks, the secret or the keys, such as those of the schema's
-- owner and of members of pg_read_all_data or pg_write_all_data.
SELECT current_user::text, rolsuper, ARRAY(
    SELECT protected.name FROM fencelock.protected_table AS protected JOIN pg_class ON oid = protected.relation
    WHERE pg_has_role(relowner, 'USAGE') ORDER BY 1),
    ARRAY(
        SELECT protected.name FROM fencelock.protected_table AS protected
        WHERE has_table_privilege(protected.relation, 'TRIGGER') OR EXISTS (
            SELECT FROM pg_partition_tree(protected.relation) AS part WHERE has_table_privilege(part.relid, 'TRIGGER'))
        ORDER BY 1),
    has_table_privilege('fencelock.mark', 'INSERT, UPDATE, DELETE, TRUNCATE')
    OR has_table_privilege('fencelock.floor', 'INSERT, UPDATE, DELETE, TRUNCATE')
    OR has_table_privilege('fencelock.guard_right', 'INSERT, UPDATE')
    OR has_table_privilege('fencelock.guard_key', 'SELECT, INSERT, UPDATE')
    OR has_table_privilege('fencelock.guard', 'SELECT') OR has_schema_privilege('fencelock', 'CREATE')
    OR has_function_privilege('fencelock.secret()', 'EXECUTE')
    OR has_function_privilege('fencelock.note_name(text)', 'EXECUTE')
FROM pg_roles WHERE rolname = current_user;

-- name: readers
-- Roles besides the owner with rights on these tables, granted by hand or by default privileges.
SELECT DISTINCT coalesce(nullif(granted.grantee, 0)::regrole::text, 'PUBLIC'), class.relname
FROM pg_class AS class CROSS JOIN LATERAL aclexplode(class.relacl) AS granted
WHERE class.relnamespace = 'fencelock'::regnamespace AND class.relname IN (
        'mark', 'floor', 'guard', 'guard_audit', 'observation', 'guard_key', 'guard_right')
    AND granted.grantee <> class.relowner
    -- Everybody may read who has rights, and what the floors are.
    AND NOT (class.relname IN ('guard_right', 'floor') AND granted.grantee = 0 AND granted.privilege_type = 'SELECT') ORDER BY 1, 2;

-- name: may_read_keys
-- Whether this role may read which resources keep keys.
SELECT has_table_privilege('fencelock.effect', 'SELECT');

-- name: kept
-- Resources that keep keys.
SELECT DISTINCT resource FROM fencelock.effect;

-- name: rights
-- The resources, and prefixes of resources, that roles have rights to.
SELECT DISTINCT resource FROM fencelock.guard_right;

-- name: idle_rights
-- Rights that no protected table and no mark needs, and rights of roles that do not exist.
SELECT held.resource, held.role, to_regrole(quote_ident(held.role)) IS NOT NULL FROM fencelock.guard_right AS held
WHERE to_regrole(quote_ident(held.role)) IS NULL OR NOT EXISTS (
    SELECT FROM (
        SELECT resource FROM fencelock.protected_table UNION ALL SELECT resource FROM fencelock.show_marks(NULL)
    ) AS protected
    WHERE protected.resource = held.resource OR (
        right(held.resource, 1) = '*' AND starts_with(protected.resource, left(held.resource, -1))))
ORDER BY 1, 2;

-- name: prepared
-- Prepared transactions that lock a mark: its next seal waits for them.
SELECT prepared.gid, mark.resource, prepared.prepared::text
FROM pg_prepared_xacts AS prepared
JOIN pg_locks AS own ON own.locktype = 'transactionid' AND own.transactionid = prepared.transaction
JOIN pg_locks AS held ON held.virtualtransaction = own.virtualtransaction AND held.locktype = 'advisory'
JOIN fencelock.show_marks(NULL) AS mark
    ON ((held.classid::bigint << 32) | held.objid::bigint) = fencelock.mark_key(mark.resource)
WHERE prepared.database = current_database() ORDER BY 1;

-- name: settings
-- Settings of the server without which a commit is not on disk.
SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off' ORDER BY 1;
