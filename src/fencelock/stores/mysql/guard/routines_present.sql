-- The guard's routines, second file: presenting a lease, and ending the transaction that presented it. store.py installs
-- the files in this order: schema, routines_checks, routines_present, routines_effects, routines_marks, routines_floors. Each
-- routine is dropped first if it exists, so that an interrupted installation can be repeated; the schema's number is written last,
-- and nobody calls a routine before.
--
-- To present a lease, a session locks the mark's row, shared, until the end of its transaction, compares the mark, and
-- records resource and token in @fencelock_presented, with a hash of the mark's stamp and of the session's number. Who has
-- no right to present cannot write that entry by hand, whatever it knows of the lease. A seal locks the row exclusively, so
-- it waits for all transactions that have presented, and they for it.
--
-- A session's variables outlive its transactions, so presenting does two more things. It sets a savepoint, which ends
-- with the transaction: the end checks by it that the transaction is still the same one. And it makes the session's next
-- transactions READ ONLY: after a stray or implicit COMMIT, or a deadlock, the server itself refuses every write until
-- the lease is taken back. Both servers have both, and neither writes anything.
--
-- READ ONLY has gaps: after a deadlock, SET autocommit, COMMIT AND CHAIN or START TRANSACTION READ WRITE a session goes
-- on read-write, without its shared lock on the mark. Therefore the triggers compare @fencelock_presented with the mark
-- for each row, read again and locked: what such a session writes is never a stale write, even if it commits that itself.
-- `fencelock_finish` and `fencelock_commit` do not find the savepoint then, and commit nothing.
--
-- Errors, each with its SQLSTATE at the beginning of its text: FL001 unfenced write, FL002 stale token, FL003 collision,
-- FL004 wrong lock or source, FL005 not sealed, FL006 inside a transaction where none may be open, outside one where one
-- must be, or inside an XA transaction, FL007 the guarded transaction ended before, FL008 a snapshot from before the
-- seal, FL009 a forbidden change of a mark, FL011 not a sequencer, FL012 an implausible token, FL013 a signature that is
-- missing or wrong, FL014 an account without a right, FL015 a mark that does not exist, FL017 a token that is not above
-- the floor of purged marks, FL018 a table that was rebuilt without its triggers. Lists of resources are hexadecimal,
-- separated by commas, in the order of their bytes.

-- name: fencelock_refuse_write
-- Raise the reason why a trigger refuses a row: the session has not presented the current mark. It reads no table, since
-- every statement that fires the trigger would have to open it. Never returns.
CREATE PROCEDURE fencelock_refuse_write(p_resource VARBINARY(512), m_token BIGINT)
NO SQL SQL SECURITY DEFINER
BEGIN
    DECLARE entry VARBINARY(2048) DEFAULT CONCAT(',', HEX(p_resource), '.');
    DECLARE message VARCHAR(1024) CHARACTER SET utf8mb4;
    IF LOCATE(entry, @fencelock_presented) > 0 THEN
        SET message = LEFT(CONCAT('FL002 token ', SUBSTRING_INDEX(SUBSTRING(
            @fencelock_presented, LOCATE(entry, @fencelock_presented) + LENGTH(entry)), '.', 1),
            ' at mark ', COALESCE(m_token, 0), ' of resource ', LEFT(CONVERT(p_resource USING utf8mb4), 30),
            ': the mark has changed since it was presented. Stop'), 128);
        SIGNAL SQLSTATE 'FL002' SET MESSAGE_TEXT = message;
    END IF;
    SET message = LEFT(CONCAT(
        'FL001 no token presented: use guard.transaction(lease), or CALL fencelock_present first. Resource: ',
        CONVERT(p_resource USING utf8mb4)), 128);
    SIGNAL SQLSTATE 'FL001' SET MESSAGE_TEXT = message;
END;

-- name: fencelock_check_snapshots
-- Refuse a transaction whose snapshot is older than the mark of one of these resources. The marks are locked by now.
CREATE PROCEDURE fencelock_check_snapshots(p_resources LONGTEXT CHARACTER SET ascii)
READS SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_resources;
    DECLARE wanted VARBINARY(512);
    DECLARE current_mark, seen_mark VARBINARY(128);
    DECLARE message VARCHAR(1024) CHARACTER SET utf8mb4;
    WHILE rest <> '' DO
        SET wanted = UNHEX(SUBSTRING_INDEX(rest, ',', 1)),
            rest = SUBSTRING(rest, LENGTH(SUBSTRING_INDEX(rest, ',', 1)) + 2);
        SET current_mark = (
            SELECT CONCAT_WS('.', COALESCE(mark.token, 0), COALESCE(mark.audit_id, 0), mark.digest)
            FROM fencelock_mark PARTITION (lasting) AS mark WHERE mark.resource = wanted LOCK IN SHARE MODE);
        -- A plain SELECT reads the snapshot; a SELECT inside SET would lock, and read the current row.
        SELECT MAX(CONCAT_WS('.', COALESCE(mark.token, 0), COALESCE(mark.audit_id, 0), mark.digest)) INTO seen_mark
        FROM fencelock_mark PARTITION (lasting) AS mark WHERE mark.resource = wanted;
        IF NOT current_mark <=> seen_mark THEN
            SET message = LEFT(CONCAT('FL008 the transaction''s snapshot is older than mark ',
                COALESCE(SUBSTRING_INDEX(current_mark, '.', 1), 0), ': roll back and begin again. Resource: ',
                CONVERT(wanted USING utf8mb4)), 128);
            SIGNAL SQLSTATE 'FL008' SET MESSAGE_TEXT = message;
        END IF;
    END WHILE;
