-- The source's routines, second file: taking, releasing and renewing a lock. Routines run with their owner's rights, and
-- each ends its own transaction.

-- name: create_newest_key
-- The key to sign with; NULL without one. Read at each grant: a key that was retired a moment ago signs nothing.
CREATE PROCEDURE fencelock_newest_key(OUT p_key_id VARCHAR(64) CHARACTER SET ascii) SQL SECURITY INVOKER READS SQL DATA
BEGIN
    DECLARE v_now_s BIGINT DEFAULT TIMESTAMPDIFF(SECOND, '1970-01-01', SYSDATE());
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT key_id INTO p_key_id FROM fencelock_source_key PARTITION (lasting)
    WHERE not_before_s <= v_now_s AND retired_s IS NULL
    ORDER BY not_before_s DESC, number DESC LIMIT 1;
END;

-- name: create_choose_key
-- Note in the source's row which key signs until when, so that a grant finds it without looking for it. The row is locked
-- first: what was noted last knows every key. With the caller's rights, since it leaves the row locked.
CREATE PROCEDURE fencelock_choose_key() SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
    DECLARE v_key_id VARCHAR(64) CHARACTER SET ascii;
    DECLARE v_now_s BIGINT;
    SELECT TIMESTAMPDIFF(SECOND, '1970-01-01', SYSDATE()) INTO v_now_s
    FROM fencelock_source PARTITION (lasting) WHERE id = 1 FOR UPDATE;
    CALL fencelock_newest_key(v_key_id);
    UPDATE fencelock_source PARTITION (lasting) SET key_id = v_key_id, key_until_s = COALESCE((
        SELECT MIN(k.not_before_s) FROM fencelock_source_key PARTITION (lasting) AS k
        WHERE k.not_before_s > v_now_s AND k.retired_s IS NULL), 9223372036854775807)
    WHERE id = 1;
END;

-- name: create_sign
-- The signature of a sequencer. The key stays in columns: other sessions see the values of variables in the text of a
-- statement.
CREATE PROCEDURE fencelock_sign(
    IN p_lock VARBINARY(512), IN p_digest VARCHAR(64) CHARACTER SET ascii, IN p_token BIGINT,
    IN p_history_id VARCHAR(64) CHARACTER SET ascii, IN p_key_id VARCHAR(64) CHARACTER SET ascii,
    OUT p_signature VARCHAR(64) CHARACTER SET ascii)
SQL SECURITY INVOKER READS SQL DATA
SELECT SIGNATURE(k.inner_pad, k.outer_pad, CONCAT_WS(
    '.', 'fl2', k.key_id, s.source_id, p_history_id, 'x', p_token, p_digest, BASE64URL(p_lock)))
INTO p_signature
    FROM fencelock_source PARTITION (lasting) AS s
    JOIN fencelock_source_key PARTITION (lasting) AS k ON k.key_id = p_key_id WHERE s.id = 1;

-- name: create_decide
-- Decide who gets a lock, and mint its token: all the cases that `fencelock_acquire` does not handle itself. Rows are
-- locked in one order everywhere, so that no two transactions wait for each other: the lock's, its queue's, the source's.
CREATE PROCEDURE fencelock_decide(
    IN p_lock VARBINARY(512), IN p_digest VARCHAR(64) CHARACTER SET ascii, IN p_holder VARCHAR(512) CHARACTER SET utf8mb4,
    IN p_ttl_ms BIGINT, IN p_born_us BIGINT, IN p_mode VARCHAR(8) CHARACTER SET ascii, IN p_queue_limit BIGINT)
SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
    DECLARE v_outcome VARCHAR(8) CHARACTER SET ascii;
    DECLARE v_token, v_time_ms, v_now_us, v_epoch BIGINT;
    DECLARE v_source_id, v_history_id, v_key_id, v_signature VARCHAR(64) CHARACTER SET ascii;
    DECLARE v_digest, v_lock_key_id, v_ended_digest VARCHAR(64) CHARACTER SET ascii;
    DECLARE v_born_after_us, v_key_until_s, v_remaining_us, v_ahead BIGINT DEFAULT 0;
    DECLARE v_lock_epoch, v_lock_token, v_ttl_ms, v_deadline_us, v_forgotten_us, v_waiting BIGINT;
    DECLARE v_head, v_own, v_own_deadline_us, v_own_ttl_ms, v_own_born_us, v_own_epoch, v_headed_us BIGINT;
    DECLARE v_own_holder VARCHAR(512) CHARACTER SET utf8mb4;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

    IF p_digest IS NULL OR (p_mode IN ('try', 'wait', 'poll')) IS NOT TRUE THEN
        CALL fencelock_refuse_claim();
    END IF;
    IF p_mode <> 'poll' AND (COALESCE(LENGTH(p_holder), 0) NOT BETWEEN 1 AND 512
                                  OR HEX(p_holder) REGEXP '^(..)*(00|ED[AB])') THEN
        CALL fencelock_refuse_name();
    END IF;
    SET v_token = 0, v_time_ms = 0;
    START TRANSACTION;
    CALL fencelock_hold_lock(p_lock);
    -- Read after the row is locked: what a purged row would remember, the source remembers instead.
    SELECT source_id, epoch, history_id, born_after_us, key_until_s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
    INTO v_source_id, v_epoch, v_history_id, v_born_after_us, v_key_until_s, v_now_us
        FROM fencelock_source PARTITION (lasting) WHERE id = 1;
    SELECT digest, key_id, epoch, token, ttl_ms, deadline_us, waiting
    INTO v_digest, v_lock_key_id, v_lock_epoch, v_lock_token, v_ttl_ms, v_deadline_us, v_waiting
    FROM fencelock_lock PARTITION (lasting) WHERE name = p_lock;
    IF v_digest IS NOT NULL AND v_lock_epoch = v_epoch THEN
        IF v_deadline_us > v_now_us + v_ttl_ms * 1000 THEN
            -- The clock was set back: from now on the ttl counts.
            SET v_deadline_us = v_now_us + v_ttl_ms * 1000;
            UPDATE fencelock_lock PARTITION (lasting) SET deadline_us = v_deadline_us WHERE name = p_lock;
        END IF;
        SET v_remaining_us = GREATEST(0, v_deadline_us - v_now_us);
    END IF;

    decision: BEGIN
        IF v_digest = p_digest THEN
            -- A repeated request: the same token while its lease runs, never a new one (T3).
            SET v_outcome = IF(v_remaining_us > 0, 'held', 'ended'), v_token = v_lock_token,
                v_time_ms = v_remaining_us DIV 1000, v_key_id = v_lock_key_id;
            LEAVE decision;
        END IF;
        IF v_waiting > 0 THEN
            CALL fencelock_live_head(p_lock, v_epoch, v_now_us, v_head);
            SELECT ticket, holder, epoch, ttl_ms, deadline_us, born_us, headed_us
            INTO v_own, v_own_holder, v_own_epoch, v_own_ttl_ms, v_own_deadline_us, v_own_born_us, v_headed_us
            FROM fencelock_waiter PARTITION (lasting) WHERE digest = p_digest AND lock_name = p_lock;
            IF v_own_epoch <> v_epoch OR v_own_deadline_us <= v_now_us THEN
                CALL fencelock_drop_waiter(p_lock, v_own, v_now_us);
                SET v_outcome = 'ended';
                LEAVE decision;
            END IF;
        END IF;
        IF v_own IS NULL THEN
            SELECT ended_digest, forgotten_us, waiting INTO v_ended_digest, v_forgotten_us, v_waiting
            FROM fencelock_lock PARTITION (lasting) WHERE name = p_lock;
            -- A claim drawn before the last forgotten one ended may be a late duplicate of it (H4).
            IF p_mode = 'poll' OR p_digest <=> v_ended_digest OR p_born_us <= GREATEST(v_forgotten_us, v_born_after_us) THEN
                SET v_outcome = 'ended', v_now_us = GREATEST(v_now_us, v_forgotten_us + 1, v_born_after_us + 1);
                LEAVE decision;
            END IF;
            IF v_remaining_us > 0 OR v_head IS NOT NULL THEN
                IF p_mode = 'try' OR v_waiting >= p_queue_limit THEN
                    SET v_outcome = IF(p_mode = 'try', 'busy', 'full');
                    LEAVE decision;
                END IF;
                UPDATE fencelock_lock PARTITION (lasting)
                    SET waiting = waiting + 1, last_ticket = LAST_INSERT_ID(last_ticket + 1)
                WHERE name = p_lock;
                IF ROW_COUNT() <> 1 THEN
                    CALL fencelock_refuse_break_off();
                END IF;
                SET v_own = LAST_INSERT_ID(), v_own_ttl_ms = p_ttl_ms, v_headed_us = 0,
                    v_own_deadline_us = v_now_us + p_ttl_ms * 1000;
                INSERT INTO fencelock_waiter PARTITION (lasting) (
                    lock_name, ticket, digest, holder, epoch, ttl_ms, deadline_us, born_us, headed_us)
                VALUES (p_lock, v_own, p_digest, p_holder, v_epoch, p_ttl_ms, v_own_deadline_us, p_born_us, 0);
            END IF;
        END IF;
        IF v_remaining_us > 0 OR v_head <> v_own THEN
            SET v_outcome = 'queued';
            IF v_headed_us = 0 AND COALESCE(v_head, v_own) = v_own THEN
                SET v_headed_us = v_now_us;
                UPDATE fencelock_waiter PARTITION (lasting) SET headed_us = v_now_us
                WHERE lock_name = p_lock AND ticket = v_own;
            END IF;
            -- The head polls often at first, then less and less; each other waiter the less, the more are in front of it.
            IF v_head <> v_own THEN
                -- The difference of tickets counts waiters that have left, too.
                SET v_ahead = LEAST(v_own - v_head, v_waiting);
                SELECT headed_us INTO v_headed_us
                FROM fencelock_waiter PARTITION (lasting) WHERE lock_name = p_lock AND ticket = v_head;
            END IF;
            SET v_time_ms = IF(v_headed_us = 0, 0, LEAST(250, (v_now_us - v_headed_us) DIV 8000));
            SET v_time_ms = GREATEST(5 * (1 + v_ahead), v_time_ms);
            IF v_ahead = 0 THEN
                SET v_time_ms = LEAST(v_time_ms, v_remaining_us DIV 1000);
            END IF;
            SET v_time_ms = GREATEST(1, LEAST(v_time_ms, v_own_ttl_ms DIV 3));
            -- A waiter that polls is alive, and keeps its place. Each write is flushed, so write only after a third of the ttl.
            IF v_own_deadline_us - v_now_us < v_own_ttl_ms * 667 THEN
                UPDATE fencelock_waiter PARTITION (lasting) SET deadline_us = v_now_us + ttl_ms * 1000
                WHERE lock_name = p_lock AND ticket = v_own;
            END IF;
            LEAVE decision;
        END IF;
        -- The lock is free, and it is this claim's turn. A deadlock's error makes the client repeat the request.
        UPDATE fencelock_source PARTITION (lasting) SET token = LAST_INSERT_ID(token + 1)
            WHERE id = 1 AND history_id = v_history_id;
        IF ROW_COUNT() <> 1 THEN
            SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'the epoch was raised at this moment';
        END IF;
        SET v_outcome = 'granted', v_token = LAST_INSERT_ID(), v_time_ms = COALESCE(v_own_ttl_ms, p_ttl_ms);
        IF v_digest IS NOT NULL THEN
            UPDATE fencelock_lock PARTITION (lasting)
            SET forgotten_us = GREATEST(forgotten_us, ended_us), ended_us = GREATEST(v_now_us, born_us), ended_digest = digest
            WHERE name = p_lock;
        END IF;
        IF v_key_until_s <= v_now_us DIV 1000000 THEN
            CALL fencelock_choose_key();
        END IF;
        CALL fencelock_newest_key(v_key_id);
        -- How many places in the queue end with the grant.
        SET v_ahead = 0;
        IF v_own IS NOT NULL THEN
            DELETE FROM fencelock_waiter PARTITION (lasting) WHERE lock_name = p_lock AND ticket = v_own;
            SET v_ahead = ROW_COUNT();
        END IF;
        UPDATE fencelock_lock PARTITION (lasting) SET
            token = v_token, epoch = v_epoch, digest = p_digest, key_id = v_key_id, holder = COALESCE(v_own_holder, p_holder), ended = NULL,
            ttl_ms = v_time_ms, born_us = COALESCE(v_own_born_us, p_born_us), waiting = waiting - v_ahead,
            deadline_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + v_time_ms * 1000
        WHERE name = p_lock;
    END decision;
    COMMIT AND NO CHAIN;
    IF v_key_id IS NOT NULL THEN
        CALL fencelock_sign(p_lock, p_digest, v_token, v_history_id, v_key_id, v_signature);
    END IF;
    SELECT v_token, v_now_us, v_outcome, v_time_ms, v_source_id, v_epoch, v_history_id, v_key_id, v_signature;
