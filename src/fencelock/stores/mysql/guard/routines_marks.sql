-- The guard's routines, last file: reading and writing marks, sealing and presenting from any language, and what doctor
-- and observe mode show.

-- name: fencelock_read_marks
-- The marks of these resources, one result each, locked: 'shared'; 'alone', before writing them; or 'alone unless ours',
-- before writing only those without this digest, so that transactions of one lease do not wait for each other.
CREATE PROCEDURE fencelock_read_marks(
    p_resources LONGTEXT CHARACTER SET ascii, p_digest VARBINARY(64), p_hold VARCHAR(20))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_resources;
    DECLARE wanted VARBINARY(512);
    DECLARE known, ours INT;
    -- A prepared XA transaction would keep the marks locked when its session has ended.
    CALL fencelock_check_transaction();
    WHILE rest <> '' DO
        SET wanted = UNHEX(SUBSTRING_INDEX(rest, ',', 1)),
            rest = SUBSTRING(rest, LENGTH(SUBSTRING_INDEX(rest, ',', 1)) + 2);
        -- Read without a lock. (In the condition of an IF the SELECT would lock, and two sessions could deadlock.)
        SELECT COUNT(*), COALESCE(SUM(mark.digest = p_digest AND NOT mark.is_closed), 0) INTO known, ours
        FROM fencelock_mark PARTITION (lasting) AS mark WHERE mark.resource = wanted;
        IF p_hold = 'alone' OR (p_hold = 'alone unless ours' AND NOT ours) THEN
            IF NOT known THEN
                CALL fencelock_check_right(wanted, FALSE);
                INSERT INTO fencelock_mark PARTITION (lasting) (resource) VALUES (wanted)
                    ON DUPLICATE KEY UPDATE audit_id = audit_id;
            END IF;
            SELECT mark.resource, mark.lock_name, COALESCE(mark.token, 0), mark.source_id, mark.history_id,
                mark.digest, mark.is_closed
            FROM fencelock_mark PARTITION (lasting) AS mark WHERE mark.resource = wanted FOR UPDATE;
        ELSE
            SELECT mark.resource, mark.lock_name, COALESCE(mark.token, 0), mark.source_id, mark.history_id,
                mark.digest, mark.is_closed
            FROM fencelock_mark PARTITION (lasting) AS mark WHERE mark.resource = wanted LOCK IN SHARE MODE;
        END IF;
    END WHILE;
END;

-- name: fencelock_check_marks
-- The marks, locked, one result each, for a caller's own transaction, unless its snapshot is older.
CREATE PROCEDURE fencelock_check_marks(p_resources LONGTEXT CHARACTER SET ascii)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    CALL fencelock_read_marks(p_resources, NULL, 'shared');
    CALL fencelock_check_snapshots(p_resources);
END;

-- name: fencelock_begin
-- Begin a brief transaction of the guard's own; the results are the number of the schema, with a mask
-- as fencelock_draw_mask draws it, and the marks.
CREATE PROCEDURE fencelock_begin(
    p_resources LONGTEXT CHARACTER SET ascii, p_digest VARBINARY(64), p_hold VARCHAR(20), p_limit_s INT UNSIGNED,
    p_number BIGINT)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE v_ticket VARBINARY(32) DEFAULT IF(
        CONNECTION_ID() = p_number, LEFT(SHA2(CONCAT_WS('.', UUID(), CONNECTION_ID(), SYSDATE(6)), 256), 32), NULL);
    -- An earlier block on this connection, or the server's default, may have switched it off.
    /*M!100201 SET SESSION check_constraint_checks = 1; */
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION READ WRITE;
    SET @fencelock_presented = ',';
    CALL fencelock_bind(p_limit_s);
    SELECT schema_number, v_ticket, SHA2(CONCAT(mask_secret, v_ticket), 256)
    FROM fencelock_guard PARTITION (lasting) WHERE id = 1;
    CALL fencelock_read_marks(p_resources, p_digest, p_hold);
