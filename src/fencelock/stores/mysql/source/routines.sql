-- name: create_refuse_session
-- Refuse a session that would decide on a past snapshot or in a time that jumps, and a server that takes no writes: whoever
-- owns the routines may be one whom `read_only` does not stop.
CREATE PROCEDURE fencelock_refuse_session() SQL SECURITY INVOKER NO SQL
BEGIN
    IF CONCAT(@@global.read_only) NOT IN ('0', 'OFF') THEN
        SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'the server runs with read_only';
    END IF;
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
        'fencelock: a session needs time_zone +00:00 and READ COMMITTED';
END;

-- name: create_refuse_name
-- Refuse what no client of ours sends: a name is text that every client can read.
CREATE PROCEDURE fencelock_refuse_name() SQL SECURITY INVOKER NO SQL
SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
    'fencelock: the name of a lock or of a holder has 1 to 512 bytes of UTF-8, and no U+0000';

-- name: create_refuse_time
-- Refuse a time that no client has heard of: Linux sets no clock past the year 2232. A lock whose claims ended then was spoiled
-- for good, since none is drawn later; a purge spoiled all.
CREATE PROCEDURE fencelock_refuse_time() SQL SECURITY INVOKER NO SQL
SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
    'fencelock: the time that came with the claim is over a thousand years after the server''s: start the process anew';

-- name: create_hold_lock
-- Hold a lock's row still until the end of the transaction; it is made if there is none, and the name is one. (This server
-- takes U+D800 to U+DFFF for UTF-8, which they are not.)
CREATE PROCEDURE fencelock_hold_lock(IN p_lock VARBINARY(512)) SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
    DECLARE v_waiting BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_waiting = NULL;
    SELECT waiting INTO v_waiting FROM fencelock_lock WHERE name = p_lock FOR UPDATE;
    IF v_waiting IS NULL THEN
        IF p_lock IS NULL OR p_lock = '' OR NOT CAST(CONVERT(p_lock USING utf8mb4) AS BINARY) <=> p_lock
           OR HEX(p_lock) REGEXP '^(..)*(00|ED[AB])' THEN
            CALL fencelock_refuse_name();
        END IF;
        INSERT INTO fencelock_lock (name) VALUES (p_lock) ON DUPLICATE KEY UPDATE waiting = waiting;
    END IF;
END;

-- name: create_remember_ended
-- A claim that does not hold the lock, whose row is held, is over.
CREATE PROCEDURE fencelock_remember_ended(
    IN p_lock VARBINARY(512), IN p_claim VARCHAR(64) CHARACTER SET ascii, IN p_ended_us BIGINT)
SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
    UPDATE fencelock_lock
    SET forgotten_us = GREATEST(forgotten_us, ended_us), ended_us = p_ended_us, ended_claim = p_claim
    WHERE name = p_lock;
END;

-- name: create_drop_waiter
-- A waiting claim of a lock whose row is held leaves the queue, for good.
CREATE PROCEDURE fencelock_drop_waiter(IN p_lock VARBINARY(512), IN p_ticket BIGINT, IN p_now_us BIGINT)
SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
    DECLARE v_claim VARCHAR(64) CHARACTER SET ascii;
    DECLARE v_born_us BIGINT;
    SELECT claim, born_us INTO v_claim, v_born_us FROM fencelock_waiter WHERE lock_name = p_lock AND ticket = p_ticket;
    DELETE FROM fencelock_waiter WHERE lock_name = p_lock AND ticket = p_ticket;
    UPDATE fencelock_lock SET waiting = waiting - 1 WHERE name = p_lock;
    CALL fencelock_remember_ended(p_lock, v_claim, GREATEST(p_now_us, v_born_us));
END;

-- name: create_live_head
-- Whose turn it is at a lock whose row is held; NULL: nobody's. Waiters in front whose own time is up are passed over (H7),
-- and do not come back (H8); a time left greater than the ttl, after the clock was set back, counts as the ttl.
CREATE PROCEDURE fencelock_live_head(
    IN p_lock VARBINARY(512), IN p_epoch BIGINT, IN p_now_us BIGINT, OUT p_ticket BIGINT)
SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
    DECLARE v_epoch, v_ttl_ms, v_deadline_us BIGINT;
    DECLARE v_is_alive BOOLEAN DEFAULT FALSE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET p_ticket = NULL;
    REPEAT
        SET p_ticket = 0;
        SELECT ticket, epoch, ttl_ms, deadline_us INTO p_ticket, v_epoch, v_ttl_ms, v_deadline_us
        FROM fencelock_waiter WHERE lock_name = p_lock ORDER BY ticket LIMIT 1;
        IF p_ticket IS NOT NULL THEN
            IF v_deadline_us > p_now_us + v_ttl_ms * 1000 THEN
                -- For the whole queue: the dead ones in it are not waited for one after the other.
                UPDATE fencelock_waiter SET deadline_us = p_now_us + ttl_ms * 1000
                WHERE lock_name = p_lock AND deadline_us > p_now_us + ttl_ms * 1000;
                SET v_deadline_us = p_now_us + v_ttl_ms * 1000;
            END IF;
            SET v_is_alive = v_epoch = p_epoch AND v_deadline_us > p_now_us;
            IF NOT v_is_alive THEN
                CALL fencelock_drop_waiter(p_lock, p_ticket, p_now_us);
            END IF;
        END IF;
    UNTIL p_ticket IS NULL OR v_is_alive END REPEAT;
END;

-- name: create_decide
-- Decide who gets a lock, and mint its token, all cases considered; as `fencelock_acquire`, but for its common one. The
-- row of the lock is held first, then those of its queue, and the source's last: as everywhere, so that none waits for two.
CREATE PROCEDURE fencelock_decide(
    IN p_lock VARBINARY(512), IN p_claim VARCHAR(64) CHARACTER SET ascii, IN p_holder VARCHAR(512) CHARACTER SET utf8mb4,
    IN p_ttl_ms BIGINT, IN p_born_us BIGINT, IN p_mode VARCHAR(8) CHARACTER SET ascii, IN p_queue_limit BIGINT)
