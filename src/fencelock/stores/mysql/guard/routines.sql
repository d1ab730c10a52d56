-- What the guard does inside the database, after guard_schema.sql. Each routine is dropped first if it is there, so that an
-- installation which was broken off can be begun anew; the number of the schema comes last, and until then nobody calls one.
--
-- A session presents a lease: it locks the mark's row, shared, until the end of its transaction, compares the mark, and
-- leaves a note in @fencelock_presented. A seal locks the row alone, so it waits for all who have presented, and they for it.
--
-- Variables of a session outlive its transactions. So whoever presents gets two things besides. A savepoint, which is gone
-- with the transaction: by it the end finds out that it is still the same one. And a session whose next transactions are
-- READ ONLY: after a stray COMMIT, an implicit one or a deadlock, the server itself refuses every write, until what was
-- presented is taken back. Both servers have both, and neither writes anything.
--
-- The second has gaps: after a deadlock, SET autocommit, COMMIT AND CHAIN or START TRANSACTION READ WRITE a session goes on
-- read-write, without its share of the mark. So the note is token and claim, and the triggers compare them with the mark, read
-- anew and locked, for each row: what such a session writes is no stale write, even if it commits that itself.
-- `fencelock_finish` and `fencelock_commit` miss the savepoint there, and commit nothing.
--
-- Errors, each with its SQLSTATE at the beginning of its text: FL001 unfenced write, FL002 stale token, FL003 collision,
-- FL004 wrong lock or source, FL005 not sealed, FL006 a transaction where none may be, or none, or XA's, where one must be, FL007 a
-- transaction that ended before, FL008 a snapshot from before the seal, FL009 a mark that would not be kept, FL011 no
-- sequencer. Lists of resources are hexadecimal, with commas, in the order of their bytes.

-- name: fencelock_refuse
-- Say why a lease is not admitted to a resource whose mark is another. Never returns.
CREATE PROCEDURE fencelock_refuse(
    p_resource VARBINARY(512), p_lock VARBINARY(512), p_token BIGINT, p_claim VARBINARY(64), p_source_id VARBINARY(64),
    p_history_id VARBINARY(64))
READS SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE m_lock VARBINARY(512);
    DECLARE m_token BIGINT;
    DECLARE m_source_id, m_history_id, m_claim VARBINARY(64);
    DECLARE said VARCHAR(1024) CHARACTER SET utf8mb4;
    SELECT lock_name, token, source_id, history_id, claim INTO m_lock, m_token, m_source_id, m_history_id, m_claim
    FROM fencelock_mark WHERE resource = p_resource LOCK IN SHARE MODE;
    SET said = CONCAT('token ', p_token, ' at mark ', COALESCE(m_token, 0), ' of resource ',
        LEFT(CONVERT(p_resource USING utf8mb4), 30), ': ');
    IF m_lock <> p_lock THEN
        SET said = LEFT(CONCAT('FL004 ', said, 'it is bound to another lock: see fencelock rebind'), 128);
        SIGNAL SQLSTATE 'FL004' SET MESSAGE_TEXT = said;
    ELSEIF m_source_id <> p_source_id THEN
        SET said = LEFT(CONCAT('FL004 ', said, 'it is bound to another source: see fencelock rebind'), 128);
        SIGNAL SQLSTATE 'FL004' SET MESSAGE_TEXT = said;
    ELSEIF m_token IS NULL OR m_token < p_token THEN
        SET said = LEFT(CONCAT('FL005 ', said, 'this token has not sealed it, or its seal got lost'), 128);
        SIGNAL SQLSTATE 'FL005' SET MESSAGE_TEXT = said;
    ELSEIF m_token > p_token THEN
        SET said = LEFT(CONCAT('FL002 ', said, 'a newer holder has sealed it. Stop'), 128);
        SIGNAL SQLSTATE 'FL002' SET MESSAGE_TEXT = said;
    ELSEIF m_claim IS NULL THEN
        SET said = LEFT(CONCAT('FL002 ', said, 'an operator has raised it. Stop'), 128);
        SIGNAL SQLSTATE 'FL002' SET MESSAGE_TEXT = said;
    ELSEIF m_claim <> p_claim OR m_history_id <> p_history_id THEN
        SET said = LEFT(CONCAT('FL003 ', said, 'another lease has sealed with this token'), 128);
        SIGNAL SQLSTATE 'FL003' SET MESSAGE_TEXT = said;
    END IF;
    SET said = LEFT(CONCAT('FL002 ', said, 'its own holder closed it'), 128);
    SIGNAL SQLSTATE 'FL002' SET MESSAGE_TEXT = said;