END;

-- name: create_end_claim
-- End a claim for good that did not hold the lock a moment ago, and answer whether it held it after all.
CREATE PROCEDURE fencelock_end_claim(
    IN p_lock VARBINARY(512), IN p_digest VARCHAR(64) CHARACTER SET ascii, IN p_asked_us BIGINT)
SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
    DECLARE v_now_us BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
    DECLARE v_ticket BIGINT;
    DECLARE v_was_held BOOLEAN DEFAULT FALSE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    START TRANSACTION;
    CALL fencelock_hold_lock(p_lock);
    -- Once more: a cancelled acquire of this claim may have been granted between the two.
    SELECT l.epoch = s.epoch INTO v_was_held
    FROM fencelock_lock PARTITION (lasting) AS l JOIN fencelock_source PARTITION (lasting) AS s ON s.id = 1
        WHERE l.name = p_lock AND l.digest = p_digest;
    UPDATE fencelock_lock PARTITION (lasting) SET
        digest = NULL, holder = NULL, deadline_us = 0, ended = 'it was released',
        forgotten_us = GREATEST(forgotten_us, ended_us), ended_digest = p_digest,
        ended_us = GREATEST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), p_asked_us, born_us)
    WHERE name = p_lock AND digest = p_digest;
    IF ROW_COUNT() = 0 THEN
        SELECT ticket INTO v_ticket
        FROM fencelock_waiter PARTITION (lasting) WHERE digest = p_digest AND lock_name = p_lock;
        IF v_ticket IS NOT NULL THEN
            CALL fencelock_drop_waiter(p_lock, v_ticket, GREATEST(v_now_us, p_asked_us));
        ELSEIF NOT EXISTS (SELECT 1
            FROM fencelock_lock PARTITION (lasting) WHERE name = p_lock AND ended_digest = p_digest) THEN
            CALL fencelock_remember_ended(p_lock, p_digest, GREATEST(v_now_us, p_asked_us));
        END IF;
    END IF;
    COMMIT AND NO CHAIN;
    SELECT v_was_held, v_now_us;
