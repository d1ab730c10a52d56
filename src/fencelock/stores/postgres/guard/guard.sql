-- The statements that a client sends to the guard. Names are schema-qualified, for any search_path of the session; but a
-- table that the user names is looked up in the user's search_path. Parameters are numbered, as libpq has them.

-- name: begin_briefly
-- The guard's own transaction, for any defaults of the session.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;

-- name: limit_idling
-- Let the server end a transaction whose client has frozen.
SELECT fencelock.limit_time('idle_in_transaction_session_timeout', $1::integer);

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
SELECT resource, lock, token, source_id, history_id, digest, is_closed
FROM fencelock.read_marks($1::text[], $2::text, $3::text, $4::integer);

-- name: raise_marks
-- Raise marks for a lease. The sequencer is a parameter: pg_stat_activity shows others the text of a statement.
SELECT fencelock.raise_marks($1::text, VARIADIC $2::text[]);

-- name: close_marks
-- Close the marks of a lease, by its claim.
SELECT fencelock.close_marks($1::text, VARIADIC $2::text[]);

-- name: change_mark
-- Change a mark for an operator, by the audit entry that permits it.
SELECT fencelock.change_mark(
    $1::text, $2::bytea, $3::bigint, $4::text, $5::text, $6::text, $7::boolean, $8::text, $9::boolean,
    fencelock.write_audit($10::text, $11::text, $12::text, $13::bigint, $14::bigint, $15::text));

-- name: find_old_marks
-- The marks of a source that were not written for so long, and that a floor may stand for: so many after one resource.
SELECT resource, lock, token, source_id, history_id, digest, is_closed FROM fencelock.mark AS mark
WHERE source_id = $1::text
    AND raised_at <= pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $2::bigint / 1000.0)
    AND resource > $3::text AND fencelock.is_purgeable(resource)
ORDER BY resource LIMIT $4::bigint;

-- name: purge_marks
-- Forget marks under a floor, and write the audit entry if there were any; returns how many.
WITH purged AS MATERIALIZED (SELECT fencelock.purge_marks($1::jsonb, $2::text, $3::bigint) AS times)
SELECT times, CASE WHEN times > 0 THEN
    fencelock.write_audit($4::text, $5::text, $6::text, $7::bigint, $8::bigint, $9::text) END
FROM purged;

-- name: set_floor
-- Set the floor of a source for an operator, by the audit entry that permits it.
SELECT fencelock.set_floor($1::text, $2::bigint, $6::bigint,
    fencelock.write_audit($3::text, $4::text, $5::text, $6::bigint, $7::bigint, $8::text));

-- name: show_floors
-- The floor of each source.
SELECT source_id, token FROM fencelock.floor WHERE token > 0 ORDER BY source_id;

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

-- name: note_transaction
-- Make a note that lasts as long as the transaction: an open one, and not one that each statement has for itself.
SELECT pg_catalog.set_config('fencelock.migration', 'open', true);

-- name: read_note
-- Whether it is the same transaction still.
SELECT pg_catalog.current_setting('fencelock.migration', true) = 'open';

-- name: set_savepoint
-- Set a savepoint in the caller's transaction.
SAVEPOINT fencelock;

-- name: undo_to_savepoint
-- Undo what came after it.
ROLLBACK TO fencelock;

-- name: read_protected
-- Every table of a resource that was protected and not unprotected, whether its triggers exist or not, and every other one
-- that has its triggers.
SELECT relation::pg_catalog.oid, coalesce(protected.name, protection.name), coalesce(protected.mode, '')
FROM fencelock.protection AS protection
FULL JOIN fencelock.protected_table AS protected USING (relation)
WHERE coalesce(protected.resource, protection.resource) = $1::text ORDER BY 2;

-- name: read_record
-- The mode in which a table of a resource was protected, found by itself, or by its name if it was rebuilt: the stricter one, if a
-- dropped table had this name too. (Without a percent sign: pg8000 would double it.)
SELECT mode FROM fencelock.protection
WHERE resource = $2::text AND (relation = $1::oid OR name = (
    SELECT pg_catalog.concat_ws('.', pg_catalog.quote_ident(namespace.nspname), pg_catalog.quote_ident(class.relname))
    FROM pg_catalog.pg_class AS class JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
    WHERE class.oid = $1::oid))
ORDER BY relation = $1::oid DESC, mode LIMIT 1;

-- name: find_renamed
-- The tables of these resources that have another name than their record says, and the name that they have now. Not one whose
-- recorded name another table has, because that table stops guarded blocks (G16); none for a role that may not record it.
WITH named AS (
    SELECT class.oid, pg_catalog.concat_ws(
        '.', pg_catalog.quote_ident(namespace.nspname), pg_catalog.quote_ident(class.relname)) AS name
    FROM pg_catalog.pg_class AS class JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
)
SELECT named.oid, named.name
FROM fencelock.protection AS protection JOIN named ON named.oid = protection.relation
WHERE protection.resource = ANY ($1::text[]) AND protection.name <> named.name
    AND NOT EXISTS (SELECT FROM named AS other WHERE other.name = protection.name)
    AND pg_catalog.has_table_privilege('fencelock.protection', 'UPDATE');

