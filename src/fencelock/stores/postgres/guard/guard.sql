-- The statements that a client sends to the guard. Names are schema-qualified, for any search_path of the session; but a
-- table that the user names is looked up in the user's search_path. Parameters are numbered, as libpq has them.

-- name: begin_briefly
-- The guard's own transaction, for any defaults of the session.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;

-- name: limit_waiting
-- Stop waiting for a lock before the client gives up: a waiting server does not notice that its client has gone.
SELECT fencelock.limit_time('lock_timeout', $1::integer);

-- name: begin
-- The user's transaction, with the session's defaults.
BEGIN;

-- name: commit
-- Commit the open transaction.
COMMIT;

-- name: rollback
-- Roll back the open transaction.
ROLLBACK;

-- name: offer
-- Present the lease to the resources; returns those with another mark.
SELECT fencelock.offer($1::text[], $2::bytea, $3::bigint, $4::text, $5::text, $6::text, $7::integer);

-- name: confirm
-- Check that the transaction is still the one that was begun.
SELECT fencelock.confirm($1::text);

-- name: withdraw
-- Take back what was presented; an error if it is no longer presented.
SELECT fencelock.confirm(($1::text[])[1]), fencelock.withdraw(VARIADIC $1::text[]);

-- name: isolation
-- The isolation level of the open transaction.
SELECT pg_catalog.current_setting('transaction_isolation');

-- name: read_marks
-- The marks of these resources, locked.
SELECT resource, lock, token, source_id, history_id, claim, is_closed
FROM fencelock.read_marks($1::text[], $2::text, $3::text, $4::integer);

-- name: write_mark
-- Write a mark of a lease.
SELECT fencelock.write_mark($1::text, $2::bytea, $3::bigint, $4::text, $5::text, $6::text, $7::boolean);

-- name: change_mark
-- Change a mark for an operator, by the audit entry that permits it.
SELECT fencelock.change_mark(
    $1::text, $2::bytea, $3::bigint, $4::text, $5::text, $6::text, $7::boolean,
    fencelock.write_audit($8::text, $9::text, $10::text, $11::bigint, $12::bigint, $13::text));

-- name: write_audit
-- Write an audit entry that changes no mark.
SELECT fencelock.write_audit($1::text, $2::text, $3::text, $4::bigint, $5::bigint, $6::text);

-- name: make_mark
-- Bind a resource to its lock.
SELECT fencelock.make_mark($1::text, $2::bytea);

-- name: read_protections
-- The protected tables of one resource, or of all.
SELECT name, resource, mode FROM fencelock.protected_table
WHERE is_whole AND ($1::text IS NULL OR resource = $1::text) ORDER BY name;

-- name: find_tables
-- The tables that the names mean in this session, in their order; NULL if there is none.
SELECT wanted.name, pg_catalog.to_regclass(wanted.name)::pg_catalog.oid
FROM ROWS FROM (pg_catalog.unnest($1::text[])) WITH ORDINALITY AS wanted (name, number) ORDER BY wanted.number;

-- name: protect_table
-- Create a table's triggers; returns the mode until then, and the table's qualified name.
SELECT fencelock.protect_table($1::oid::regclass, $2::text, $3::text),
    (SELECT name FROM fencelock.protected_table WHERE relation = $1::oid);

-- name: read_protected
-- Every table of a resource that was protected and not unprotected, whether its triggers exist or not.
SELECT protection.relation::pg_catalog.oid, coalesce(protected.name, protection.name), coalesce(protected.mode, '')
FROM fencelock.protection AS protection
LEFT JOIN fencelock.protected_table AS protected USING (relation)
WHERE coalesce(protected.resource, protection.resource) = $1::text ORDER BY 2;

-- name: unprotect_table
-- Drop a table's triggers.
SELECT fencelock.unprotect_table($1::oid::regclass);

-- name: record_refusal
-- Count a lease that enforcement would have refused.
SELECT fencelock.record_refusal($1::text, $2::text);

-- name: show_marks
-- The marks of one resource, or of all.
SELECT resource, lock, token, source_id, history_id, claim, is_closed FROM fencelock.show_marks($1::text);

-- name: show_observations
-- What observe mode let pass.
SELECT resource, table_name, kind, times, pg_catalog.to_char(first_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
    pg_catalog.to_char(last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), role, application_name, address
FROM fencelock.show_observations($1::text);

-- name: read_schema_number
-- The number of the schema; without the table there is no schema.
SELECT schema FROM fencelock.guard WHERE id = 1;
