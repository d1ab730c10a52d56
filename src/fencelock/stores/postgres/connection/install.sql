-- The statements that install.py runs besides those of the schema itself.

-- name: prepare
-- Admits one installation at a time, and flushes its commit. The search_path is fixed first: a schema on the session's own path
-- may hold operators that match better than the server's, and they would run with the installer's rights.
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
       pg_catalog.set_config('synchronous_commit', 'on', true), pg_catalog.pg_advisory_xact_lock(%s);

-- name: list_default_grants
-- The REVOKE statements for rights that the database's default privileges gave to other roles on the objects of this
-- transaction: no other role may read a claim, set the counter or call what decides for others. The schema's own files grant
-- PUBLIC what it may read and call, table by table, so those rights stay.
SELECT pg_catalog.format(
    'REVOKE %s ON %s FROM %s', string_agg(DISTINCT given.privilege_type, ', '), made.what,
    CASE given.grantee WHEN 0 THEN 'PUBLIC' ELSE given.grantee::regrole::text END)
FROM (
    SELECT 'SCHEMA fencelock', nspacl, nspowner, xmin FROM pg_catalog.pg_namespace WHERE nspname = 'fencelock'
    UNION ALL
    SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || oid::regclass, relacl, relowner, xmin
    FROM pg_catalog.pg_class WHERE relnamespace = 'fencelock'::regnamespace
    UNION ALL
    SELECT 'FUNCTION ' || oid::regprocedure, proacl, proowner, xmin
    FROM pg_catalog.pg_proc WHERE pronamespace = 'fencelock'::regnamespace
) AS made (what, rights, owner, xid) CROSS JOIN LATERAL pg_catalog.aclexplode(made.rights) AS given
-- Rows that this transaction wrote: objects of an earlier installation keep what their owner granted since.
WHERE made.xid = pg_catalog.pg_current_xact_id()::xid AND given.grantee <> made.owner
    AND NOT (given.grantee = 0 AND given.privilege_type IN ('SELECT', 'EXECUTE'))
GROUP BY made.what, given.grantee;

-- name: list_triggers
-- The statements that drop the triggers which call these functions. Those of partitions go with their parent's.
SELECT concat('DROP TRIGGER ', quote_ident(made.tgname), ' ON ', made.tgrelid::regclass)
FROM pg_catalog.pg_trigger AS made JOIN pg_catalog.pg_proc AS called ON called.oid = made.tgfoid
WHERE called.pronamespace = 'fencelock'::regnamespace AND called.proname = ANY (%s) AND NOT made.tgisinternal
    AND made.tgparentid = 0;

-- name: list_functions
-- The statement that drops these functions, which may depend on each other; no row if there is none.
SELECT 'DROP FUNCTION ' || string_agg(oid::regprocedure::text, ', ') FROM pg_catalog.pg_proc
WHERE pronamespace = 'fencelock'::regnamespace AND proname = ANY (%s) HAVING count(*) > 0;

-- name: find_parts
-- Whether a part is still installed.
SELECT to_regclass('fencelock.source') IS NOT NULL OR to_regclass('fencelock.guard') IS NOT NULL;

-- name: count_objects
-- How much the schema holds, whoever made it.
SELECT (SELECT count(*) FROM pg_catalog.pg_class WHERE relnamespace = 'fencelock'::regnamespace)
    + (SELECT count(*) FROM pg_catalog.pg_proc WHERE pronamespace = 'fencelock'::regnamespace)
    + (SELECT count(*) FROM pg_catalog.pg_type WHERE typnamespace = 'fencelock'::regnamespace);
