-- The source's routines, first file: what taking a lock relies on, which is what a session may not do, the lock's row, and
-- the queue. store.py installs the files in this order: schema, routines_queue, routines_lease, routines_history.
--
-- The routines that a role is not to call run with their caller's rights, so only those of the owner, which call them, can.
-- Routines that a role calls leave no transaction open, and what only reads does so in a transaction of its own at READ
-- COMMITTED: else a session could keep rows locked that it has read at SERIALIZABLE, until somebody's lease has ended. A
-- level that was set for one transaction cannot be seen, and COMMIT would begin another such one by completion_type.
--
-- The server may break a routine off between any two of its statements (KILL QUERY, max_statement_time), and then no
-- handler rolls back: its session may go on, and commit what there is. So statements come in an order in which each
-- beginning of them does no harm: the counter first, then a row with all that changes in it; audit entries before what
-- they record. MariaDB may also skip a DELETE, and go on without an error: hence each ROW_COUNT().

-- name: create_refuse_session
-- Refuse a session that would decide on an old snapshot, in a time that jumps, or without MariaDB's CHECKs, which any
-- session may switch off; and a server that takes no writes: `read_only` may not stop the owner of the routines.
CREATE PROCEDURE fencelock_refuse_session() SQL SECURITY INVOKER NO SQL
BEGIN
    IF CONCAT(@@global.read_only) NOT IN ('0', 'OFF') THEN
        SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'the server runs with read_only';
    END IF;
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
        'fencelock: a session needs time_zone +00:00, READ COMMITTED and check_constraint_checks = 1';
END;

-- name: create_refuse_name
-- Refuse what fencelock's clients never send: a name is text that every client can read.
CREATE PROCEDURE fencelock_refuse_name() SQL SECURITY INVOKER NO SQL
SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
    'fencelock: the name of a lock or of a holder must have 1 to 512 bytes of UTF-8, and no U+0000';

-- name: create_refuse_time
-- Refuse a time that no client can have: Linux sets no clock past the year 2232. A lock that remembered such a time would
-- refuse every later claim, and after a purge so would all locks.
CREATE PROCEDURE fencelock_refuse_time() SQL SECURITY INVOKER NO SQL
SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
    'fencelock: the time that came with the claim is over a thousand years after the server''s: restart the process';

-- name: create_refuse_claim
-- Refuse what would be granted to nobody: a lock without a digest is free.
CREATE PROCEDURE fencelock_refuse_claim() SQL SECURITY INVOKER NO SQL
SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
    'fencelock: a claim needs a digest, and a mode that is try, wait or poll';

-- name: create_refuse_break_off
-- End a routine of which the server has skipped a statement. A deadlock's error makes the client repeat the request.
CREATE PROCEDURE fencelock_refuse_break_off() SQL SECURITY INVOKER NO SQL
SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'the server has broken the statement off';

-- name: create_refuse_mask
-- Refuse a secret that was masked for another session. A proxy that shares sessions between its clients makes such.
CREATE PROCEDURE fencelock_refuse_mask() SQL SECURITY INVOKER NO SQL
SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
    'fencelock: the claim is masked for another session of the server: let each client have a session of its own';

-- name: create_begin_reading
-- Begin the transaction of a routine that only reads, whatever the session has open or has set for its next one.
CREATE PROCEDURE fencelock_begin_reading() SQL SECURITY INVOKER CONTAINS SQL
BEGIN
    COMMIT AND NO CHAIN;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION READ ONLY;
END;

-- name: create_hold_lock
-- Lock the row of a lock until the end of the transaction, and create the row if there is none and the name is valid.
-- (The server accepts U+D800 to U+DFFF as UTF-8, which they are not.)
CREATE PROCEDURE fencelock_hold_lock(IN p_lock VARBINARY(512)) SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
    DECLARE v_waiting BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_waiting = NULL;
    SELECT waiting INTO v_waiting FROM fencelock_lock PARTITION (lasting) WHERE name = p_lock FOR UPDATE;
    IF v_waiting IS NULL THEN
        IF p_lock IS NULL OR p_lock = '' OR NOT CAST(CONVERT(p_lock USING utf8mb4) AS BINARY) <=> p_lock
           OR HEX(p_lock) REGEXP '^(..)*(00|ED[AB])' THEN
            CALL fencelock_refuse_name();
        END IF;
        INSERT INTO fencelock_lock PARTITION (lasting) (name) VALUES (p_lock) ON DUPLICATE KEY UPDATE waiting = waiting;
    END IF;