END;

-- name: fencelock_check_transaction
-- Refuse a session outside a transaction: there a savepoint ends with its statement. Refuse an XA transaction too, which
-- is detected by the error of XA END with another name: XA PREPARE releases shared locks, and with them the marks.
CREATE PROCEDURE fencelock_check_transaction()
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE EXIT HANDLER FOR 1305
        SIGNAL SQLSTATE 'FL006' SET MESSAGE_TEXT =
            'FL006 not in a transaction, so a check would not hold for the next write: START TRANSACTION first';
    DECLARE EXIT HANDLER FOR 1397
        SIGNAL SQLSTATE 'FL006' SET MESSAGE_TEXT =
            'FL006 in an XA transaction, which unlocks the mark when it is prepared: use START TRANSACTION';
    BEGIN
        DECLARE EXIT HANDLER FOR 1399 BEGIN END;
        XA END 'fencelock check';
    END;
    SAVEPOINT fencelock_probe;
    RELEASE SAVEPOINT fencelock_probe;
END;

-- name: fencelock_bind
-- Tie what is presented next to the open transaction, and let the server end the session after it was idle for so long: a
-- holder that freezes inside a transaction must not block its successor (G3). A lower limit of the session's own stays.
-- MariaDB has limits for transactions, which take precedence over the one that both servers have.
CREATE PROCEDURE fencelock_bind(p_limit_s INT UNSIGNED)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    SAVEPOINT fencelock_presented;
    IF @fencelock_usual_wait IS NULL THEN
        SET @fencelock_usual_wait = @@session.wait_timeout,
            @fencelock_usual_read_only = /*M! @@session.tx_read_only */ /*!80003 @@session.transaction_read_only */
            /*M!100300
            , @fencelock_usual_idle = @@session.idle_transaction_timeout,
            @fencelock_usual_idle_write = @@session.idle_write_transaction_timeout,
            @fencelock_usual_idle_readonly = @@session.idle_readonly_transaction_timeout */;
    END IF;
    SET SESSION TRANSACTION READ ONLY;
    IF p_limit_s IS NOT NULL THEN
        SET SESSION wait_timeout = LEAST(@fencelock_usual_wait, p_limit_s)
            /*M!100300
            , SESSION idle_transaction_timeout = LEAST(COALESCE(NULLIF(@fencelock_usual_idle, 0), p_limit_s), p_limit_s),
            SESSION idle_write_transaction_timeout =
                LEAST(COALESCE(NULLIF(@fencelock_usual_idle_write, 0), p_limit_s), p_limit_s),
            SESSION idle_readonly_transaction_timeout =
                LEAST(COALESCE(NULLIF(@fencelock_usual_idle_readonly, 0), p_limit_s), p_limit_s) */;
    END IF;
END;

-- name: fencelock_unbind
-- Restore the session's settings. What is presented goes first: if the server breaks this off, no later transaction of the
-- session writes by it.
CREATE PROCEDURE fencelock_unbind()
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    SET @fencelock_presented = NULL;
    IF @fencelock_usual_wait IS NOT NULL THEN
        SET SESSION wait_timeout = @fencelock_usual_wait
            /*M!100300
            , SESSION idle_transaction_timeout = @fencelock_usual_idle,
            SESSION idle_write_transaction_timeout = @fencelock_usual_idle_write,
            SESSION idle_readonly_transaction_timeout = @fencelock_usual_idle_readonly */;
        IF NOT @fencelock_usual_read_only THEN
            SET SESSION TRANSACTION READ WRITE;
        END IF;
    END IF;
    SET @fencelock_usual_wait = NULL;
END;

