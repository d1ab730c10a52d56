-- What the guard says to the database. What stands in braces is filled in: the guarded database, and values as literals that
-- need no quoting in any mode of the server (numbers, hexadecimal). Lists of resources are in the order of their bytes.

-- name: begin
-- The guard's own brief transaction, and its marks.
CALL {here}.fencelock_begin({resources}, {claim}, {hold}, {limit_s});

-- name: commit
-- End the open transaction well, if it is still the one that was begun.
CALL {here}.fencelock_commit();

-- name: look_without_locks
-- The next transaction waits for nobody, whatever the session's level is.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

-- name: rollback
-- Undo the open transaction.
ROLLBACK;

-- name: unbind
-- Leave nothing of the guard's in the session, after a transaction that was undone.
CALL {here}.fencelock_unbind();

-- name: open
-- Begin the user's transaction, and present the lease in it.
CALL {here}.fencelock_open({resources}, {lock}, {token}, {claim}, {source_id}, {history_id}, {limit_s});

-- name: offer
-- Present the lease in a transaction that is open.
CALL {here}.fencelock_offer({resources}, {lock}, {token}, {claim}, {source_id}, {history_id}, {limit_s});

-- name: finish
-- End the user's transaction well, if it is still the one that was begun.
CALL {here}.fencelock_finish();

-- name: take_back
-- Take back what was presented, in the transaction that has to be the same still.
CALL {here}.fencelock_take_back({resources});

-- name: check_marks
-- The marks of these resources, held still in the caller's transaction.
CALL {here}.fencelock_check_marks({resources}, {claim});

-- name: read_marks
-- The marks of these resources, held still in a transaction of the guard's own.
CALL {here}.fencelock_read_marks({resources}, {claim}, 'shared');

-- name: write_and_commit
-- Marks as a lease leaves them, and the end of the brief transaction.
CALL {here}.fencelock_write_and_commit({resources}, {lock}, {token}, {claim}, {source_id}, {history_id}, {is_closed});

-- name: record_refusal
-- Count a lease that enforcement would have refused.
CALL {here}.fencelock_record_refusal({resource}, {kind});

-- name: show_marks
-- The marks of one resource, or of all.
CALL {here}.fencelock_show_marks({resource});

-- name: show_triggers
-- Every table that was protected, with our triggers that are there, of one resource or of all.
CALL {here}.fencelock_show_triggers({resource});

-- name: show_observations
-- What observe mode let pass.
CALL {here}.fencelock_show_observations({resource});

-- name: make_mark
-- A resource knows its lock from now on.
INSERT INTO {here}.fencelock_mark (resource, lock_name) VALUES ({resource}, {lock})
ON DUPLICATE KEY UPDATE lock_name = COALESCE(lock_name, {lock});

-- name: write_audit
-- An operator's deed; the database adds when, and as whom.
INSERT INTO {here}.fencelock_guard_audit (at, account, who, action, resource, from_token, to_token, reason)
VALUES (UTC_TIMESTAMP(6), USER(), {who}, {action}, {resource}, {from_token}, {to_token}, {reason});

-- name: change_mark
-- A mark as an operator leaves it, by the audit entry that was written just now.
INSERT INTO {here}.fencelock_mark (resource, lock_name, token, source_id, history_id, claim, is_closed, audit_id)
VALUES ({resource}, {lock}, NULLIF({token}, 0), {source_id}, {history_id}, {claim}, {is_closed}, LAST_INSERT_ID())
ON DUPLICATE KEY UPDATE lock_name = {lock}, token = NULLIF({token}, 0), source_id = {source_id},
    history_id = {history_id}, claim = {claim}, is_closed = {is_closed}, audit_id = LAST_INSERT_ID();

-- name: find_table
-- What a name means here: the table's own spelling, its type, and its engine.
SELECT TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES
WHERE TABLE_SCHEMA = CONVERT({database} USING utf8mb4) AND TABLE_NAME = CONVERT({table} USING utf8mb4);

-- name: first_trigger
-- The trigger that is first to see a kind of change of a table before it happens.
SELECT TRIGGER_NAME FROM information_schema.TRIGGERS
WHERE EVENT_OBJECT_SCHEMA = CONVERT({database} USING utf8mb4) AND EVENT_OBJECT_TABLE = CONVERT({table} USING utf8mb4)
    AND EVENT_MANIPULATION = CONVERT({kind} USING utf8mb4) AND ACTION_TIMING = 'BEFORE' ORDER BY ACTION_ORDER LIMIT 1;

-- name: add_protection
-- Take note of a table, for the number in its triggers' names.
INSERT INTO {here}.fencelock_protection (table_name, resource) VALUES ({table}, {resource});

-- name: added_protection
-- The number that it got.
SELECT LAST_INSERT_ID();

-- name: rename_protection
-- Take note of the name that a table has now.
UPDATE {here}.fencelock_protection SET table_name = {table} WHERE id = {id};

-- name: drop_protection
-- Forget a table.
DELETE FROM {here}.fencelock_protection WHERE id = {id};

-- name: drop_trigger
-- Take one trigger off.
DROP TRIGGER IF EXISTS {here}.{trigger};

-- name: settle_separate
-- Wait for open writers no longer than this.
SET SESSION lock_wait_timeout = {limit_s};

-- name: settle_block
-- What the user's statements meet is as the server's defaults have it, but for autocommit.
SET SESSION autocommit = 0, time_zone = @@global.time_zone, sql_mode = @@global.sql_mode,
    sql_safe_updates = @@global.sql_safe_updates, innodb_lock_wait_timeout = @@global.innodb_lock_wait_timeout,
    /*M! tx_isolation = @@global.tx_isolation */ /*!80003 transaction_isolation = @@global.transaction_isolation */;