END;

-- name: fencelock_refuse_write
-- Say why a row is not admitted, whose trigger has found that the session has not presented what the mark is now. It reads no
-- table: every statement that meets the trigger would open it. Never returns.
CREATE PROCEDURE fencelock_refuse_write(p_resource VARBINARY(512), m_token BIGINT)
NO SQL SQL SECURITY DEFINER
BEGIN
    DECLARE entry VARBINARY(2048) DEFAULT CONCAT(',', HEX(p_resource), '.');
    DECLARE said VARCHAR(1024) CHARACTER SET utf8mb4;
    IF LOCATE(entry, @fencelock_presented) > 0 THEN
        SET said = LEFT(CONCAT('FL002 token ', SUBSTRING_INDEX(SUBSTRING(
            @fencelock_presented, LOCATE(entry, @fencelock_presented) + LENGTH(entry)), '.', 1),
            ' at mark ', COALESCE(m_token, 0), ' of resource ', LEFT(CONVERT(p_resource USING utf8mb4), 30),
            ': it was presented, and is not the mark any more. Stop'), 128);
        SIGNAL SQLSTATE 'FL002' SET MESSAGE_TEXT = said;
    END IF;
    SET said = LEFT(CONCAT(
        'FL001 no token presented: use guard.transaction(lease), or CALL fencelock_present first. Resource: ',
        CONVERT(p_resource USING utf8mb4)), 128);
    SIGNAL SQLSTATE 'FL001' SET MESSAGE_TEXT = said;
END;

-- name: fencelock_read_marks
-- The marks that are known of these resources, one result each, held still: 'shared'; 'alone', for whoever is about to write
-- them; or 'alone unless ours', for whoever writes only what is not this claim's: others of one lease do not wait for each
-- other then. A claim is shown to those who know it, and any other one as '*'.
CREATE PROCEDURE fencelock_read_marks(p_resources LONGTEXT CHARACTER SET ascii, p_claim VARBINARY(64), p_hold VARCHAR(20))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_resources;
    DECLARE wanted VARBINARY(512);
    DECLARE known, ours INT;
    WHILE rest <> '' DO
        SET wanted = UNHEX(SUBSTRING_INDEX(rest, ',', 1)),
            rest = SUBSTRING(rest, LENGTH(SUBSTRING_INDEX(rest, ',', 1)) + 2);
        -- A look without a lock. (In the condition of an IF it would lock, and two who look would wait in a circle.)
        SELECT COUNT(*), COALESCE(SUM(mark.claim = p_claim AND NOT mark.is_closed), 0) INTO known, ours
        FROM fencelock_mark AS mark WHERE mark.resource = wanted;
        IF p_hold = 'alone' OR (p_hold = 'alone unless ours' AND NOT ours) THEN
            IF NOT known THEN
                INSERT INTO fencelock_mark (resource) VALUES (wanted) ON DUPLICATE KEY UPDATE audit_id = audit_id;
            END IF;
            SELECT mark.resource, mark.lock_name, COALESCE(mark.token, 0), mark.source_id, mark.history_id,
                CASE WHEN mark.claim = p_claim THEN mark.claim WHEN mark.claim IS NOT NULL THEN '*' END, mark.is_closed
            FROM fencelock_mark AS mark WHERE mark.resource = wanted FOR UPDATE;
        ELSE
            SELECT mark.resource, mark.lock_name, COALESCE(mark.token, 0), mark.source_id, mark.history_id,
                CASE WHEN mark.claim = p_claim THEN mark.claim WHEN mark.claim IS NOT NULL THEN '*' END, mark.is_closed
            FROM fencelock_mark AS mark WHERE mark.resource = wanted LOCK IN SHARE MODE;
        END IF;
    END WHILE;