-- name: fencelock_join
-- Bind the caller's own transaction, unless it is bound already. What an earlier transaction of the session has
-- presented, and did not take back, is void.
CREATE PROCEDURE fencelock_join(p_limit_s INT UNSIGNED)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE is_bound BOOLEAN DEFAULT TRUE;
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 SET is_bound = FALSE;
        RELEASE SAVEPOINT fencelock_presented;
    END;
    CALL fencelock_check_transaction();
    -- Reading a table begins a transaction if BEGIN is implicit, before `bind` sets what applies to the next one.
    IF (SELECT COUNT(*) FROM fencelock_guard PARTITION (lasting) WHERE id = 1 LOCK IN SHARE MODE)
        AND NOT (is_bound AND @fencelock_presented <> '') THEN
        SET @fencelock_presented = ',';
    END IF;
    CALL fencelock_bind(p_limit_s);
END;

-- name: fencelock_open
-- Begin the user's transaction on a connection of the guard's own, and admit its writes; there is a result only if some
-- resources have another mark. Every guarded transaction waits for this, so it is one routine, and it does not save the
-- session's settings, since it sets them each time. (MariaDB's limits apply to transactions only; `fencelock_finish`
-- lifts the other one.)
CREATE PROCEDURE fencelock_open(
    p_resources LONGTEXT CHARACTER SET ascii, p_lock VARBINARY(512), p_token BIGINT, p_proof VARBINARY(96),
    p_source_id VARBINARY(64), p_history_id VARBINARY(64), p_limit_s INT UNSIGNED)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE v_digest VARBINARY(64);
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_resources;
    DECLARE others LONGTEXT CHARACTER SET ascii;
    DECLARE wanted VARCHAR(1024) CHARACTER SET ascii;
    DECLARE entry VARBINARY(2048);
    START TRANSACTION READ WRITE;
    SAVEPOINT fencelock_presented;
    CALL fencelock_unmask(p_proof);
    SET v_digest = ONE_WAY(p_proof);
    SET SESSION TRANSACTION READ ONLY;
    SET @fencelock_presented = ','
        /*M!100300
        , SESSION idle_transaction_timeout = LEAST(COALESCE(NULLIF(@@global.idle_transaction_timeout, 0), p_limit_s), p_limit_s),
        SESSION idle_write_transaction_timeout =
            LEAST(COALESCE(NULLIF(@@global.idle_write_transaction_timeout, 0), p_limit_s), p_limit_s),
        SESSION idle_readonly_transaction_timeout =
            LEAST(COALESCE(NULLIF(@@global.idle_readonly_transaction_timeout, 0), p_limit_s), p_limit_s) */
        /*!80003 , SESSION wait_timeout = LEAST(@@global.wait_timeout, p_limit_s) */;
    WHILE rest <> '' DO
        SET wanted = SUBSTRING_INDEX(rest, ',', 1), rest = SUBSTRING(rest, LENGTH(wanted) + 2);
        SET entry = (
            SELECT PRESENTED(wanted, mark.token, mark.stamp) FROM fencelock_mark PARTITION (lasting) AS mark
            WHERE mark.resource = UNHEX(wanted) AND mark.token = p_token AND mark.digest = v_digest
                AND mark.lock_name = p_lock AND mark.source_id = p_source_id AND mark.history_id = p_history_id
                AND NOT mark.is_closed
            LOCK IN SHARE MODE);
        CALL fencelock_check_right(UNHEX(wanted), FALSE);
        IF entry IS NOT NULL THEN
            SET @fencelock_presented = CONCAT(@fencelock_presented, entry);
        ELSE
            SET others = CONCAT_WS(',', others, wanted);
        END IF;
    END WHILE;
    IF others IS NOT NULL THEN
        SELECT others;
    ELSEIF NOT @fencelock_whole <=> CONCAT(UNIX_TIMESTAMP(SYSDATE()), ',', p_resources) THEN
        CALL fencelock_check_tables(p_resources);
    END IF;
END;

-- name: fencelock_finish
-- Commit the user's transaction, unless another one is open by now.
CREATE PROCEDURE fencelock_finish()
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE EXIT HANDLER FOR 1305
    BEGIN
        CALL fencelock_unbind();
        SIGNAL SQLSTATE 'FL007' SET MESSAGE_TEXT =
            'FL007 the guarded transaction has already ended: what was written since then is not committed';
    END;
    RELEASE SAVEPOINT fencelock_presented;
    SET @fencelock_presented = NULL /*!80003 , SESSION wait_timeout = @@global.wait_timeout */;
    COMMIT;
END;