END;

-- name: fencelock_raise_marks
-- Raise marks to the sequencer's token, where they are lower; the table's trigger refuses what no lease may do. It runs with
-- its caller's rights, so only routines of the owner can use it, which commit after it. Each check is a locking read: an old
-- snapshot would show rights that were taken since, keys that were retired, and no signature required.
CREATE PROCEDURE fencelock_raise_marks(
    p_resources LONGTEXT CHARACTER SET ascii, p_sequencer LONGTEXT CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_resources;
    DECLARE wanted, v_lock, m_lock VARBINARY(512);
    DECLARE v_token, m_token BIGINT;
    DECLARE v_proof, v_digest, v_source_id, v_history_id, m_digest, m_source_id, m_history_id VARBINARY(64);
    DECLARE m_is_closed BOOLEAN;
    DECLARE known INT;
    CALL fencelock_parse(p_sequencer, v_lock, v_token, v_proof, v_source_id, v_history_id);
    SET v_digest = ONE_WAY(v_proof);
    WHILE rest <> '' DO
        SET wanted = UNHEX(SUBSTRING_INDEX(rest, ',', 1)),
            rest = SUBSTRING(rest, LENGTH(SUBSTRING_INDEX(rest, ',', 1)) + 2);
        SELECT COUNT(*), MAX(lock_name), MAX(token), MAX(source_id), MAX(history_id), MAX(digest), MAX(is_closed)
        INTO known, m_lock, m_token, m_source_id, m_history_id, m_digest, m_is_closed
        FROM fencelock_mark PARTITION (lasting) WHERE resource = wanted FOR UPDATE;
        CALL fencelock_check_right(wanted, TRUE);
        IF NOT (m_lock <=> v_lock AND m_token <=> v_token AND m_digest <=> v_digest AND m_source_id <=> v_source_id
            AND m_history_id <=> v_history_id AND m_is_closed = FALSE) THEN
            CALL fencelock_check_signature(wanted, p_sequencer);
            IF COALESCE(m_lock, v_lock) = v_lock AND COALESCE(m_source_id, v_source_id) = v_source_id
                AND COALESCE(m_token, 0) < v_token THEN
                CALL fencelock_check_plausible(wanted, v_token);
                IF NOT known THEN
                    -- The row is locked before the floor is read: a purge does it in this order, too.
                    INSERT INTO fencelock_mark PARTITION (lasting) (resource) VALUES (wanted)
                        ON DUPLICATE KEY UPDATE audit_id = audit_id;
                END IF;
                UPDATE fencelock_mark PARTITION (lasting) SET lock_name = v_lock, token = v_token, source_id = v_source_id,
                    history_id = v_history_id, digest = v_digest, is_closed = FALSE, raised_at = UTC_TIMESTAMP(6)
                WHERE resource = wanted;
            ELSE
                CALL fencelock_refuse(wanted, v_lock, v_token, v_digest, v_source_id, v_history_id);
            END IF;
        END IF;
    END WHILE;
END;

-- name: fencelock_close_marks
-- Close the marks that belong to the lease with this claim, which its holder alone has. It runs with its caller's rights, as
-- fencelock_raise_marks does.
CREATE PROCEDURE fencelock_close_marks(p_resources LONGTEXT CHARACTER SET ascii, p_claim VARBINARY(96))
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_digest VARBINARY(64);
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_resources;
    DECLARE wanted VARBINARY(512);
    DECLARE known INT;
    CALL fencelock_unmask(p_claim);
    SET v_digest = ONE_WAY(ONE_WAY(p_claim));
    WHILE rest <> '' DO
        SET wanted = UNHEX(SUBSTRING_INDEX(rest, ',', 1)),
            rest = SUBSTRING(rest, LENGTH(SUBSTRING_INDEX(rest, ',', 1)) + 2);
        SELECT COUNT(*) INTO known FROM fencelock_mark PARTITION (lasting) WHERE resource = wanted FOR UPDATE;
        CALL fencelock_check_right(wanted, TRUE);
        UPDATE fencelock_mark PARTITION (lasting) SET is_closed = TRUE, raised_at = UTC_TIMESTAMP(6)
            WHERE resource = wanted AND digest = v_digest;
    END WHILE;
END;

-- name: fencelock_write_and_commit
-- Raise marks, close marks, and commit the brief transaction, which has kept the marks locked since they were read. In any
-- other transaction nothing is written: the session could commit it, or prepare it, when its right was taken.
CREATE PROCEDURE fencelock_write_and_commit(
    p_raised LONGTEXT CHARACTER SET ascii, p_sequencer LONGTEXT CHARACTER SET utf8mb4,
    p_closed LONGTEXT CHARACTER SET ascii, p_claim VARBINARY(96))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    CALL fencelock_check_transaction();
    BEGIN
        DECLARE EXIT HANDLER FOR 1305
            SIGNAL SQLSTATE 'FL007' SET MESSAGE_TEXT = 'FL007 the guard''s own transaction has already ended: begin again';
        RELEASE SAVEPOINT fencelock_presented;
        SAVEPOINT fencelock_presented;
    END;
    IF p_raised <> '' THEN
        CALL fencelock_raise_marks(p_raised, p_sequencer);
    END IF;
    IF p_closed <> '' THEN
        CALL fencelock_close_marks(p_closed, p_claim);
    END IF;
    CALL fencelock_commit();
END;

-- name: fencelock_present
-- Admit this transaction's writes to the tables of a resource, for any client in any language that has a sequencer. The
-- session's own idle limit applies: the database does not know the lease's time left.
CREATE PROCEDURE fencelock_present(p_sequencer LONGTEXT CHARACTER SET utf8mb4, p_resource VARBINARY(512))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE v_lock VARBINARY(512);
    DECLARE v_token BIGINT;
    DECLARE v_proof, v_digest, v_source_id, v_history_id VARBINARY(64);
    DECLARE entry VARBINARY(2048);
    CALL fencelock_parse(p_sequencer, v_lock, v_token, v_proof, v_source_id, v_history_id);
    SET v_digest = ONE_WAY(v_proof);
    CALL fencelock_join(NULL);
    SET entry = (
        SELECT PRESENTED(HEX(p_resource), mark.token, mark.stamp) FROM fencelock_mark PARTITION (lasting) AS mark
        WHERE mark.resource = p_resource AND mark.token = v_token AND mark.digest = v_digest AND mark.lock_name = v_lock
            AND mark.source_id = v_source_id AND mark.history_id = v_history_id AND NOT mark.is_closed
        LOCK IN SHARE MODE);
    CALL fencelock_check_right(p_resource, FALSE);
    IF entry IS NULL THEN
        CALL fencelock_refuse(p_resource, v_lock, v_token, v_digest, v_source_id, v_history_id);
    END IF;
    CALL fencelock_check_snapshots(HEX(p_resource));
    IF NOT @fencelock_whole <=> CONCAT(UNIX_TIMESTAMP(SYSDATE()), ',', HEX(p_resource)) THEN
        CALL fencelock_check_tables(HEX(p_resource));
    END IF;
    SET @fencelock_presented = CONCAT(@fencelock_presented, entry);
END;

-- name: fencelock_seal
-- Raise the mark of a resource to the sequencer's token, for any client in any language: in a transaction of its own,
-- before its first read. Repeating a seal is allowed.
CREATE PROCEDURE fencelock_seal(p_sequencer LONGTEXT CHARACTER SET utf8mb4, p_resource VARBINARY(512))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    BEGIN
        DECLARE EXIT HANDLER FOR 1568
            SIGNAL SQLSTATE 'FL006' SET MESSAGE_TEXT = 'FL006 cannot seal inside a transaction: seal before it begins';
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    END;
    BEGIN
        DECLARE EXIT HANDLER FOR SQLEXCEPTION
        BEGIN
            ROLLBACK;
            RESIGNAL;
        END;
        START TRANSACTION READ WRITE;
        -- A comma names the empty resource, which is refused as any other bad name.
        CALL fencelock_raise_marks(COALESCE(NULLIF(HEX(p_resource), ''), ','), p_sequencer);
        COMMIT;
    END;
END;

-- name: fencelock_show_marks
-- The marks of one resource, or of all, without waiting.
CREATE PROCEDURE fencelock_show_marks(p_resource VARBINARY(512))
READS SQL DATA SQL SECURITY DEFINER
SELECT resource, lock_name, COALESCE(token, 0), source_id, history_id, digest, is_closed, requires_signature
FROM fencelock_mark PARTITION (lasting)
WHERE lock_name IS NOT NULL AND (p_resource IS NULL OR resource = p_resource) ORDER BY resource;

-- name: fencelock_show_rights
-- The rights to one resource, or all rights.
CREATE PROCEDURE fencelock_show_rights(p_resource VARBINARY(512))
READS SQL DATA SQL SECURITY DEFINER
SELECT resource, CAST(account AS BINARY) FROM fencelock_right
WHERE p_resource IS NULL OR resource = p_resource OR (
    RIGHT(resource, 1) = '*' AND LEFT(p_resource, LENGTH(resource) - 1) = LEFT(resource, LENGTH(resource) - 1))
ORDER BY resource, account;

-- name: fencelock_check_change
-- Refuse a change of a mark by an operator: a token above the ceiling, unless the operator vouches for it, and a sequencer,
-- if there is one, that is not signed where that is required.
CREATE PROCEDURE fencelock_check_change(
    p_resource VARBINARY(512), p_token BIGINT, p_sequencer LONGTEXT CHARACTER SET utf8mb4, p_is_implausible BOOLEAN)
READS SQL DATA SQL SECURITY DEFINER
BEGIN
    IF p_sequencer IS NOT NULL THEN
        CALL fencelock_check_signature(p_resource, p_sequencer);
    END IF;
    IF NOT p_is_implausible THEN
        CALL fencelock_check_plausible(p_resource, p_token);
    END IF;
END;

-- name: fencelock_grant_right
-- Let an account seal, present and close a resource, or all with a prefix. With the caller's rights: one who may not read
-- the server's accounts cannot be told that there is none of this name.
CREATE PROCEDURE fencelock_grant_right(p_resource VARBINARY(512), p_account VARCHAR(288) CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE known INT DEFAULT 0;
    DECLARE message VARCHAR(1024) CHARACTER SET utf8mb4;
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1142, 1143, 1044, 1356 SET known = 1;
        SELECT COUNT(*) INTO known FROM mysql.user WHERE IS_ACCOUNT(p_account, User, SUBSTRING_INDEX(p_account, '@', -1));
    END;
    IF NOT known THEN
        SET message = LEFT(CONCAT('FL015 there is no account ', p_account, ': create it first, then grant the right'), 128);
        SIGNAL SQLSTATE 'FL015' SET MESSAGE_TEXT = message;
    END IF;
    INSERT INTO fencelock_right (resource, account) VALUES (p_resource, p_account)
    ON DUPLICATE KEY UPDATE resource = p_resource;
END;

-- name: fencelock_require_signature
-- Require a signature of every sequencer that raises this mark, or no longer. Without a key, no holder could seal.
CREATE PROCEDURE fencelock_require_signature(p_resource VARBINARY(512), p_is_required BOOLEAN)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE known INT;
    DECLARE message VARCHAR(1024) CHARACTER SET utf8mb4;
    IF p_is_required THEN
        SELECT COUNT(*) INTO known FROM fencelock_guard_key WHERE retired_s IS NULL;
        IF NOT known THEN
            SIGNAL SQLSTATE 'FL015' SET MESSAGE_TEXT =
                'FL015 this guard has no key, so nobody could seal: first run fencelock keys install GUARD_URL --source SOURCE';
        END IF;
    END IF;
    SELECT COUNT(*) INTO known FROM fencelock_mark PARTITION (lasting) WHERE resource = p_resource AND lock_name IS NOT NULL;
    IF NOT known THEN
        SET message = LEFT(CONCAT('FL015 there is no mark, run fencelock protect first. Resource: ',
            CONVERT(p_resource USING utf8mb4)), 128);
        SIGNAL SQLSTATE 'FL015' SET MESSAGE_TEXT = message;
    END IF;
    UPDATE fencelock_mark PARTITION (lasting) SET requires_signature = p_is_required WHERE resource = p_resource;
END;

-- name: fencelock_end_session
-- Tell a session to end, with the caller's own rights; a session that has ended is none.
CREATE PROCEDURE fencelock_end_session(p_number BIGINT UNSIGNED)
SQL SECURITY INVOKER
BEGIN
    DECLARE CONTINUE HANDLER FOR 1094 BEGIN END;
    KILL p_number;
END;

-- name: fencelock_show_observations
-- What observe mode let pass; as bytes, since a program's name for itself may be anything.
CREATE PROCEDURE fencelock_show_observations(p_resource VARBINARY(512))
READS SQL DATA SQL SECURITY DEFINER
SELECT resource, CAST(table_name AS BINARY), CAST(kind AS BINARY), SUM(times),
    DATE_FORMAT(MIN(first_at), '%Y-%m-%dT%H:%i:%s.%fZ'), DATE_FORMAT(MAX(last_at), '%Y-%m-%dT%H:%i:%s.%fZ'),
    CAST(account AS BINARY), CAST(program AS BINARY)
FROM fencelock_observation WHERE p_resource IS NULL OR resource = p_resource
GROUP BY resource, table_name, kind, account, program ORDER BY resource, table_name, kind, account, program;

-- name: fencelock_observe
-- Count what enforcement would refuse. It never fails, unless the server may have rolled back the caller's transaction: one
-- that went on would do so without what it has written, and without its locks.
CREATE PROCEDURE fencelock_observe(
    p_resource VARBINARY(512), p_table VARCHAR(64) CHARACTER SET utf8mb4, p_kind VARCHAR(16) CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
    DECLARE EXIT HANDLER FOR 1020, 1205, 1206, 1213 RESIGNAL;
    INSERT INTO fencelock_observation (
        connection_id, account, resource, table_name, kind, program, times, first_at, last_at)
    VALUES (CONNECTION_ID(), USER(), p_resource, p_table, p_kind, COALESCE((
        SELECT LEFT(ATTR_VALUE, 100) FROM performance_schema.session_connect_attrs
        WHERE PROCESSLIST_ID = CONNECTION_ID() AND ATTR_NAME = 'program_name' LIMIT 1), ''),
        1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE times = times + 1, last_at = UTC_TIMESTAMP(6);
END;

-- name: fencelock_observe_write
-- Count a statement that enforcement would refuse, once however many rows it writes. A statement is known by the time at
-- which it began. In a session that has SET timestamp that time stands still, and there each row is counted.
CREATE PROCEDURE fencelock_observe_write(
    p_resource VARBINARY(512), p_table VARCHAR(64) CHARACTER SET utf8mb4, p_kind VARCHAR(16) CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE statement_id VARBINARY(2048) DEFAULT CONCAT(NOW(6), ',', HEX(p_resource), '.', p_table, '.', p_kind);
    IF NOT @fencelock_observed <=> statement_id OR ABS(TIMESTAMPDIFF(SECOND, NOW(6), SYSDATE(6))) > 10 THEN
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