END;

-- name: fencelock_check_snapshots
-- Refuse a transaction that looks at one of these resources as it was before its mark was raised. The marks are held by now.
CREATE PROCEDURE fencelock_check_snapshots(p_resources LONGTEXT CHARACTER SET ascii)
READS SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_resources;
    DECLARE wanted VARBINARY(512);
    DECLARE current_mark, seen_mark VARBINARY(128);
    DECLARE said VARCHAR(1024) CHARACTER SET utf8mb4;
    WHILE rest <> '' DO
        SET wanted = UNHEX(SUBSTRING_INDEX(rest, ',', 1)),
            rest = SUBSTRING(rest, LENGTH(SUBSTRING_INDEX(rest, ',', 1)) + 2);
        SET current_mark = (
            SELECT CONCAT_WS('.', COALESCE(mark.token, 0), COALESCE(mark.audit_id, 0), mark.claim)
            FROM fencelock_mark AS mark WHERE mark.resource = wanted LOCK IN SHARE MODE);
        -- SELECT alone reads the snapshot; a SELECT inside SET would lock, and read what is there now.
        SELECT MAX(CONCAT_WS('.', COALESCE(mark.token, 0), COALESCE(mark.audit_id, 0), mark.claim)) INTO seen_mark
        FROM fencelock_mark AS mark WHERE mark.resource = wanted;
        IF NOT current_mark <=> seen_mark THEN
            SET said = LEFT(CONCAT('FL008 the transaction looks at the time before mark ',
                COALESCE(SUBSTRING_INDEX(current_mark, '.', 1), 0), ': begin it anew. Resource: ',
                CONVERT(wanted USING utf8mb4)), 128);
            SIGNAL SQLSTATE 'FL008' SET MESSAGE_TEXT = said;
        END IF;
    END WHILE;
END;

-- name: fencelock_check_transaction
-- Refuse a session that is in no transaction: a savepoint does not outlive its statement there. And one that is in an XA
-- transaction, where XA END has another name than ours: PREPARE lets go of what is locked to be shared, and the marks are.
CREATE PROCEDURE fencelock_check_transaction()
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE EXIT HANDLER FOR 1305
        SIGNAL SQLSTATE 'FL006' SET MESSAGE_TEXT = 'FL006 in no transaction: a check is worth nothing a moment later. START TRANSACTION first';
    DECLARE EXIT HANDLER FOR 1397
        SIGNAL SQLSTATE 'FL006' SET MESSAGE_TEXT = 'FL006 in an XA transaction, which holds no mark once it is prepared: use START TRANSACTION';
    BEGIN
        DECLARE EXIT HANDLER FOR 1399 BEGIN END;
        XA END 'fencelock looks';
    END;
    SAVEPOINT fencelock_probe;
    RELEASE SAVEPOINT fencelock_probe;
END;

-- name: fencelock_check_marks
-- What a caller's own transaction finds: the marks, held still, one result each, if it looks at nothing older.
CREATE PROCEDURE fencelock_check_marks(p_resources LONGTEXT CHARACTER SET ascii, p_claim VARBINARY(64))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    CALL fencelock_check_transaction();
    CALL fencelock_read_marks(p_resources, p_claim, 'shared');
    CALL fencelock_check_snapshots(p_resources);
END;

-- name: fencelock_bind
-- Tie what is presented from here on to the open transaction, and have the server end the session once it was idle for so
-- long: a holder that is frozen in a transaction must not keep its successor waiting (G3). A limit of the session's own that
-- is lower stays. MariaDB has limits for transactions, which go before the one that both servers have.
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
-- Give the session back as it was.
CREATE PROCEDURE fencelock_unbind()
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
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
    SET @fencelock_presented = NULL, @fencelock_usual_wait = NULL;
END;

