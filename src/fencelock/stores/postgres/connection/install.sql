-- What `install.py` asks besides making the schema.

-- name: prepare
-- One installation runs at a time, and is flushed. In whatever schemas the session's path has, anybody may have left operators
-- that match better than the server's own: they would run with the installer's rights.
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
       pg_catalog.set_config('synchronous_commit', 'on', true), pg_catalog.pg_advisory_xact_lock(%s);

-- name: find_given_away
-- What this transaction has made, and the database's default privileges have given to others at once: the orders that take
-- it back. Nobody else is to read a claim, set the counter or call what decides for others. What PUBLIC may read and call the
-- schema says itself, table by table.
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
WHERE made.xid = pg_catalog.pg_current_xact_id()::xid AND given.grantee <> made.owner
    AND NOT (given.grantee = 0 AND given.privilege_type IN ('SELECT', 'EXECUTE'))
GROUP BY made.what, given.grantee;