SQL SECURITY DEFINER MODIFIES SQL DATA
deciding: BEGIN
    DECLARE v_outcome VARCHAR(8) CHARACTER SET ascii;
    DECLARE v_source_id, v_history_id, v_claim, v_ended_claim VARCHAR(64) CHARACTER SET ascii;
    DECLARE v_epoch, v_born_after_us, v_now_us, v_token, v_time_ms, v_remaining_us, v_ahead BIGINT DEFAULT 0;
    DECLARE v_lock_epoch, v_lock_token, v_ttl_ms, v_deadline_us, v_forgotten_us, v_waiting BIGINT;
    DECLARE v_head, v_own, v_own_deadline_us, v_own_ttl_ms, v_own_born_us, v_own_epoch, v_headed_us BIGINT;
    DECLARE v_own_holder VARCHAR(512) CHARACTER SET utf8mb4;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

    IF p_mode <> 'poll' AND (COALESCE(LENGTH(p_holder), 0) NOT BETWEEN 1 AND 512
                             OR HEX(p_holder) REGEXP '^(..)*(00|ED[AB])') THEN
        CALL fencelock_refuse_name();
    END IF;
    START TRANSACTION;
    CALL fencelock_hold_lock(p_lock);
    -- After the row is held: what the row does not remember any more, the source does (see fencelock_purge).
    SELECT source_id, epoch, history_id, born_after_us, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
    INTO v_source_id, v_epoch, v_history_id, v_born_after_us, v_now_us FROM fencelock_source WHERE id = 1;
    SELECT claim, epoch, token, ttl_ms, deadline_us, waiting INTO v_claim, v_lock_epoch, v_lock_token, v_ttl_ms, v_deadline_us, v_waiting
    FROM fencelock_lock WHERE name = p_lock;
    IF v_claim IS NOT NULL AND v_lock_epoch = v_epoch THEN
        IF v_deadline_us > v_now_us + v_ttl_ms * 1000 THEN
            -- The clock was set back: from now on its ttl counts.
            SET v_deadline_us = v_now_us + v_ttl_ms * 1000;
            UPDATE fencelock_lock SET deadline_us = v_deadline_us WHERE name = p_lock;
        END IF;
        SET v_remaining_us = GREATEST(0, v_deadline_us - v_now_us);
    END IF;

    decision: BEGIN
        IF v_claim = p_claim THEN
            -- Asked again: the same token while its lease runs, never a fresh one (T3).
            SET v_outcome = IF(v_remaining_us > 0, 'held', 'ended'), v_token = v_lock_token,
                v_time_ms = v_remaining_us DIV 1000;
            LEAVE decision;
        END IF;
        IF v_waiting > 0 THEN
            CALL fencelock_live_head(p_lock, v_epoch, v_now_us, v_head);
            SELECT ticket, holder, epoch, ttl_ms, deadline_us, born_us, headed_us
            INTO v_own, v_own_holder, v_own_epoch, v_own_ttl_ms, v_own_deadline_us, v_own_born_us, v_headed_us
            FROM fencelock_waiter WHERE claim = p_claim AND lock_name = p_lock;
            IF v_own_epoch <> v_epoch OR v_own_deadline_us <= v_now_us THEN
                CALL fencelock_drop_waiter(p_lock, v_own, v_now_us);
                SET v_outcome = 'ended';
                LEAVE decision;
            END IF;
        END IF;
        IF v_own IS NULL THEN
            SELECT ended_claim, forgotten_us, waiting INTO v_ended_claim, v_forgotten_us, v_waiting
            FROM fencelock_lock WHERE name = p_lock;
            IF p_mode = 'poll' OR p_claim <=> v_ended_claim OR p_born_us <= GREATEST(v_forgotten_us, v_born_after_us) THEN
                SET v_outcome = 'ended', v_now_us = GREATEST(v_now_us, v_forgotten_us + 1, v_born_after_us + 1);
                LEAVE decision;
            END IF;
            IF v_remaining_us > 0 OR v_head IS NOT NULL THEN
                IF p_mode = 'try' OR v_waiting >= p_queue_limit THEN
                    SET v_outcome = IF(p_mode = 'try', 'busy', 'full');
                    LEAVE decision;
                END IF;
                UPDATE fencelock_lock SET waiting = waiting + 1, last_ticket = LAST_INSERT_ID(last_ticket + 1)
                WHERE name = p_lock;
                SET v_own = LAST_INSERT_ID(), v_own_ttl_ms = p_ttl_ms, v_headed_us = 0,
                    v_own_deadline_us = v_now_us + p_ttl_ms * 1000;
                INSERT INTO fencelock_waiter (lock_name, ticket, claim, holder, epoch, ttl_ms, deadline_us, born_us, headed_us)
                VALUES (p_lock, v_own, p_claim, p_holder, v_epoch, p_ttl_ms, v_own_deadline_us, p_born_us, 0);
            END IF;
        END IF;
        IF v_remaining_us > 0 OR v_head <> v_own THEN
            SET v_outcome = 'queued';
            IF v_headed_us = 0 AND COALESCE(v_head, v_own) = v_own THEN
                SET v_headed_us = v_now_us;
                UPDATE fencelock_waiter SET headed_us = v_now_us WHERE lock_name = p_lock AND ticket = v_own;
            END IF;
            -- The first looks soon at first, and less and less often; the others so much more seldom as there are before them.
            IF v_head <> v_own THEN
                -- Tickets are missing where somebody has left.
                SET v_ahead = LEAST(v_own - v_head, v_waiting);
                SELECT headed_us INTO v_headed_us FROM fencelock_waiter WHERE lock_name = p_lock AND ticket = v_head;
            END IF;
            SET v_time_ms = IF(v_headed_us = 0, 0, LEAST(250, (v_now_us - v_headed_us) DIV 8000));
            SET v_time_ms = GREATEST(5 * (1 + v_ahead), v_time_ms);
            IF v_ahead = 0 THEN
                SET v_time_ms = LEAST(v_time_ms, v_remaining_us DIV 1000);
            END IF;
            SET v_time_ms = GREATEST(1, LEAST(v_time_ms, v_own_ttl_ms DIV 3));
            -- Who looks is alive, and keeps its place. That is written, and flushed, no more often than it has to be.
            IF v_own_deadline_us - v_now_us < v_own_ttl_ms * 667 THEN
                UPDATE fencelock_waiter SET deadline_us = v_now_us + ttl_ms * 1000 WHERE lock_name = p_lock AND ticket = v_own;
            END IF;
            LEAVE decision;
        END IF;
        UPDATE fencelock_source SET token = LAST_INSERT_ID(token + 1) WHERE id = 1 AND history_id = v_history_id;
        IF ROW_COUNT() <> 1 THEN
            SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'the epoch was raised at this moment';
        END IF;
        SET v_outcome = 'granted', v_token = LAST_INSERT_ID(), v_time_ms = COALESCE(v_own_ttl_ms, p_ttl_ms);
        IF v_claim IS NOT NULL THEN
            UPDATE fencelock_lock
            SET forgotten_us = GREATEST(forgotten_us, ended_us), ended_us = GREATEST(v_now_us, born_us), ended_claim = claim
            WHERE name = p_lock;
        END IF;
        UPDATE fencelock_lock SET
            token = v_token, epoch = v_epoch, claim = p_claim, holder = COALESCE(v_own_holder, p_holder), ended = NULL,
            ttl_ms = v_time_ms, born_us = COALESCE(v_own_born_us, p_born_us), waiting = waiting - IF(v_own IS NULL, 0, 1),
            deadline_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + v_time_ms * 1000
        WHERE name = p_lock;
        IF v_own IS NOT NULL THEN
            DELETE FROM fencelock_waiter WHERE lock_name = p_lock AND ticket = v_own;
        END IF;
    END decision;
    COMMIT;
    SELECT v_outcome, v_token, v_time_ms, v_now_us, v_source_id, v_epoch, v_history_id;
