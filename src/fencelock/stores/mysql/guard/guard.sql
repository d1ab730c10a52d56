-- The statements that a client sends to the guard. Words in braces are filled in: the guarded database, and values as
-- literals that need no quoting in any SQL mode (numbers, hexadecimal). Lists of resources are in the order of their
-- bytes.

-- name: begin
-- Begin a brief transaction of the guard's own, and lock its marks.
CALL {here}.fencelock_begin({resources}, {digest}, {hold}, {limit_s}, {number});

-- name: commit
-- Commit the open transaction, if it is still the one that was begun.
CALL {here}.fencelock_commit();

-- name: look_without_locks
-- Let the next transaction wait for nobody, at any isolation level of the session.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

-- name: rollback
-- Roll back the open transaction.
ROLLBACK;

-- name: unbind
-- Remove everything of the guard's from the session, after a transaction that was rolled back.
CALL {here}.fencelock_unbind();

-- name: draw_mask
-- Draw a mask for claims and proofs.
CALL {here}.fencelock_draw_mask({number});

-- name: open
-- Begin the user's transaction, and present the lease in it.
CALL {here}.fencelock_open({resources}, {lock}, {token}, {proof}, {source_id}, {history_id}, {limit_s});

-- name: offer
-- Present the lease in an open transaction.
CALL {here}.fencelock_offer({resources}, {lock}, {token}, {proof}, {source_id}, {history_id}, {limit_s});

-- name: finish
-- Commit the user's transaction, if it is still the one that was begun.
CALL {here}.fencelock_finish();

-- name: take_back
-- Take back what was presented, and return 'taken back' and the resources; an error if the transaction is no longer the
-- same.
CALL {here}.fencelock_take_back({resources});

-- name: check_marks
-- The marks of these resources, locked in the caller's transaction.
CALL {here}.fencelock_check_marks({resources});

-- name: read_marks
-- The marks of these resources, locked in a transaction of the guard's own.
CALL {here}.fencelock_read_marks({resources}, NULL, 'shared');

-- name: write_and_commit
-- Raise marks to the sequencer's token, close those of the claim, and commit the brief transaction.
CALL {here}.fencelock_write_and_commit({raised}, {sequencer}, {closed}, {claim});

-- name: record_refusal
-- Count a lease that enforcement would have refused.
CALL {here}.fencelock_record_refusal({resource}, {kind});

-- name: show_marks
-- The marks of one resource, or of all.
CALL {here}.fencelock_show_marks({resource});

-- name: show_triggers
-- Every table that was protected, with fencelock's existing triggers, of one resource or of all.
CALL {here}.fencelock_show_triggers({resource});

-- name: show_observations
-- What observe mode let pass.
CALL {here}.fencelock_show_observations({resource});

-- name: make_mark
-- Bind a resource to its lock.
INSERT INTO {here}.fencelock_mark (resource, lock_name) VALUES ({resource}, {lock})
ON DUPLICATE KEY UPDATE lock_name = COALESCE(lock_name, {lock});

-- name: write_audit
-- Record an operator's action; the database adds the time and the account.
INSERT INTO {here}.fencelock_guard_audit (at, account, who, action, resource, from_token, to_token, reason)
VALUES (UTC_TIMESTAMP(6), USER(), {who}, {action}, {resource}, {from_token}, {to_token}, {reason});

-- name: check_change
-- Refuse a token above the ceiling, and a sequencer without the signature that the resource requires.
CALL {here}.fencelock_check_change({resource}, {token}, {sequencer}, {is_implausible});

-- name: grant_right
-- Let an account seal, present and close a resource, or all with a prefix.
CALL {here}.fencelock_grant_right({resource}, CONVERT({role} USING utf8mb4));

-- name: find_rights
-- The rights of an account, locked; those of a name without a host are all that the user of that name has from any.
SELECT resource, CAST(account AS BINARY) FROM {here}.fencelock_right
WHERE BINARY account = {role}
    OR BINARY LEFT(account, CHAR_LENGTH(account) - CHAR_LENGTH(SUBSTRING_INDEX(account, '@', -1)) - 1) = {role}
ORDER BY resource, account FOR UPDATE;

-- name: revoke_right
-- Take a right away. It waits for no mark: a seal that waits for one checks its right afterwards.
DELETE FROM {here}.fencelock_right WHERE resource = {resource} AND BINARY account = {role};

-- name: show_rights
-- The rights to one resource, or all rights.
CALL {here}.fencelock_show_rights({resource});

-- name: find_sessions
-- Every other session of an account, whichever database it has chosen: a routine of any database can be called.
SELECT ID FROM information_schema.PROCESSLIST
WHERE ID <> CONNECTION_ID()
    AND IS_ACCOUNT(CONVERT({role} USING utf8mb4), USER, REGEXP_REPLACE(HOST, ':[0-9]+$', ''));