END;

-- name: create_remember_ended
-- Remember that a claim, which does not hold the lock, has ended. The lock's row is locked.
CREATE PROCEDURE fencelock_remember_ended(
    IN p_lock VARBINARY(512), IN p_digest VARCHAR(64) CHARACTER SET ascii, IN p_ended_us BIGINT)
SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
    UPDATE fencelock_lock PARTITION (lasting)
    SET forgotten_us = GREATEST(forgotten_us, ended_us), ended_us = p_ended_us, ended_digest = p_digest
    WHERE name = p_lock;
END;

-- name: create_drop_waiter
-- Remove a waiting claim of a lock whose row is locked, for good. (If the server breaks it off, the count is too high:
-- `fencelock_live_head` corrects that.)
CREATE PROCEDURE fencelock_drop_waiter(IN p_lock VARBINARY(512), IN p_ticket BIGINT, IN p_now_us BIGINT)
SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
    DECLARE v_digest VARCHAR(64) CHARACTER SET ascii;
    DECLARE v_born_us BIGINT;
    SELECT digest, born_us INTO v_digest, v_born_us
    FROM fencelock_waiter PARTITION (lasting) WHERE lock_name = p_lock AND ticket = p_ticket;
    CALL fencelock_remember_ended(p_lock, v_digest, GREATEST(p_now_us, v_born_us));
    DELETE FROM fencelock_waiter PARTITION (lasting) WHERE lock_name = p_lock AND ticket = p_ticket;
    UPDATE fencelock_lock PARTITION (lasting) SET waiting = waiting - ROW_COUNT() WHERE name = p_lock;
END;

-- name: create_live_head
-- The head of the queue of a lock whose row is locked; NULL if it is empty. Waiters in front that have expired are
-- removed (H7), and do not come back (H8). A time left above the ttl, after the clock was set back, counts as the ttl.
-- It is called where the row counts a waiter: if there is none, the count is corrected.
CREATE PROCEDURE fencelock_live_head(
    IN p_lock VARBINARY(512), IN p_epoch BIGINT, IN p_now_us BIGINT, OUT p_ticket BIGINT)
SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
    DECLARE v_epoch, v_ttl_ms, v_deadline_us BIGINT;
    DECLARE v_is_alive BOOLEAN DEFAULT FALSE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET p_ticket = NULL;
    REPEAT
        SET p_ticket = 0;
        SELECT ticket, epoch, ttl_ms, deadline_us INTO p_ticket, v_epoch, v_ttl_ms, v_deadline_us
        FROM fencelock_waiter PARTITION (lasting) WHERE lock_name = p_lock ORDER BY ticket LIMIT 1;
        IF p_ticket IS NOT NULL THEN
            IF v_deadline_us > p_now_us + v_ttl_ms * 1000 THEN
                -- For the whole queue at once, so that dead waiters do not delay it one after the other.
                UPDATE fencelock_waiter PARTITION (lasting) SET deadline_us = p_now_us + ttl_ms * 1000
                WHERE lock_name = p_lock AND deadline_us > p_now_us + ttl_ms * 1000;
                SET v_deadline_us = p_now_us + v_ttl_ms * 1000;
            END IF;
            SET v_is_alive = v_epoch = p_epoch AND v_deadline_us > p_now_us;
            IF NOT v_is_alive THEN
                CALL fencelock_drop_waiter(p_lock, p_ticket, p_now_us);
            END IF;
        END IF;
    UNTIL p_ticket IS NULL OR v_is_alive END REPEAT;
    IF p_ticket IS NULL THEN
        UPDATE fencelock_lock PARTITION (lasting) SET waiting = 0 WHERE name = p_lock;
    END IF;
END;
