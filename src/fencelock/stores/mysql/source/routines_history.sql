-- The source's routines, second file: its histories, and what operators do.

-- name: create_describe
-- The source's identity and counter, and the key with which the session masks claims and proofs. The server shows the text
-- of each statement to other sessions of the account, and in a routine with the values of its variables: so the key is in
-- a result only, and in a variable of the session.
CREATE PROCEDURE fencelock_describe() SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
    CALL fencelock_begin_reading();
    SELECT schema_number, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), source_id, epoch, history_id, token,
           CONVERT(@fencelock_mask := COALESCE(@fencelock_mask, SHA2(CONCAT_WS(
               '.', mask_secret, CONNECTION_ID(), UUID(), SYSDATE(6)), 256)) USING ascii)
    FROM fencelock_source PARTITION (lasting) WHERE id = 1;
    COMMIT AND NO CHAIN;
END;

-- name: create_raise_epoch
-- Begin a history above every token of the old one, if that is still the one that was read; every lease ends, since each
-- belongs to an epoch. The new history begins at a multiple of 2**40, above every token that is known here, and, where
-- the clocks are right, above what another server issued that knew more than this one: 2**30 tokens for each second.
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
    FROM fencelock_source PARTITION (lasting) WHERE id = 1 FOR UPDATE;
    IF NOT v_history_id <=> p_old THEN
        ROLLBACK;
        LEAVE raising;
    END IF;
    SET v_now_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)),
        v_clock = (v_now_us DIV 1000000 - 1767225600) * 1073741824;
    SELECT GREATEST(v_highest, p_seen, COALESCE(MAX(token), 0), IF(v_clock > 4611686018427387904, 0, v_clock)),
           GREATEST(v_now_us, v_past_us, COALESCE(MAX(GREATEST(born_us, ended_us, forgotten_us)), 0))
    INTO v_highest, v_past_us FROM fencelock_lock PARTITION (lasting);
    SELECT GREATEST(v_past_us, COALESCE(MAX(born_us), 0)) INTO v_past_us FROM fencelock_waiter PARTITION (lasting);
    IF v_highest >= 9223372036854775807 - 2 * 1099511627776 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'fencelock: no token is left above this epoch';
    END IF;
    SET v_highest = (v_highest DIV 1099511627776 + 1) * 1099511627776;
    INSERT INTO fencelock_source_audit PARTITION (lasting) (happened_at, account, who, what, token, reason)
    VALUES (SYSDATE(6), USER(), p_who, 'raise epoch', v_highest, p_reason);
    UPDATE fencelock_source PARTITION (lasting) SET
        epoch = epoch + 1, history_id = p_fresh, token = v_highest, born_after_us = v_past_us, began_because = p_reason
    WHERE id = 1;
    COMMIT AND NO CHAIN;
    CALL fencelock_describe();
END;

-- name: create_break
-- Free a lock, and mint the breaker's token. Repeated with the same claim it breaks no second lease; it does what a call
-- that the server broke off has left, as long as the lock has no higher token.
CREATE PROCEDURE fencelock_break(
    IN p_lock VARBINARY(512), IN p_digest VARCHAR(64) CHARACTER SET ascii, IN p_who VARCHAR(512) CHARACTER SET utf8mb4,
    IN p_reason TEXT CHARACTER SET utf8mb4)
SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
    DECLARE v_key_id, v_source_id, v_history_id, v_signature VARCHAR(64) CHARACTER SET ascii;
    DECLARE v_token, v_epoch, v_now_us BIGINT;
    DECLARE v_holder VARCHAR(512) CHARACTER SET utf8mb4;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF @@session.time_zone <> '+00:00' OR /*M! @@session.tx_isolation */ /*!80003 @@session.transaction_isolation */
       <> 'READ-COMMITTED' OR CONCAT(@@global.read_only) NOT IN ('0', 'OFF') THEN
        CALL fencelock_refuse_session();
    END IF;
    IF p_digest IS NULL THEN
        CALL fencelock_refuse_claim();
    END IF;
    START TRANSACTION;
    CALL fencelock_hold_lock(p_lock);
    SELECT token, holder INTO v_token, v_holder
    FROM fencelock_source_audit PARTITION (lasting) WHERE digest = p_digest AND lock_name = p_lock;
    IF v_token IS NULL THEN
        UPDATE fencelock_source PARTITION (lasting) SET token = LAST_INSERT_ID(token + 1) WHERE id = 1;
        IF ROW_COUNT() <> 1 THEN
            CALL fencelock_refuse_break_off();
        END IF;
        SET v_token = LAST_INSERT_ID(), v_now_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
        SELECT epoch INTO v_epoch FROM fencelock_source PARTITION (lasting) WHERE id = 1;
        SELECT holder INTO v_holder FROM fencelock_lock PARTITION (lasting)
        WHERE name = p_lock AND digest IS NOT NULL AND epoch = v_epoch AND deadline_us > v_now_us;
        INSERT INTO fencelock_source_audit PARTITION (lasting) (
            happened_at, account, who, what, lock_name, token, reason, holder, digest)
        VALUES (SYSDATE(6), USER(), p_who, 'break', p_lock, v_token, p_reason, v_holder, p_digest);
    END IF;
    -- The holder's claim ends here. (Assigned from left to right: the row remembers it before it forgets the holder.)
    UPDATE fencelock_lock PARTITION (lasting) SET
        forgotten_us = IF(digest IS NULL, forgotten_us, GREATEST(forgotten_us, ended_us)),
        ended_us = IF(digest IS NULL, ended_us, GREATEST(
            TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), born_us)),
        ended_digest = COALESCE(digest, ended_digest), token = v_token, digest = NULL, holder = NULL, deadline_us = 0,
        ended = CONCAT(p_who, ' broke it: ', p_reason)
    WHERE name = p_lock AND COALESCE(token, 0) < v_token;
    COMMIT AND NO CHAIN;
    SELECT source_id, history_id INTO v_source_id, v_history_id FROM fencelock_source PARTITION (lasting) WHERE id = 1;
    CALL fencelock_newest_key(v_key_id);
    IF v_key_id IS NOT NULL THEN
        CALL fencelock_sign(p_lock, p_digest, v_token, v_history_id, v_key_id, v_signature);
    END IF;
    SELECT v_token, v_source_id, v_history_id, v_holder, v_key_id, v_signature;