END;

-- name: create_acquire
-- Take a lock, queue for it, or look again. `p_mode`: 'try' (now or never), 'wait' (or be queued), 'poll' (is queued already).
-- Outcomes: granted, held (by this very claim), queued, busy, ended (the claim is over; the time is later than all that
-- ended), full. The common case is one UPDATE that decides, on the row that it holds: the lock was taken before and is free,
-- nobody waits, the claim cannot be a late duplicate, and the history is the one that the caller knows. Nothing else is.
CREATE PROCEDURE fencelock_acquire(
    IN p_lock VARBINARY(512), IN p_claim VARCHAR(64) CHARACTER SET ascii, IN p_holder VARCHAR(512) CHARACTER SET utf8mb4,
    IN p_ttl_ms BIGINT, IN p_born_us BIGINT, IN p_mode VARCHAR(8) CHARACTER SET ascii, IN p_queue_limit BIGINT,
    IN p_epoch BIGINT, IN p_history_id VARCHAR(64) CHARACTER SET ascii)
SQL SECURITY DEFINER MODIFIES SQL DATA
acquiring: BEGIN
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF @@session.time_zone <> '+00:00' OR /*M! @@session.tx_isolation */ /*!80003 @@session.transaction_isolation */
       <> 'READ-COMMITTED' OR CONCAT(@@global.read_only) NOT IN ('0', 'OFF') THEN
        CALL fencelock_refuse_session();
    END IF;
    IF p_born_us > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + 31556952000000000 THEN
        CALL fencelock_refuse_time();
    END IF;
    IF p_mode <> 'poll' THEN
        START TRANSACTION;
        UPDATE fencelock_lock SET
            claim = p_claim, epoch = p_epoch, holder = p_holder, ended = NULL, ttl_ms = p_ttl_ms, born_us = p_born_us,
            deadline_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + p_ttl_ms * 1000
        WHERE name = p_lock AND claim IS NULL AND waiting = 0
          AND NOT p_claim <=> ended_claim AND forgotten_us < p_born_us
          AND LENGTH(p_holder) BETWEEN 1 AND 512 AND HEX(p_holder) NOT REGEXP '^(..)*(00|ED[AB])';
        IF ROW_COUNT() = 1 THEN
            UPDATE fencelock_source SET token = LAST_INSERT_ID(token + 1)
            WHERE id = 1 AND history_id = p_history_id AND epoch = p_epoch AND born_after_us < p_born_us;
            IF ROW_COUNT() = 1 THEN
                UPDATE fencelock_lock SET token = LAST_INSERT_ID() WHERE name = p_lock;
                COMMIT;
                SELECT 'granted', LAST_INSERT_ID(), p_ttl_ms, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
                LEAVE acquiring;
            END IF;
        END IF;
        ROLLBACK;
    END IF;
    CALL fencelock_decide(p_lock, p_claim, p_holder, p_ttl_ms, p_born_us, p_mode, p_queue_limit);
