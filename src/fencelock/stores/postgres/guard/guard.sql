-- What the guard says to the database. Names are complete, whatever search_path the session has; but a table that the user
-- names is looked for in theirs. Parameters are numbered, as libpq has them.

-- name: begin_briefly
-- The guard's own transaction, whatever the session's defaults are.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;

-- name: limit_waiting
-- Give up waiting for a lock before the client does, whose going a server that waits does not see.
SELECT fencelock.limit_time('lock_timeout', $1::integer);

-- name: begin
-- The user's transaction, as the session's defaults have it.
BEGIN;

-- name: commit
-- End the open transaction well.
COMMIT;

-- name: rollback
-- Undo the open transaction.
ROLLBACK;

-- name: offer
-- Present the lease to the resources; those whose mark is another come back.
SELECT fencelock.offer($1::text[], $2::bytea, $3::bigint, $4::text, $5::text, $6::text, $7::integer);

-- name: confirm
-- Make sure that the transaction is still the one that was begun.
SELECT fencelock.confirm($1::text);

-- name: withdraw
-- Take back what was presented, which has to be there still.
SELECT fencelock.confirm(($1::text[])[1]), fencelock.withdraw(VARIADIC $1::text[]);

-- name: isolation
-- The level of the open transaction.
SELECT pg_catalog.current_setting('transaction_isolation');

-- name: read_marks
-- The marks of these resources, held still.
SELECT resource, lock, token, source_id, history_id, claim, is_closed
FROM fencelock.read_marks($1::text[], $2::text, $3::text, $4::integer);

-- name: write_mark
-- A mark as a lease leaves it.
SELECT fencelock.write_mark($1::text, $2::bytea, $3::bigint, $4::text, $5::text, $6::text, $7::boolean);

-- name: change_mark
-- A mark as an operator leaves it, with the audit entry that entitles to it.
SELECT fencelock.change_mark(
    $1::text, $2::bytea, $3::bigint, $4::text, $5::text, $6::text, $7::boolean,
    fencelock.write_audit($8::text, $9::text, $10::text, $11::bigint, $12::bigint, $13::text));

-- name: write_audit
-- An audit entry about something other than a mark.
SELECT fencelock.write_audit($1::text, $2::text, $3::text, $4::bigint, $5::bigint, $6::text);

-- name: make_mark
-- A resource knows its lock from now on.
SELECT fencelock.make_mark($1::text, $2::bytea);

-- name: read_protections
-- The tables that are protected, of one resource or of all.
SELECT name, resource, mode FROM fencelock.protected_table
WHERE is_whole AND ($1::text IS NULL OR resource = $1::text) ORDER BY name;

-- name: find_tables
-- What names mean to this session, in their order; NULL: nothing.
SELECT wanted.name, pg_catalog.to_regclass(wanted.name)::pg_catalog.oid
FROM ROWS FROM (pg_catalog.unnest($1::text[])) WITH ORDINALITY AS wanted (name, number) ORDER BY wanted.number;

-- name: protect_table
-- Give a table its triggers; the mode until then comes back, with the name that the table had there.
SELECT fencelock.protect_table($1::oid::regclass, $2::text, $3::text),
    (SELECT name FROM fencelock.protected_table WHERE relation = $1::oid);

-- name: read_protected
-- Every table of a resource that was protected and not unprotected, whether its triggers are there or not.
SELECT protection.relation::pg_catalog.oid, coalesce(protected.name, protection.name), coalesce(protected.mode, '')
FROM fencelock.protection AS protection
LEFT JOIN fencelock.protected_table AS protected USING (relation)
WHERE coalesce(protected.resource, protection.resource) = $1::text ORDER BY 2;

-- name: unprotect_table
-- Take its triggers off a table.
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
-- The number of the schema; no such table: there is none.
SELECT schema FROM fencelock.guard WHERE id = 1;