END;

-- name: create_acquire
-- Take a lock, queue for it, or look again. `p_mode`: 'try' (now or never), 'wait' (or queue), 'poll' (queued already).
-- Outcomes: granted, held (by this claim), queued, busy, ended (the claim is over; the time is later than every claim
-- that ended), full.
--
-- In the common case, the lock was taken before and is free, nobody waits, the claim cannot be a late duplicate, and the
-- history is the one that the caller named. Its answer repeats nothing that the caller named. What else may be the case
-- is in other routines: each variable that a routine declares costs all of its calls.
CREATE PROCEDURE fencelock_acquire(
    IN p_lock VARBINARY(512), IN p_digest VARCHAR(64) CHARACTER SET ascii, IN p_holder VARCHAR(512) CHARACTER SET utf8mb4,
    IN p_ttl_ms BIGINT, IN p_born_us BIGINT, IN p_mode VARCHAR(8) CHARACTER SET ascii, IN p_queue_limit BIGINT,
    IN p_epoch BIGINT, IN p_history_id VARCHAR(64) CHARACTER SET ascii)
SQL SECURITY DEFINER MODIFIES SQL DATA
acquiring: BEGIN
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF @@session.time_zone <> '+00:00' OR /*M!100201 NOT @@session.check_constraint_checks OR */ /*M! @@session.tx_isolation */ /*!80003 @@session.transaction_isolation */
       <> 'READ-COMMITTED' OR CONCAT(@@global.read_only) NOT IN ('0', 'OFF') THEN
        CALL fencelock_refuse_session();
    END IF;
    IF p_born_us > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + 31556952000000000 THEN
        CALL fencelock_refuse_time();
    END IF;
    -- What no ASCII text can be, `fencelock_decide` refuses: a regular expression costs as much as another UPDATE.
    IF p_mode IN ('try', 'wait') AND CHAR_LENGTH(p_holder) = LENGTH(p_holder) AND LENGTH(p_holder) BETWEEN 1 AND 512
       AND INSTR(p_holder, CHAR(0)) = 0 AND p_digest IS NOT NULL THEN
        START TRANSACTION;
        -- Only locked here, and written once, with its token: the server may break a routine off between two statements,
        -- and its session then commits what there is.
        IF EXISTS (
            SELECT 1 FROM fencelock_lock PARTITION (lasting)
            WHERE name = p_lock AND digest IS NULL AND waiting = 0
              AND NOT p_digest <=> ended_digest AND forgotten_us < p_born_us FOR UPDATE) THEN
            -- The same statement tells which key signs: looking for it at each grant would cost a tenth of it.
            UPDATE fencelock_source PARTITION (lasting) SET token = LAST_INSERT_ID(token + 1)
            WHERE id = 1 AND history_id = p_history_id AND epoch = p_epoch AND born_after_us < p_born_us
              AND key_until_s > TIMESTAMPDIFF(SECOND, '1970-01-01', SYSDATE())
              AND (@fencelock_key := COALESCE(key_id, '')) IS NOT NULL AND (@fencelock_source := source_id) IS NOT NULL;
            IF ROW_COUNT() = 1 THEN
                UPDATE fencelock_lock PARTITION (lasting) SET
                    token = LAST_INSERT_ID(), digest = p_digest, key_id = NULLIF(@fencelock_key, ''), epoch = p_epoch, holder = p_holder,
                    ended = NULL, ttl_ms = p_ttl_ms, born_us = p_born_us,
                    deadline_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + p_ttl_ms * 1000
                WHERE name = p_lock;
                COMMIT AND NO CHAIN;
                IF @fencelock_key = '' THEN
                    SELECT LAST_INSERT_ID(), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
                ELSE
                    -- What `fencelock_sign` does, without the cost of a call. NULL if the key was retired a moment ago.
                    SELECT LAST_INSERT_ID(), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), @fencelock_key, (
                        SELECT CONVERT(SIGNATURE(inner_pad, outer_pad, CONCAT_WS('.', 'fl2', key_id, @fencelock_source,
                            p_history_id, 'x', LAST_INSERT_ID(), p_digest, BASE64URL(p_lock))) USING ascii)
                        FROM fencelock_source_key PARTITION (lasting)
                            WHERE key_id = @fencelock_key AND retired_s IS NULL) AS signature;
                END IF;
                LEAVE acquiring;
            END IF;
        END IF;
        ROLLBACK;
    END IF;
    CALL fencelock_decide(p_lock, p_digest, p_holder, p_ttl_ms, p_born_us, p_mode, p_queue_limit);