-- name: fencelock_join
-- Bind the caller's own transaction, unless it is bound already. What an earlier transaction of the session has presented,
-- and did not take back, counts no more.
CREATE PROCEDURE fencelock_join(p_limit_s INT UNSIGNED)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE is_bound BOOLEAN DEFAULT TRUE;
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 SET is_bound = FALSE;
        RELEASE SAVEPOINT fencelock_presented;
    END;
    CALL fencelock_check_transaction();
    -- Where BEGIN is implicit, the transaction begins here: what `bind` sets is meant for the next one.
    IF (SELECT COUNT(*) FROM fencelock_guard WHERE id = 1 LOCK IN SHARE MODE) AND NOT (is_bound AND @fencelock_presented <> '') THEN
        SET @fencelock_presented = ',';
    END IF;
    CALL fencelock_bind(p_limit_s);
END;

-- name: fencelock_open
-- Begin the user's transaction on a connection of the guard's own, and admit its writes; there is a result only if there are
-- resources whose mark is another. This is what a guarded transaction waits for, so it is one routine, and leaves the session's
-- settings as they are: it sets them anew each time. (MariaDB's limits are for transactions alone; `fencelock_finish` lifts
-- the other one.)
CREATE PROCEDURE fencelock_open(
    p_resources LONGTEXT CHARACTER SET ascii, p_lock VARBINARY(512), p_token BIGINT, p_claim VARBINARY(64),
    p_source_id VARBINARY(64), p_history_id VARBINARY(64), p_limit_s INT UNSIGNED)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_resources;
    DECLARE others LONGTEXT CHARACTER SET ascii;
    DECLARE wanted VARCHAR(1024) CHARACTER SET ascii;
    START TRANSACTION READ WRITE;
    SAVEPOINT fencelock_presented;
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
        IF EXISTS (
            SELECT 1 FROM fencelock_mark AS mark
            WHERE mark.resource = UNHEX(wanted) AND mark.token = p_token AND mark.claim = p_claim
                AND mark.lock_name = p_lock AND mark.source_id = p_source_id AND mark.history_id = p_history_id
                AND NOT mark.is_closed
            LOCK IN SHARE MODE) THEN
            SET @fencelock_presented = CONCAT(@fencelock_presented, wanted, '.', p_token, '.', p_claim, ',');
        ELSE
            SET others = CONCAT_WS(',', others, wanted);
        END IF;
    END WHILE;
    IF others IS NOT NULL THEN
        SELECT others;
    END IF;
END;

-- name: fencelock_finish
-- Commit the user's transaction, unless it is another one by now.
CREATE PROCEDURE fencelock_finish()
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE EXIT HANDLER FOR 1305
    BEGIN
        CALL fencelock_unbind();
        SIGNAL SQLSTATE 'FL007' SET MESSAGE_TEXT =
            'FL007 the transaction that presented has ended before: what was written since is not committed';
    END;
    RELEASE SAVEPOINT fencelock_presented;
    SET @fencelock_presented = NULL /*!80003 , SESSION wait_timeout = @@global.wait_timeout */;
    COMMIT;
END;

-- name: fencelock_offer
-- Admit the writes of the caller's own transaction to each resource whose mark is exactly this lease's, and open, if it looks
-- at nothing older than the marks; the other resources are the result. The marks are held, shared, until it ends.
CREATE PROCEDURE fencelock_offer(
    p_resources LONGTEXT CHARACTER SET ascii, p_lock VARBINARY(512), p_token BIGINT, p_claim VARBINARY(64),
    p_source_id VARBINARY(64), p_history_id VARBINARY(64), p_limit_s INT UNSIGNED)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_resources;
    DECLARE others LONGTEXT CHARACTER SET ascii DEFAULT '';
    DECLARE wanted VARCHAR(1024) CHARACTER SET ascii;
    CALL fencelock_join(p_limit_s);
    WHILE rest <> '' DO
        SET wanted = SUBSTRING_INDEX(rest, ',', 1), rest = SUBSTRING(rest, LENGTH(wanted) + 2);
        IF EXISTS (
            SELECT 1 FROM fencelock_mark AS mark
            WHERE mark.resource = UNHEX(wanted) AND mark.token = p_token AND mark.claim = p_claim
                AND mark.lock_name = p_lock AND mark.source_id = p_source_id AND mark.history_id = p_history_id
                AND NOT mark.is_closed
            LOCK IN SHARE MODE) THEN
            SET @fencelock_presented = CONCAT(@fencelock_presented, wanted, '.', p_token, '.', p_claim, ',');
        ELSE
            SET others = CONCAT_WS(',', NULLIF(others, ''), wanted);
        END IF;
    END WHILE;
    CALL fencelock_check_snapshots(p_resources);
    SELECT others;