END;

-- name: create_release
-- End a claim for good, wherever it is: holding, queued, ended before, or not yet arrived. It ended no earlier than it was
-- drawn, whatever the clocks do. Of the common case, that it held the lock, nothing is said.
CREATE PROCEDURE fencelock_release(
    IN p_lock VARBINARY(512), IN p_claim VARCHAR(64) CHARACTER SET ascii, IN p_asked_us BIGINT)
SQL SECURITY DEFINER MODIFIES SQL DATA
releasing: BEGIN
    DECLARE v_now_us, v_ticket BIGINT;
    DECLARE v_was_held BOOLEAN;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF @@session.time_zone <> '+00:00' OR /*M! @@session.tx_isolation */ /*!80003 @@session.transaction_isolation */
       <> 'READ-COMMITTED' OR CONCAT(@@global.read_only) NOT IN ('0', 'OFF') THEN
        CALL fencelock_refuse_session();
    END IF;
    IF p_asked_us > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + 31556952000000000 THEN
        CALL fencelock_refuse_time();
    END IF;
    UPDATE fencelock_lock SET
        claim = NULL, holder = NULL, deadline_us = 0, ended = 'it was released',
        forgotten_us = GREATEST(forgotten_us, ended_us), ended_claim = p_claim,
        ended_us = GREATEST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), p_asked_us, born_us)
    WHERE name = p_lock AND claim = p_claim;
    IF ROW_COUNT() = 1 THEN
        LEAVE releasing;
    END IF;
    SET v_now_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
    START TRANSACTION;
    CALL fencelock_hold_lock(p_lock);
    -- Once more: an acquire that was cancelled may have been under way, and granted at this moment.
    UPDATE fencelock_lock SET
        claim = NULL, holder = NULL, deadline_us = 0, ended = 'it was released',
        forgotten_us = GREATEST(forgotten_us, ended_us), ended_claim = p_claim,
        ended_us = GREATEST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), p_asked_us, born_us)
    WHERE name = p_lock AND claim = p_claim;
    SET v_was_held = ROW_COUNT() = 1;
    IF NOT v_was_held THEN
        SELECT ticket INTO v_ticket FROM fencelock_waiter WHERE claim = p_claim AND lock_name = p_lock;
        IF v_ticket IS NOT NULL THEN
            CALL fencelock_drop_waiter(p_lock, v_ticket, GREATEST(v_now_us, p_asked_us));
        ELSEIF NOT EXISTS (SELECT 1 FROM fencelock_lock WHERE name = p_lock AND ended_claim = p_claim) THEN
            CALL fencelock_remember_ended(p_lock, p_claim, GREATEST(v_now_us, p_asked_us));
        END IF;
    END IF;
    COMMIT;
    SELECT v_was_held, v_now_us;
END;