END;

-- name: create_release
-- End a claim for good, whether it holds the lock, waits, has ended or has not arrived yet. A claim never ends before it
-- was drawn, whatever the clocks do. The common case, that it held the lock, returns no row. A claim of an earlier epoch
-- no longer held anything (H3).
CREATE PROCEDURE fencelock_release(
    IN p_lock VARBINARY(512), IN p_claim VARCHAR(64) CHARACTER SET ascii, IN p_asked_us BIGINT)
SQL SECURITY DEFINER MODIFIES SQL DATA
releasing: BEGIN
    DECLARE v_epoch BIGINT;
    DECLARE v_pad VARCHAR(64) CHARACTER SET ascii DEFAULT MASK_PAD(p_claim, @fencelock_mask);
    DECLARE v_digest VARCHAR(64) CHARACTER SET ascii DEFAULT ONE_WAY(ONE_WAY(REVEAL(p_claim, v_pad)));
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF @@session.time_zone <> '+00:00' OR /*M! @@session.tx_isolation */ /*!80003 @@session.transaction_isolation */
       <> 'READ-COMMITTED' OR CONCAT(@@global.read_only) NOT IN ('0', 'OFF') THEN
        CALL fencelock_refuse_session();
    END IF;
    IF p_asked_us > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + 31556952000000000 THEN
        CALL fencelock_refuse_time();
    END IF;
    -- Fails in an XA transaction, which could be prepared, and keep the lock's row locked without a session.
    START TRANSACTION;
    SELECT epoch INTO v_epoch FROM fencelock_source PARTITION (lasting) WHERE id = 1;
    UPDATE fencelock_lock PARTITION (lasting) SET
        digest = NULL, holder = NULL, deadline_us = 0, ended = 'it was released',
        forgotten_us = GREATEST(forgotten_us, ended_us), ended_digest = v_digest,
        ended_us = GREATEST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), p_asked_us, born_us)
    WHERE name = p_lock AND digest = v_digest AND epoch = v_epoch;
    IF ROW_COUNT() = 0 THEN
        -- Only here: a claim that a wrong key has unmasked holds no lock.
        IF IS_UNREADABLE(p_claim, REVEAL(p_claim, v_pad), @fencelock_mask) THEN
            CALL fencelock_refuse_mask();
        END IF;
        CALL fencelock_end_claim(p_lock, v_digest, p_asked_us);
    ELSE
        COMMIT AND NO CHAIN;
    END IF;