END;

-- name: fencelock_begin
-- Begin a brief transaction of the guard's own; its schema's number and its marks are the results.
CREATE PROCEDURE fencelock_begin(
    p_resources LONGTEXT CHARACTER SET ascii, p_claim VARBINARY(64), p_hold VARCHAR(20), p_limit_s INT UNSIGNED)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION READ WRITE;
    SET @fencelock_presented = ',';
    CALL fencelock_bind(p_limit_s);
    SELECT schema_number FROM fencelock_guard WHERE id = 1;
    CALL fencelock_read_marks(p_resources, p_claim, p_hold);
END;

-- name: fencelock_write_marks
-- Raise marks, or close one's own, as the flows decided; the table itself refuses what no lease may do.
CREATE PROCEDURE fencelock_write_marks(
    p_resources LONGTEXT CHARACTER SET ascii, p_lock VARBINARY(512), p_token BIGINT, p_claim VARBINARY(64),
    p_source_id VARBINARY(64), p_history_id VARBINARY(64), p_is_closed BOOLEAN)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_resources;
    DECLARE wanted VARBINARY(512);
    IF p_lock IS NULL OR p_token IS NULL OR p_claim IS NULL OR p_source_id IS NULL OR p_history_id IS NULL THEN
        SIGNAL SQLSTATE 'FL009' SET MESSAGE_TEXT = 'FL009 the mark of a lease has a lock, a token, a claim, a source and a history';
    END IF;
    WHILE rest <> '' DO
        SET wanted = UNHEX(SUBSTRING_INDEX(rest, ',', 1)),
            rest = SUBSTRING(rest, LENGTH(SUBSTRING_INDEX(rest, ',', 1)) + 2);
        INSERT INTO fencelock_mark (resource, lock_name, token, source_id, history_id, claim, is_closed)
        VALUES (wanted, p_lock, p_token, p_source_id, p_history_id, p_claim, p_is_closed)
        ON DUPLICATE KEY UPDATE lock_name = p_lock, token = p_token, source_id = p_source_id, history_id = p_history_id,
            claim = p_claim, is_closed = p_is_closed;
    END WHILE;
END;

-- name: fencelock_take_back
-- Take back what was presented to these resources (NULL: to all), whose marks stay held; and see whether the transaction is
-- still the one in which it was.
CREATE PROCEDURE fencelock_take_back(p_resources LONGTEXT CHARACTER SET ascii)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT COALESCE(p_resources, '');
    DECLARE place BIGINT;
    DECLARE is_bound BOOLEAN DEFAULT TRUE;
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 SET is_bound = FALSE;
        RELEASE SAVEPOINT fencelock_presented;
    END;
    WHILE rest <> '' DO
        SET place = LOCATE(CONCAT(',', SUBSTRING_INDEX(rest, ',', 1), '.'), @fencelock_presented),
            rest = SUBSTRING(rest, LENGTH(SUBSTRING_INDEX(rest, ',', 1)) + 2);
        IF place > 0 THEN
            SET @fencelock_presented = INSERT(
                @fencelock_presented, place, LOCATE(',', @fencelock_presented, place + 1) - place, '');
        END IF;
    END WHILE;
    IF NOT is_bound OR p_resources IS NULL OR COALESCE(@fencelock_presented, ',') = ',' THEN
        CALL fencelock_unbind();
    ELSE
        SAVEPOINT fencelock_presented;
    END IF;
    IF NOT is_bound THEN
        SIGNAL SQLSTATE 'FL007' SET MESSAGE_TEXT =
            'FL007 the transaction that presented has ended before, or was rolled back to where it had not';
    END IF;
END;