-- name: create_renew
-- Extend every lease of a batch that is still running. `p_leases` is a list of [name in hexadecimal, claim] in the order of
-- the names, which all keep to, so that batches do not wait for each other.
-- The clock is read for each row when it is held (H1). A lease that runs at the end is one that was extended.
CREATE PROCEDURE fencelock_renew(IN p_leases LONGTEXT CHARACTER SET ascii) SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
    DECLARE v_epoch, v_now_us BIGINT;
    DECLARE v_began_because TEXT CHARACTER SET utf8mb4;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF @@session.time_zone <> '+00:00' OR /*M! @@session.tx_isolation */ /*!80003 @@session.transaction_isolation */
       <> 'READ-COMMITTED' OR CONCAT(@@global.read_only) NOT IN ('0', 'OFF') THEN
        CALL fencelock_refuse_session();
    END IF;
    START TRANSACTION;
    SELECT epoch, began_because INTO v_epoch, v_began_because FROM fencelock_source WHERE id = 1;
    UPDATE JSON_TABLE(p_leases, '$[*]' COLUMNS (
        name VARCHAR(1024) CHARACTER SET ascii PATH '$[0]', claim VARCHAR(64) CHARACTER SET ascii PATH '$[1]')) AS asked
    STRAIGHT_JOIN fencelock_lock AS l ON l.name = UNHEX(asked.name) AND l.claim = asked.claim
    SET l.deadline_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + l.ttl_ms * 1000
    WHERE l.epoch = v_epoch AND l.deadline_us > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
    SET v_now_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
    SELECT asked.claim, IF(l.claim = asked.claim AND l.epoch = v_epoch AND l.deadline_us > v_now_us, l.ttl_ms, NULL),
           CASE WHEN l.name IS NULL THEN 'the source no longer knows the lock'
                WHEN l.claim IS NOT NULL AND l.epoch <> v_epoch THEN CONCAT('the source''s epoch was raised: ', v_began_because)
                WHEN l.claim = asked.claim THEN 'it expired at the source before it was renewed'
                WHEN l.claim IS NOT NULL THEN CONCAT(l.holder, ' holds the lock now, with token ', l.token)
                ELSE COALESCE(l.ended, 'it ended at the source') END
    FROM JSON_TABLE(p_leases, '$[*]' COLUMNS (
        name VARCHAR(1024) CHARACTER SET ascii PATH '$[0]', claim VARCHAR(64) CHARACTER SET ascii PATH '$[1]')) AS asked
    LEFT JOIN fencelock_lock AS l ON l.name = UNHEX(asked.name);
    COMMIT;
END;

-- name: create_describe
-- The source's identity and counter.
CREATE PROCEDURE fencelock_describe() SQL SECURITY DEFINER READS SQL DATA
BEGIN
    SELECT schema_number, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), source_id, epoch, history_id, token
    FROM fencelock_source WHERE id = 1;
END;

-- name: create_raise_epoch
-- Begin a history above every token of the old one, if that is still the one that was read; every lease ends with it, since
-- each is of an epoch. It begins at a multiple of 2**40, above all that is known here, and, where the clocks are right, above
-- what others issued who knew more than is known here: 2**30 tokens for each second.
CREATE PROCEDURE fencelock_raise_epoch(
    IN p_old VARCHAR(64) CHARACTER SET ascii, IN p_fresh VARCHAR(64) CHARACTER SET ascii, IN p_seen BIGINT,
    IN p_who VARCHAR(512) CHARACTER SET utf8mb4, IN p_reason TEXT CHARACTER SET utf8mb4)