-- name: may_see_sessions
-- Whether the server shows this account the sessions of others.
SELECT COUNT(*) FROM information_schema.USER_PRIVILEGES
WHERE PRIVILEGE_TYPE = 'PROCESS' AND GRANTEE = CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), '''');

-- name: end_session
-- Tell a session to end, if it is still there.
CALL {here}.fencelock_end_session({number});

-- name: pause
-- Wait a moment.
SELECT SLEEP(0.02);

-- name: forget_keys
-- Forget the keys, before others are written.
DELETE FROM {here}.fencelock_guard_key;

-- name: write_key
-- Keep a key to check signatures with.
INSERT INTO {here}.fencelock_guard_key (key_id, inner_pad, outer_pad, retired_s)
VALUES ({key_id}, {inner_pad}, {outer_pad}, {retired_s});

-- name: require_signature
-- Require a signature at a resource, or no longer.
CALL {here}.fencelock_require_signature({resource}, {is_required});

-- name: change_mark
-- Change a mark, which was locked when it was read, for an operator, by the audit entry that was just written.
UPDATE {here}.fencelock_mark SET lock_name = {lock}, token = NULLIF({token}, 0), source_id = {source_id},
    history_id = {history_id}, digest = {digest}, is_closed = {is_closed}, audit_id = LAST_INSERT_ID(),
    raised_at = UTC_TIMESTAMP(6)
WHERE resource = {resource};

-- name: find_table
-- The table of a name: its own spelling, its type, and its engine.
SELECT TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES
WHERE TABLE_SCHEMA = CONVERT({database} USING utf8mb4) AND TABLE_NAME = CONVERT({table} USING utf8mb4);

-- name: first_trigger
-- The first trigger that runs before a kind of change of a table.
SELECT TRIGGER_NAME FROM information_schema.TRIGGERS
WHERE EVENT_OBJECT_SCHEMA = CONVERT({database} USING utf8mb4) AND EVENT_OBJECT_TABLE = CONVERT({table} USING utf8mb4)
    AND EVENT_MANIPULATION = CONVERT({kind} USING utf8mb4) AND ACTION_TIMING = 'BEFORE' ORDER BY ACTION_ORDER LIMIT 1;

-- name: add_protection
-- Record a table, and draw the number for its triggers' names.
INSERT INTO {here}.fencelock_protection (table_name, resource, mode) VALUES ({table}, {resource}, {mode});

-- name: skip_numbers
-- Draw only numbers from this one on: triggers without a record have the others.
ALTER TABLE {here}.fencelock_protection AUTO_INCREMENT = {next};

-- name: adopt_protection
-- Record a table whose triggers have this number already.
INSERT INTO {here}.fencelock_protection (id, table_name, resource, mode) VALUES ({id}, {table}, {resource}, {mode});

-- name: added_protection
-- The number that was drawn.
SELECT LAST_INSERT_ID();

-- name: change_protection
-- Record the name that a table has now, and its mode.
UPDATE {here}.fencelock_protection SET table_name = {table}, mode = {mode} WHERE id = {id};

-- name: rename_protection
-- Record the name that another table has now.
UPDATE {here}.fencelock_protection SET table_name = {table} WHERE id = {id};

-- name: drop_protection
-- Forget a table.
DELETE FROM {here}.fencelock_protection WHERE id = {id};

-- name: drop_trigger
-- Drop one trigger.
DROP TRIGGER IF EXISTS {here}.{trigger};

-- name: settle_separate
-- Bound the wait for open writers.
SET SESSION lock_wait_timeout = {limit_s};

-- name: settle_block
-- Give the user's statements the server's defaults, except autocommit.
SET SESSION autocommit = 0, time_zone = @@global.time_zone, sql_mode = @@global.sql_mode,
    sql_safe_updates = @@global.sql_safe_updates, innodb_lock_wait_timeout = @@global.innodb_lock_wait_timeout,
    /*M! tx_isolation = @@global.tx_isolation */ /*!80003 transaction_isolation = @@global.transaction_isolation */;

-- name: begin_effect
-- Keep an intent of a presented resource; returns what is kept under its key already.
CALL {here}.fencelock_begin_effect({resource}, {key}, {holder}, {request_digest});

-- name: read_effect
-- What a resource keeps under a key.
CALL {here}.fencelock_read_effect({resource}, {key});

-- name: finish_effect
-- Keep an effect, or forget it, and commit the user's transaction.
CALL {here}.fencelock_finish_effect({resource}, {key}, {holder}, {result}, {request_digest});

-- name: take_back_effect
-- Keep an effect, and take back what was presented; returns what `take_back` does.
CALL {here}.fencelock_take_back_effect({resources}, {resource}, {key}, {holder}, {result}, {request_digest});

-- name: find_old_marks
-- The marks of a source that were not written for so long, and that a floor may stand for: so many after one resource.
SELECT mark.resource, mark.lock_name, mark.token, mark.source_id, mark.history_id, mark.digest, mark.is_closed
FROM {here}.fencelock_mark AS mark
WHERE mark.resource > {after} AND mark.source_id = {source_id} AND mark.token IS NOT NULL AND NOT mark.requires_signature
    AND mark.raised_at <= UTC_TIMESTAMP(6) - INTERVAL {older_than_ms} * 1000 MICROSECOND
    AND NOT EXISTS (SELECT 1 FROM {here}.fencelock_protection AS protection WHERE protection.resource = mark.resource)
    AND (mark.audit_id IS NULL OR NOT EXISTS (
        SELECT 1 FROM {here}.fencelock_guard_audit AS entry
        WHERE entry.resource = mark.resource AND entry.action = 'rebind'))
ORDER BY mark.resource LIMIT {limit};

-- name: purge_marks
-- Forget marks under a floor; returns how many.
CALL {here}.fencelock_purge_marks({marks}, {source_id}, {token});

-- name: set_floor
-- Set the floor of a source for an operator, by the audit entry that was just written.
CALL {here}.fencelock_set_floor({source_id}, {token}, {from_token}, LAST_INSERT_ID());

-- name: show_floors
-- The floor of each source.
CALL {here}.fencelock_show_floors();

-- name: purge_effects
-- Forget old results, except those whose token is the mark.
CALL {here}.fencelock_purge_effects({older_than_s});