-- name: fencelock_withdraw
-- Take back all that was presented, before whatever sends COMMIT does.
CREATE PROCEDURE fencelock_withdraw()
MODIFIES SQL DATA SQL SECURITY DEFINER
CALL fencelock_take_back(NULL);

-- name: fencelock_commit
-- Take back all that was presented, and commit, unless the transaction is another one by now.
CREATE PROCEDURE fencelock_commit()
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE EXIT HANDLER FOR 1305
    BEGIN
        CALL fencelock_unbind();
        SIGNAL SQLSTATE 'FL007' SET MESSAGE_TEXT =
            'FL007 the transaction that presented has ended before: what was written since is not committed';
    END;
    RELEASE SAVEPOINT fencelock_presented;
    CALL fencelock_unbind();
    COMMIT;
END;

-- name: fencelock_rollback
-- Undo the transaction, and take back all that was presented.
CREATE PROCEDURE fencelock_rollback()
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    ROLLBACK;
    CALL fencelock_unbind();
END;

-- name: fencelock_write_and_commit
-- Write marks, and end the brief transaction.
CREATE PROCEDURE fencelock_write_and_commit(
    p_resources LONGTEXT CHARACTER SET ascii, p_lock VARBINARY(512), p_token BIGINT, p_claim VARBINARY(64),
    p_source_id VARBINARY(64), p_history_id VARBINARY(64), p_is_closed BOOLEAN)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    CALL fencelock_write_marks(p_resources, p_lock, p_token, p_claim, p_source_id, p_history_id, p_is_closed);
    CALL fencelock_commit();
END;

-- name: fencelock_parse
-- Take a sequencer apart: fl1.<source-id>.<history-id>.<mode>.<token>.<claim>.<lock, base64url>. What is wrong with it is
-- said without showing it.
CREATE PROCEDURE fencelock_parse(
    p_sequencer LONGTEXT CHARACTER SET utf8mb4, OUT p_lock VARBINARY(512), OUT p_token BIGINT, OUT p_claim VARBINARY(64),
    OUT p_source_id VARBINARY(64), OUT p_history_id VARBINARY(64))
NO SQL SQL SECURITY DEFINER
BEGIN
    DECLARE encoded VARCHAR(1024) CHARACTER SET ascii;
    IF p_sequencer IS NULL OR LENGTH(p_sequencer) > 1024 OR p_sequencer NOT REGEXP
        '^fl1[.][A-Za-z0-9_-]{1,64}[.][A-Za-z0-9_-]{1,64}[.]x[.][1-9][0-9]{0,18}[.][A-Za-z0-9_-]{1,64}[.][A-Za-z0-9_-]+$'
        OR BINARY LEFT(p_sequencer, 3) <> BINARY 'fl1'
        OR CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(p_sequencer, '.', 5), '.', -1) AS UNSIGNED) > 9223372036854775807
        OR LENGTH(SUBSTRING_INDEX(p_sequencer, '.', -1)) % 4 = 1 THEN
        SIGNAL SQLSTATE 'FL011' SET MESSAGE_TEXT =
            'FL011 not a sequencer: fl1.<source-id>.<history-id>.<mode>.<token>.<claim>.<lock, base64url>';
    END IF;
    SET p_source_id = SUBSTRING_INDEX(SUBSTRING_INDEX(p_sequencer, '.', 2), '.', -1);
    SET p_history_id = SUBSTRING_INDEX(SUBSTRING_INDEX(p_sequencer, '.', 3), '.', -1);
    SET p_token = SUBSTRING_INDEX(SUBSTRING_INDEX(p_sequencer, '.', 5), '.', -1);
    SET p_claim = SUBSTRING_INDEX(SUBSTRING_INDEX(p_sequencer, '.', 6), '.', -1);
    SET encoded = SUBSTRING_INDEX(p_sequencer, '.', -1);
    SET p_lock = FROM_BASE64(REPLACE(REPLACE(RPAD(encoded, (LENGTH(encoded) + 3) DIV 4 * 4, '='), '-', '+'), '_', '/'));
END;