-- name: rename_protected
-- Record the name that a table has now.
UPDATE fencelock.protection SET name = $2::text WHERE relation = $1::oid;

-- name: unprotect_table
-- Drop a table's triggers.
SELECT fencelock.unprotect_table($1::oid::regclass);

-- name: record_refusal
-- Count a lease that enforcement would have refused.
SELECT fencelock.record_refusal($1::text, $2::text);

-- name: show_marks
-- The marks of one resource, or of all.
SELECT resource, lock, token, source_id, history_id, digest, is_closed, requires_signature
FROM fencelock.show_marks($1::text);

-- name: show_observations
-- What observe mode let pass.
SELECT resource, table_name, kind, times, pg_catalog.to_char(first_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
    pg_catalog.to_char(last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), role, application_name, address
FROM fencelock.show_observations($1::text);

-- name: grant_right
-- Let a role seal, present and close a resource.
SELECT fencelock.grant_right($1::text, $2::text);

-- name: revoke_rights
-- Take the rights of a role that cover these resources, and show them.
SELECT resource FROM fencelock.revoke_rights($1::text[], $2::text) ORDER BY 1;

-- name: show_rights
-- The rights to one resource, or all rights.
SELECT resource, role FROM fencelock.guard_right
WHERE $1::text IS NULL OR resource = $1::text OR (
    pg_catalog.right(resource, 1) = '*' AND pg_catalog.starts_with($1::text, pg_catalog.left(resource, -1)))
ORDER BY 1, 2;

-- name: end_sessions
-- Tell every other session of a role in this database to end, and those of its members, who have its rights: but not the
-- operator's own, nor a superuser's, who needs none. (In the WHERE clause, the function would run before the conditions,
-- for all sessions.)
WITH RECURSIVE meant AS (
    SELECT oid FROM pg_catalog.pg_roles WHERE rolname = $1::text
    UNION
    SELECT held.member FROM pg_catalog.pg_auth_members AS held JOIN meant ON meant.oid = held.roleid
    JOIN pg_catalog.pg_roles AS member ON member.oid = held.member
    WHERE NOT member.rolsuper AND member.rolname <> session_user
)
SELECT pid, pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
WHERE datname = pg_catalog.current_database() AND usesysid IN (SELECT oid FROM meant) AND pid <> pg_catalog.pg_backend_pid();

-- name: count_sessions
-- How many of these sessions have not ended, a moment later.
SELECT pg_catalog.count(*) FROM pg_catalog.pg_sleep(0.02), pg_catalog.pg_stat_activity
WHERE pid = ANY ($1::integer[]);

-- name: forget_keys
-- Forget the keys, before others are written.
DELETE FROM fencelock.guard_key;

-- name: write_key
-- Keep a key to check signatures with.
INSERT INTO fencelock.guard_key (key_id, inner_pad, outer_pad, retired_s) VALUES ($1::text, $2::bytea, $3::bytea, $4::bigint);

-- name: require_signature
-- Require a signature at a resource, or no longer.
SELECT fencelock.require_signature($1::text, $2::boolean);

-- name: read_schema_number
-- The number of the schema; without the table there is no schema.
SELECT schema FROM fencelock.guard WHERE id = 1;

-- name: begin_effect
-- Keep an intent of a presented resource; returns what is kept under its key already.
SELECT key, token, holder, pg_catalog.to_char(began_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), result,
    request_digest
FROM fencelock.begin_effect($1::text, $2::text, $3::text, $4::text);

-- name: read_effect
-- What a resource keeps under a key.
SELECT key, token, holder, pg_catalog.to_char(began_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), result,
    request_digest
FROM fencelock.read_effect($1::text, $2::text);

-- name: write_effect
-- Keep an effect of a presented resource, or forget it; an error if the transaction is not the one that presented it.
SELECT fencelock.write_effect($1::text, $2::text, $3::text, $4::text, $5::text);

-- name: write_effect_and_withdraw
-- Keep an effect, and take back what was presented.
SELECT fencelock.write_effect($1::text, $2::text, $3::text, $4::text, $5::text), fencelock.withdraw(VARIADIC $6::text[]);

-- name: purge_effects
-- Forget old results, except those whose token is the mark.
WITH gone AS (
    DELETE FROM fencelock.effect AS kept
    WHERE kept.result IS NOT NULL
        AND kept.began_at <= pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $1::bigint / 1000.0)
        AND NOT EXISTS (
            SELECT FROM fencelock.mark AS mark WHERE mark.resource = kept.resource AND mark.token = kept.token)
    RETURNING 1
)
SELECT pg_catalog.count(*) FROM gone;