END;

-- name: create_renew
-- Extend every lease of a batch that has not expired. `p_leases` is a list of [name in hexadecimal, claim], ordered by
-- name, so that batches do not deadlock. The clock is read for each row after it is locked (H1). A lease that has time
-- left at the end was extended.
CREATE PROCEDURE fencelock_renew(IN p_leases LONGTEXT CHARACTER SET ascii) SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
    DECLARE v_first VARCHAR(64) CHARACTER SET ascii DEFAULT JSON_UNQUOTE(JSON_EXTRACT(p_leases, '$[0][1]'));
    DECLARE v_claim VARCHAR(64) CHARACTER SET ascii DEFAULT REVEAL(v_first, MASK_PAD(v_first, @fencelock_mask));
    DECLARE v_epoch, v_now_us BIGINT;
    DECLARE v_began_because TEXT CHARACTER SET utf8mb4;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF @@session.time_zone <> '+00:00' OR /*M! @@session.tx_isolation */ /*!80003 @@session.transaction_isolation */
       <> 'READ-COMMITTED' OR CONCAT(@@global.read_only) NOT IN ('0', 'OFF') THEN
        CALL fencelock_refuse_session();
    END IF;
    IF IS_UNREADABLE(v_first, v_claim, @fencelock_mask) THEN
        CALL fencelock_refuse_mask();
    END IF;
    -- A level that was set for one transaction would have rows of others stay locked, as long as nobody reads the answer.
    COMMIT AND NO CHAIN;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SELECT epoch, began_because INTO v_epoch, v_began_because FROM fencelock_source PARTITION (lasting) WHERE id = 1;
    UPDATE JSON_TABLE(p_leases, '$[*]' COLUMNS (
        name VARCHAR(1024) CHARACTER SET ascii PATH '$[0]', claim VARCHAR(64) CHARACTER SET ascii PATH '$[1]')) AS asked
    STRAIGHT_JOIN fencelock_lock PARTITION (lasting) AS l ON l.name = UNHEX(asked.name) AND l.digest = ONE_WAY(ONE_WAY(REVEAL(asked.claim, MASK_PAD(asked.claim, @fencelock_mask))))
    SET l.deadline_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + l.ttl_ms * 1000
    WHERE l.epoch = v_epoch AND l.deadline_us > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
    SET v_now_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
    SELECT asked.claim, IF(l.digest = asked.digest AND l.epoch = v_epoch AND l.deadline_us > v_now_us, l.ttl_ms, NULL),
           CASE WHEN l.name IS NULL THEN 'the source no longer knows the lock'
                WHEN l.digest IS NOT NULL AND l.epoch <> v_epoch THEN CONCAT('the source''s epoch was raised: ', v_began_because)
                WHEN l.digest = asked.digest THEN 'it expired at the source before it was renewed'
                WHEN l.digest IS NOT NULL THEN CONCAT(l.holder, ' holds the lock now, with token ', l.token)
                ELSE COALESCE(l.ended, 'it ended at the source') END
    FROM (
        SELECT one.name, one.claim, ONE_WAY(ONE_WAY(REVEAL(one.claim, MASK_PAD(one.claim, @fencelock_mask)))) COLLATE ascii_bin AS digest
        FROM JSON_TABLE(p_leases, '$[*]' COLUMNS (
            name VARCHAR(1024) CHARACTER SET ascii PATH '$[0]', claim VARCHAR(64) CHARACTER SET ascii PATH '$[1]')) AS one
    ) AS asked
    LEFT JOIN fencelock_lock PARTITION (lasting) AS l ON l.name = UNHEX(asked.name);
    COMMIT AND NO CHAIN;
END;