-- name: fencelock_offer
-- Admit the writes of the caller's own transaction to each resource whose open mark is exactly this lease's, if its
-- snapshot is not older than the marks; the result is the other resources. The marks stay locked, shared, until it ends.
CREATE PROCEDURE fencelock_offer(
    p_resources LONGTEXT CHARACTER SET ascii, p_lock VARBINARY(512), p_token BIGINT, p_proof VARBINARY(96),
    p_source_id VARBINARY(64), p_history_id VARBINARY(64), p_limit_s INT UNSIGNED)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE v_digest VARBINARY(64);
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_resources;
    DECLARE others LONGTEXT CHARACTER SET ascii DEFAULT '';
    DECLARE wanted VARCHAR(1024) CHARACTER SET ascii;
    DECLARE entries LONGTEXT CHARACTER SET ascii DEFAULT '';
    DECLARE entry VARBINARY(2048);
    CALL fencelock_join(p_limit_s);
    CALL fencelock_unmask(p_proof);
    SET v_digest = ONE_WAY(p_proof);
    WHILE rest <> '' DO
        SET wanted = SUBSTRING_INDEX(rest, ',', 1), rest = SUBSTRING(rest, LENGTH(wanted) + 2);
        SET entry = (
            SELECT PRESENTED(wanted, mark.token, mark.stamp) FROM fencelock_mark PARTITION (lasting) AS mark
            WHERE mark.resource = UNHEX(wanted) AND mark.token = p_token AND mark.digest = v_digest
                AND mark.lock_name = p_lock AND mark.source_id = p_source_id AND mark.history_id = p_history_id
                AND NOT mark.is_closed
            LOCK IN SHARE MODE);
        CALL fencelock_check_right(UNHEX(wanted), FALSE);
        IF entry IS NOT NULL THEN
            SET entries = CONCAT(entries, entry);
        ELSE
            SET others = CONCAT_WS(',', NULLIF(others, ''), wanted);
        END IF;
    END WHILE;
    CALL fencelock_check_snapshots(p_resources);
    IF others = '' AND NOT @fencelock_whole <=> CONCAT(UNIX_TIMESTAMP(SYSDATE()), ',', p_resources) THEN
        CALL fencelock_check_tables(p_resources);
    END IF;
    -- Last: a caller that goes on after a refusal has presented nothing.
    SET @fencelock_presented = CONCAT(@fencelock_presented, entries);
    SELECT others;
END;

-- name: fencelock_take_back
-- Take back what was presented to these resources (NULL: to all), whose marks stay locked; an error if the transaction is
-- not the one that presented; the savepoint may be that of another block, which began after a deadlock. The result names the
-- resources, so that no client takes another reply for this one.
CREATE PROCEDURE fencelock_take_back(p_resources LONGTEXT CHARACTER SET ascii)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT COALESCE(p_resources, '');
    DECLARE found_at BIGINT;
    DECLARE is_bound BOOLEAN DEFAULT TRUE;
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 SET is_bound = FALSE;
        RELEASE SAVEPOINT fencelock_presented;
    END;
    WHILE rest <> '' DO
        SET found_at = LOCATE(CONCAT(',', SUBSTRING_INDEX(rest, ',', 1), '.'), @fencelock_presented),
            rest = SUBSTRING(rest, LENGTH(SUBSTRING_INDEX(rest, ',', 1)) + 2);
        IF found_at > 0 THEN
            SET @fencelock_presented = INSERT(
                @fencelock_presented, found_at, LOCATE(',', @fencelock_presented, found_at + 1) - found_at, '');
        ELSE
            SET is_bound = FALSE;
        END IF;
    END WHILE;
    IF NOT is_bound OR p_resources IS NULL OR COALESCE(@fencelock_presented, ',') = ',' THEN
        CALL fencelock_unbind();
    ELSE
        SAVEPOINT fencelock_presented;
    END IF;
    IF NOT is_bound THEN
        SIGNAL SQLSTATE 'FL007' SET MESSAGE_TEXT =
            'FL007 the guarded transaction has already ended, or was rolled back to a point before its start';
    END IF;
    IF p_resources IS NOT NULL THEN
        SELECT 'taken back', p_resources;
    END IF;
END;

-- name: fencelock_withdraw
-- Take back all that was presented, for a client that sends COMMIT itself.
CREATE PROCEDURE fencelock_withdraw()
MODIFIES SQL DATA SQL SECURITY DEFINER
CALL fencelock_take_back(NULL);

-- name: fencelock_commit
-- Take back all that was presented, and commit, unless another transaction is open by now.
CREATE PROCEDURE fencelock_commit()
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE EXIT HANDLER FOR 1305
    BEGIN
        CALL fencelock_unbind();
        SIGNAL SQLSTATE 'FL007' SET MESSAGE_TEXT =
            'FL007 the guarded transaction has already ended: what was written since then is not committed';
    END;
    RELEASE SAVEPOINT fencelock_presented;
    CALL fencelock_unbind();
    COMMIT;
END;

-- name: fencelock_rollback
-- Roll back the transaction, and take back all that was presented.
CREATE PROCEDURE fencelock_rollback()
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    ROLLBACK;
    CALL fencelock_unbind();
END;