SQL SECURITY DEFINER MODIFIES SQL DATA
raising: BEGIN
    DECLARE v_now_us, v_highest, v_clock, v_past_us BIGINT;
    DECLARE v_history_id VARCHAR(64) CHARACTER SET ascii;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF @@session.time_zone <> '+00:00' OR /*M! @@session.tx_isolation */ /*!80003 @@session.transaction_isolation */
       <> 'READ-COMMITTED' OR CONCAT(@@global.read_only) NOT IN ('0', 'OFF') THEN
        CALL fencelock_refuse_session();
    END IF;
    START TRANSACTION;
    SELECT history_id, token, born_after_us INTO v_history_id, v_highest, v_past_us
    FROM fencelock_source WHERE id = 1 FOR UPDATE;
    IF v_history_id <> p_old THEN
        ROLLBACK;
        LEAVE raising;
    END IF;
    SET v_now_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)),
        v_clock = (v_now_us DIV 1000000 - 1767225600) * 1073741824;
    SELECT GREATEST(v_highest, p_seen, COALESCE(MAX(token), 0), IF(v_clock > 4611686018427387904, 0, v_clock)),
           GREATEST(v_now_us, v_past_us, COALESCE(MAX(GREATEST(born_us, ended_us, forgotten_us)), 0))
    INTO v_highest, v_past_us FROM fencelock_lock;
    SELECT GREATEST(v_past_us, COALESCE(MAX(born_us), 0)) INTO v_past_us FROM fencelock_waiter;
    IF v_highest >= 9223372036854775807 - 2 * 1099511627776 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'fencelock: no token is left above this epoch';
    END IF;
    UPDATE fencelock_source SET
        epoch = epoch + 1, history_id = p_fresh, token = (v_highest DIV 1099511627776 + 1) * 1099511627776,
        born_after_us = v_past_us, began_because = p_reason
    WHERE id = 1;
    INSERT INTO fencelock_source_audit (happened_at, who, what, token, reason)
    SELECT SYSDATE(6), p_who, 'raise epoch', token, p_reason FROM fencelock_source WHERE id = 1;
    COMMIT;
    CALL fencelock_describe();
END;

-- name: create_break
-- Free a lock, whoever holds it, and mint the breaker's token. Asked again under the same claim it ends nobody else's lease.
CREATE PROCEDURE fencelock_break(
    IN p_lock VARBINARY(512), IN p_claim VARCHAR(64) CHARACTER SET ascii, IN p_who VARCHAR(512) CHARACTER SET utf8mb4,
    IN p_reason TEXT CHARACTER SET utf8mb4)
SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
    DECLARE v_token, v_epoch, v_now_us BIGINT;
    DECLARE v_holder VARCHAR(512) CHARACTER SET utf8mb4;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF @@session.time_zone <> '+00:00' OR /*M! @@session.tx_isolation */ /*!80003 @@session.transaction_isolation */
       <> 'READ-COMMITTED' OR CONCAT(@@global.read_only) NOT IN ('0', 'OFF') THEN
        CALL fencelock_refuse_session();
    END IF;
    START TRANSACTION;
    CALL fencelock_hold_lock(p_lock);
    SELECT token, holder INTO v_token, v_holder FROM fencelock_source_audit WHERE claim = p_claim;
    IF v_token IS NULL THEN
        UPDATE fencelock_source SET token = LAST_INSERT_ID(token + 1) WHERE id = 1;
        SET v_token = LAST_INSERT_ID(), v_now_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
        SELECT epoch INTO v_epoch FROM fencelock_source WHERE id = 1;
        SELECT holder INTO v_holder FROM fencelock_lock
        WHERE name = p_lock AND claim IS NOT NULL AND epoch = v_epoch AND deadline_us > v_now_us;
        -- Its claim ends here, and is remembered before it is forgotten that it held.
        UPDATE fencelock_lock
        SET forgotten_us = GREATEST(forgotten_us, ended_us), ended_us = GREATEST(v_now_us, born_us), ended_claim = claim
        WHERE name = p_lock AND claim IS NOT NULL;
        UPDATE fencelock_lock
        SET token = v_token, claim = NULL, holder = NULL, deadline_us = 0, ended = CONCAT(p_who, ' broke it: ', p_reason)
        WHERE name = p_lock;
        INSERT INTO fencelock_source_audit (happened_at, who, what, lock_name, token, reason, holder, claim)
        VALUES (SYSDATE(6), p_who, 'break', p_lock, v_token, p_reason, v_holder, p_claim);
    END IF;
    COMMIT;
    SELECT v_token, source_id, history_id, v_holder FROM fencelock_source WHERE id = 1;
END;