END;

-- name: create_add_key
-- Keep a key, which signs in so many seconds by this server's clock, and have the grants use it. A repeated request
-- changes nothing. With the caller's rights: only the owner of the tables can.
CREATE PROCEDURE fencelock_add_key(
    IN p_key_id VARCHAR(64) CHARACTER SET ascii, IN p_secret VARBINARY(512), IN p_inner_pad BINARY(64),
    IN p_outer_pad BINARY(64), IN p_after_s BIGINT)
SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    START TRANSACTION;
    INSERT INTO fencelock_source_key PARTITION (lasting) (key_id, secret, inner_pad, outer_pad, not_before_s)
    VALUES (p_key_id, p_secret, p_inner_pad, p_outer_pad, TIMESTAMPDIFF(SECOND, '1970-01-01', SYSDATE(6)) + p_after_s)
    ON DUPLICATE KEY UPDATE key_id = p_key_id;
    CALL fencelock_choose_key();
    COMMIT AND NO CHAIN;
END;

-- name: create_retire_key
-- Sign with a key no more. With the caller's rights, as `fencelock_add_key`.
CREATE PROCEDURE fencelock_retire_key(IN p_key_id VARCHAR(64) CHARACTER SET ascii) SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    START TRANSACTION;
    UPDATE fencelock_source_key PARTITION (lasting)
    SET retired_s = COALESCE(retired_s, TIMESTAMPDIFF(SECOND, '1970-01-01', SYSDATE(6))) WHERE key_id = p_key_id;
    CALL fencelock_choose_key();
    COMMIT AND NO CHAIN;
END;

-- name: create_check
-- The time left of the lease with this proof, 0 if it does not hold the lock, and the lock's last token; no row for an
-- unknown lock.
CREATE PROCEDURE fencelock_check(
    IN p_lock VARBINARY(512), IN p_history_id VARCHAR(64) CHARACTER SET ascii, IN p_proof VARCHAR(64) CHARACTER SET ascii)
SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
    DECLARE v_proof VARCHAR(64) CHARACTER SET ascii DEFAULT REVEAL(p_proof, MASK_PAD(p_proof, @fencelock_mask));
    DECLARE v_digest VARCHAR(64) CHARACTER SET ascii DEFAULT ONE_WAY(v_proof);
    IF IS_UNREADABLE(p_proof, v_proof, @fencelock_mask) THEN
        CALL fencelock_refuse_mask();
    END IF;
    CALL fencelock_begin_reading();
    SELECT IF(l.digest = v_digest AND l.epoch = s.epoch AND s.history_id = p_history_id, GREATEST(0, LEAST(
               l.deadline_us - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), l.ttl_ms * 1000)) DIV 1000, 0),
           l.token
    FROM fencelock_lock PARTITION (lasting) AS l JOIN fencelock_source PARTITION (lasting) AS s ON s.id = 1
        WHERE l.name = p_lock;
    COMMIT AND NO CHAIN;
END;