-- name: fencelock_present
-- Admit this transaction's writes to the tables of a resource, for any client in any language that has a sequencer. The
-- session may be idle for as long as it usually may: the client knows its lease's time left, not we.
CREATE PROCEDURE fencelock_present(p_sequencer LONGTEXT CHARACTER SET utf8mb4, p_resource VARBINARY(512))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE p_lock VARBINARY(512);
    DECLARE p_token BIGINT;
    DECLARE p_claim, p_source_id, p_history_id VARBINARY(64);
    CALL fencelock_parse(p_sequencer, p_lock, p_token, p_claim, p_source_id, p_history_id);
    CALL fencelock_join(NULL);
    IF NOT EXISTS (
        SELECT 1 FROM fencelock_mark AS mark
        WHERE mark.resource = p_resource AND mark.token = p_token AND mark.claim = p_claim AND mark.lock_name = p_lock
            AND mark.source_id = p_source_id AND mark.history_id = p_history_id AND NOT mark.is_closed
        LOCK IN SHARE MODE) THEN
        CALL fencelock_refuse(p_resource, p_lock, p_token, p_claim, p_source_id, p_history_id);
    END IF;
    CALL fencelock_check_snapshots(HEX(p_resource));
    SET @fencelock_presented = CONCAT(@fencelock_presented, HEX(p_resource), '.', p_token, '.', p_claim, ',');
END;

-- name: fencelock_seal
-- Raise the mark of a resource to the sequencer's token, for any client in any language: in a transaction of its own, before
-- anything is read. Once sealed, it may be repeated.
CREATE PROCEDURE fencelock_seal(p_sequencer LONGTEXT CHARACTER SET utf8mb4, p_resource VARBINARY(512))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE p_lock, m_lock VARBINARY(512);
    DECLARE p_token, m_token BIGINT;
    DECLARE p_claim, p_source_id, p_history_id, m_claim, m_source_id, m_history_id VARBINARY(64);
    DECLARE m_is_closed BOOLEAN;
    DECLARE known INT;
    CALL fencelock_parse(p_sequencer, p_lock, p_token, p_claim, p_source_id, p_history_id);
    BEGIN
        DECLARE EXIT HANDLER FOR 1568
            SIGNAL SQLSTATE 'FL006' SET MESSAGE_TEXT = 'FL006 inside a transaction: seal in none, before yours begins';
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    END;
    BEGIN
        DECLARE EXIT HANDLER FOR SQLEXCEPTION
        BEGIN
            ROLLBACK;
            RESIGNAL;
        END;
        START TRANSACTION READ WRITE;
        SELECT COUNT(*) INTO known FROM fencelock_mark WHERE resource = p_resource;
        IF NOT known THEN
            INSERT INTO fencelock_mark (resource) VALUES (p_resource) ON DUPLICATE KEY UPDATE audit_id = audit_id;
        END IF;
        SELECT lock_name, token, source_id, history_id, claim, is_closed
        INTO m_lock, m_token, m_source_id, m_history_id, m_claim, m_is_closed
        FROM fencelock_mark WHERE resource = p_resource FOR UPDATE;
        IF COALESCE(m_lock, p_lock) = p_lock AND COALESCE(m_source_id, p_source_id) = p_source_id
            AND COALESCE(m_token, 0) < p_token THEN
            CALL fencelock_write_marks(HEX(p_resource), p_lock, p_token, p_claim, p_source_id, p_history_id, FALSE);
        ELSEIF NOT (m_lock <=> p_lock AND m_token <=> p_token AND m_claim <=> p_claim AND m_source_id <=> p_source_id
            AND m_history_id <=> p_history_id AND NOT m_is_closed) THEN
            CALL fencelock_refuse(p_resource, p_lock, p_token, p_claim, p_source_id, p_history_id);
        END IF;
        COMMIT;
    END;
END;

-- name: fencelock_show_marks
-- The marks of one resource, or of all, without waiting for anybody and without any claim.
CREATE PROCEDURE fencelock_show_marks(p_resource VARBINARY(512))
READS SQL DATA SQL SECURITY DEFINER
SELECT resource, lock_name, COALESCE(token, 0), source_id, history_id, IF(claim IS NULL, NULL, '*'), is_closed
FROM fencelock_mark
WHERE lock_name IS NOT NULL AND (p_resource IS NULL OR resource = p_resource) ORDER BY resource;