-- name: create_purge
-- Forget locks that nobody holds or waits for; their tokens stay spent (T6), and every claim drawn until now is refused. Each
-- row is held first, if nobody else has it, and the source's last: a claim that ends at this moment, on one of these locks,
-- does so before what is remembered, or after all.
CREATE PROCEDURE fencelock_purge() SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
    DECLARE v_name, v_held VARBINARY(512);
    DECLARE v_epoch, v_now_us, v_past_us, v_gone BIGINT DEFAULT 0;
    DECLARE v_is_over BOOLEAN DEFAULT FALSE;
    DECLARE free CURSOR FOR
        SELECT l.name FROM fencelock_lock AS l
        WHERE (l.claim IS NULL OR l.epoch <> v_epoch OR l.deadline_us <= v_now_us)
          AND NOT EXISTS (SELECT 1 FROM fencelock_waiter AS q
                          WHERE q.lock_name = l.name AND q.epoch = v_epoch AND q.deadline_us > v_now_us);
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_is_over = TRUE;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF @@session.time_zone <> '+00:00' OR /*M! @@session.tx_isolation */ /*!80003 @@session.transaction_isolation */
       <> 'READ-COMMITTED' OR CONCAT(@@global.read_only) NOT IN ('0', 'OFF') THEN
        CALL fencelock_refuse_session();
    END IF;
    START TRANSACTION;
    SELECT epoch, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) INTO v_epoch, v_now_us FROM fencelock_source WHERE id = 1;
    OPEN free;
    going: LOOP
        SET v_is_over = FALSE;
        FETCH free INTO v_name;
        IF v_is_over THEN
            LEAVE going;
        END IF;
        SET v_held = NULL;
        SELECT l.name INTO v_held FROM fencelock_lock AS l
        WHERE l.name = v_name AND (l.claim IS NULL OR l.epoch <> v_epoch OR l.deadline_us <= v_now_us)
        FOR UPDATE SKIP LOCKED;
        -- Now that the row is held, nobody comes to its queue, and who is there may have come since.
        IF v_held IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM fencelock_waiter
            WHERE lock_name = v_name AND epoch = v_epoch AND deadline_us > v_now_us) THEN
            SELECT GREATEST(v_past_us, born_us, ended_us, forgotten_us) INTO v_past_us FROM fencelock_lock WHERE name = v_name;
            SELECT GREATEST(v_past_us, COALESCE(MAX(born_us), 0)) INTO v_past_us FROM fencelock_waiter WHERE lock_name = v_name;
            DELETE FROM fencelock_waiter WHERE lock_name = v_name;
            DELETE FROM fencelock_lock WHERE name = v_name;
            SET v_gone = v_gone + 1;
        END IF;
    END LOOP;
    CLOSE free;
    UPDATE fencelock_source
    SET born_after_us = GREATEST(born_after_us, v_past_us, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)))
    WHERE id = 1;
    COMMIT;
    SELECT v_gone, born_after_us + 1 FROM fencelock_source WHERE id = 1;
END;

-- name: create_inspect
-- Locks as people see them, in the order of their names: one, or a page of those after a name. One row for each lock, and
-- for each of its waiters, in the order of the queue. A time left is rounded up: what has less than a millisecond left is held.
CREATE PROCEDURE fencelock_inspect(IN p_lock VARBINARY(512), IN p_after VARBINARY(512), IN p_page BIGINT)
SQL SECURITY DEFINER READS SQL DATA
BEGIN
    DECLARE v_epoch, v_now_us BIGINT;
    SELECT epoch, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) INTO v_epoch, v_now_us FROM fencelock_source WHERE id = 1;
    SELECT l.name, l.token, l.holder,
           IF(l.claim IS NULL OR l.epoch <> v_epoch, 0,
              (GREATEST(0, LEAST(l.deadline_us - v_now_us, l.ttl_ms * 1000)) + 999) DIV 1000),
           l.ttl_ms, q.holder
    FROM (SELECT name, token, holder, claim, epoch, deadline_us, ttl_ms FROM fencelock_lock
          WHERE token IS NOT NULL AND (name = p_lock OR name > p_after) ORDER BY name LIMIT p_page) AS l
    LEFT JOIN fencelock_waiter AS q ON q.lock_name = l.name AND q.epoch = v_epoch AND q.deadline_us > v_now_us
    ORDER BY l.name, q.ticket;
END;