-- name: create_purge
-- Forget locks without holder and waiters; their tokens stay spent (T6), and every claim drawn until now is refused. Rows
-- that another transaction has locked are skipped, and the source's row is locked after them: a claim of these locks that
-- ends now does so before the time is remembered, or after everything. The time comes before the deletions, which would
-- otherwise let late claims in if the server breaks this off. So each part is small: every grant waits for the source's row.
CREATE PROCEDURE fencelock_purge() SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
    DECLARE v_name, v_held, v_last VARBINARY(512) DEFAULT '';
    DECLARE v_chosen LONGTEXT CHARACTER SET ascii;
    DECLARE v_epoch, v_now_us, v_past_us, v_found, v_gone BIGINT DEFAULT 0;
    DECLARE v_is_over BOOLEAN DEFAULT FALSE;
    DECLARE free CURSOR FOR
        SELECT l.name FROM fencelock_lock PARTITION (lasting) AS l
        WHERE (l.digest IS NULL OR l.epoch <> v_epoch OR l.deadline_us <= v_now_us)
          AND NOT EXISTS (SELECT 1 FROM fencelock_waiter PARTITION (lasting) AS q
                          WHERE q.lock_name = l.name AND q.epoch = v_epoch AND q.deadline_us > v_now_us)
          AND l.name > v_last
        ORDER BY l.name LIMIT 100;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_is_over = TRUE;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    IF @@session.time_zone <> '+00:00' OR /*M! @@session.tx_isolation */ /*!80003 @@session.transaction_isolation */
       <> 'READ-COMMITTED' OR CONCAT(@@global.read_only) NOT IN ('0', 'OFF') THEN
        CALL fencelock_refuse_session();
    END IF;
    REPEAT
        START TRANSACTION;
        SELECT epoch, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), '', 0, 0
        INTO v_epoch, v_now_us, v_chosen, v_past_us, v_found FROM fencelock_source PARTITION (lasting) WHERE id = 1;
        OPEN free;
        going: LOOP
            SET v_is_over = FALSE;
            FETCH free INTO v_name;
            IF v_is_over THEN
                LEAVE going;
            END IF;
            SET v_found = v_found + 1, v_last = v_name, v_held = NULL;
            -- The epoch may have been raised since it was read.
            SELECT l.name INTO v_held FROM fencelock_lock PARTITION (lasting) AS l
            WHERE l.name = v_name AND (l.digest IS NULL OR l.epoch < v_epoch OR l.deadline_us <= v_now_us)
            FOR UPDATE SKIP LOCKED;
            -- With the row locked, nobody joins its queue; someone may have joined since the cursor read it.
            IF v_held IS NOT NULL AND NOT EXISTS (
                SELECT 1 FROM fencelock_waiter PARTITION (lasting)
                WHERE lock_name = v_name AND epoch >= v_epoch AND deadline_us > v_now_us) THEN
                SELECT GREATEST(v_past_us, born_us, ended_us, forgotten_us) INTO v_past_us
                FROM fencelock_lock PARTITION (lasting) WHERE name = v_name;
                SELECT GREATEST(v_past_us, COALESCE(MAX(born_us), 0)) INTO v_past_us
                FROM fencelock_waiter PARTITION (lasting) WHERE lock_name = v_name;
                SET v_chosen = CONCAT(v_chosen, HEX(v_name), ','), v_gone = v_gone + 1;
            END IF;
        END LOOP;
        CLOSE free;
        UPDATE fencelock_source PARTITION (lasting)
        SET born_after_us = GREATEST(born_after_us, v_past_us, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)))
        WHERE id = 1;
        WHILE v_chosen <> '' DO
            SET v_name = UNHEX(SUBSTRING_INDEX(v_chosen, ',', 1)),
                v_chosen = SUBSTRING(v_chosen, LOCATE(',', v_chosen) + 1);
            DELETE FROM fencelock_waiter PARTITION (lasting) WHERE lock_name = v_name;
            DELETE FROM fencelock_lock PARTITION (lasting) WHERE name = v_name;
        END WHILE;
        COMMIT AND NO CHAIN;
    UNTIL v_found < 100 END REPEAT;
    SELECT v_gone, born_after_us + 1 FROM fencelock_source PARTITION (lasting) WHERE id = 1;
END;

-- name: create_inspect
-- Locks as people see them, ordered by name: one, or a page of those after a name. One row for each lock and waiter, in
-- the order of the queue. A time left is rounded up, so that a lock with less than a millisecond left is still held.
CREATE PROCEDURE fencelock_inspect(IN p_lock VARBINARY(512), IN p_after VARBINARY(512), IN p_page BIGINT)
SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
    DECLARE v_epoch, v_now_us BIGINT;
    CALL fencelock_begin_reading();
    SELECT epoch, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) INTO v_epoch, v_now_us
    FROM fencelock_source PARTITION (lasting) WHERE id = 1;
    SELECT l.name, l.token, l.holder,
           IF(l.digest IS NULL OR l.epoch <> v_epoch, 0,
              (GREATEST(0, LEAST(l.deadline_us - v_now_us, l.ttl_ms * 1000)) + 999) DIV 1000),
           l.ttl_ms, q.holder
    FROM (SELECT name, token, holder, digest, epoch, deadline_us, ttl_ms FROM fencelock_lock PARTITION (lasting)
          WHERE token IS NOT NULL AND (name = p_lock OR name > p_after) ORDER BY name LIMIT p_page) AS l
    LEFT JOIN fencelock_waiter PARTITION (lasting) AS q
        ON q.lock_name = l.name AND q.epoch = v_epoch AND q.deadline_us > v_now_us
    ORDER BY l.name, q.ticket;
    COMMIT AND NO CHAIN;
END;