-- name: fencelock_show_triggers
-- Every table that was protected and not unprotected, with each trigger of ours that is there, whoever asks: its table, its
-- name, whether it is what it should be, and its place among those of its kind.
CREATE PROCEDURE fencelock_show_triggers(p_resource VARBINARY(512))
READS SQL DATA SQL SECURITY DEFINER
SELECT protection.id, protection.resource, protection.table_name, made.EVENT_OBJECT_TABLE, made.TRIGGER_NAME,
    LOCATE(CONCAT('x''', HEX(protection.resource), ''''), CONVERT(made.ACTION_STATEMENT USING utf8mb4)) > 0
        AND made.ACTION_TIMING = 'BEFORE'
        AND made.TRIGGER_NAME LIKE CONCAT('%\_', LOWER(made.EVENT_MANIPULATION), '\_%'),
    made.ACTION_ORDER
FROM fencelock_protection AS protection
LEFT JOIN information_schema.TRIGGERS AS made
    ON made.TRIGGER_SCHEMA = DATABASE() AND made.TRIGGER_NAME LIKE CONCAT('fencelock\_', protection.id, '\_%')
WHERE p_resource IS NULL OR protection.resource = p_resource
ORDER BY protection.id, made.TRIGGER_NAME;

-- name: fencelock_show_observations
-- What observe mode let pass; as bytes, since programs call themselves what they like.
CREATE PROCEDURE fencelock_show_observations(p_resource VARBINARY(512))
READS SQL DATA SQL SECURITY DEFINER
SELECT resource, CAST(table_name AS BINARY), CAST(kind AS BINARY), SUM(times),
    DATE_FORMAT(MIN(first_at), '%Y-%m-%dT%H:%i:%s.%fZ'), DATE_FORMAT(MAX(last_at), '%Y-%m-%dT%H:%i:%s.%fZ'),
    CAST(account AS BINARY), CAST(program AS BINARY)
FROM fencelock_observation WHERE p_resource IS NULL OR resource = p_resource
GROUP BY resource, table_name, kind, account, program ORDER BY resource, table_name, kind, account, program;

-- name: fencelock_observe
-- Count what enforcement would refuse; never fails.
CREATE PROCEDURE fencelock_observe(
    p_resource VARBINARY(512), p_table VARCHAR(64) CHARACTER SET utf8mb4, p_kind VARCHAR(16) CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
    INSERT INTO fencelock_observation (
        connection_id, account, resource, table_name, kind, program, times, first_at, last_at)
    VALUES (CONNECTION_ID(), USER(), p_resource, p_table, p_kind, COALESCE((
        SELECT LEFT(ATTR_VALUE, 100) FROM performance_schema.session_connect_attrs
        WHERE PROCESSLIST_ID = CONNECTION_ID() AND ATTR_NAME = 'program_name' LIMIT 1), ''),
        1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE times = times + 1, last_at = UTC_TIMESTAMP(6);
END;

-- name: fencelock_observe_write
-- Count a statement that enforcement would refuse, once however many rows it writes.
CREATE PROCEDURE fencelock_observe_write(
    p_resource VARBINARY(512), p_table VARCHAR(64) CHARACTER SET utf8mb4, p_kind VARCHAR(16) CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE statement_id VARBINARY(2048) DEFAULT CONCAT(NOW(6), ',', HEX(p_resource), '.', p_table, '.', p_kind);
    IF NOT @fencelock_observed <=> statement_id THEN
        SET @fencelock_observed = statement_id;
        CALL fencelock_observe(p_resource, p_table, p_kind);
    END IF;
END;

-- name: fencelock_record_refusal
-- Count a lease that enforcement would have refused.
CREATE PROCEDURE fencelock_record_refusal(p_resource VARBINARY(512), p_kind VARCHAR(16) CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    IF p_kind IN ('stale', 'collision', 'wrong-lock', 'seal-lost') THEN
        CALL fencelock_observe(p_resource, '', p_kind);
    END IF;
END;
