-- The guard's routines, second file: reading and writing marks, sealing and presenting from any language, and what doctor
-- and observe mode show.

-- name: fencelock_read_marks
-- The marks of these resources, one result each, locked: 'shared'; 'alone', before writing them; or 'alone unless ours',
-- before writing only those of other claims, so that transactions of one lease do not wait for each other. A claim is
-- shown only to a caller that knows it, otherwise as '*'.
CREATE PROCEDURE fencelock_read_marks(p_resources LONGTEXT CHARACTER SET ascii, p_claim VARBINARY(64), p_hold VARCHAR(20))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_resources;
    DECLARE wanted VARBINARY(512);
    DECLARE known, ours INT;
    WHILE rest <> '' DO
        SET wanted = UNHEX(SUBSTRING_INDEX(rest, ',', 1)),
            rest = SUBSTRING(rest, LENGTH(SUBSTRING_INDEX(rest, ',', 1)) + 2);
        -- Read without a lock. (In the condition of an IF the SELECT would lock, and two sessions could deadlock.)
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

-- name: fencelock_check_marks
-- The marks, locked, one result each, for a caller's own transaction, unless its snapshot is older.
CREATE PROCEDURE fencelock_check_marks(p_resources LONGTEXT CHARACTER SET ascii, p_claim VARBINARY(64))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    CALL fencelock_check_transaction();
    CALL fencelock_read_marks(p_resources, p_claim, 'shared');
    CALL fencelock_check_snapshots(p_resources);
END;

-- name: fencelock_begin
-- Begin a brief transaction of the guard's own; the results are the number of the schema, and the marks.
CREATE PROCEDURE fencelock_begin(
    p_resources LONGTEXT CHARACTER SET ascii, p_claim VARBINARY(64), p_hold VARCHAR(20), p_limit_s INT UNSIGNED)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    -- An earlier block on this connection, or the server's default, may have switched it off.
    /*M!100201 SET SESSION check_constraint_checks = 1; */
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION READ WRITE;
    SET @fencelock_presented = ',';
    CALL fencelock_bind(p_limit_s);
    SELECT schema_number FROM fencelock_guard WHERE id = 1;
    CALL fencelock_read_marks(p_resources, p_claim, p_hold);
END;

-- name: fencelock_write_marks
-- Raise marks, or close one's own, as the flows decided; the table's trigger refuses what no lease may do.
CREATE PROCEDURE fencelock_write_marks(
    p_resources LONGTEXT CHARACTER SET ascii, p_lock VARBINARY(512), p_token BIGINT, p_claim VARBINARY(64),
    p_source_id VARBINARY(64), p_history_id VARBINARY(64), p_is_closed BOOLEAN)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_resources;
    DECLARE wanted VARBINARY(512);
    IF p_lock IS NULL OR p_token IS NULL OR p_claim IS NULL OR p_source_id IS NULL OR p_history_id IS NULL THEN
        SIGNAL SQLSTATE 'FL009' SET MESSAGE_TEXT = 'FL009 the mark of a lease needs a lock, a token, a claim, a source and a history';
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

-- name: fencelock_write_and_commit
-- Write marks, and commit the brief transaction.
CREATE PROCEDURE fencelock_write_and_commit(
    p_resources LONGTEXT CHARACTER SET ascii, p_lock VARBINARY(512), p_token BIGINT, p_claim VARBINARY(64),
    p_source_id VARBINARY(64), p_history_id VARBINARY(64), p_is_closed BOOLEAN)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    CALL fencelock_write_marks(p_resources, p_lock, p_token, p_claim, p_source_id, p_history_id, p_is_closed);
    CALL fencelock_commit();
END;

-- name: fencelock_parse
-- Split a sequencer: fl1.<source-id>.<history-id>.<mode>.<token>.<claim>.<lock, base64url>. The error does not show it,
-- since it contains the claim.
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
-- session's own idle limit applies: the database does not know the lease's time left.
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
-- Raise the mark of a resource to the sequencer's token, for any client in any language: in a transaction of its own,
-- before its first read. Repeating a seal is allowed.
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
-- The marks of one resource, or of all, without waiting and without claims.
CREATE PROCEDURE fencelock_show_marks(p_resource VARBINARY(512))
READS SQL DATA SQL SECURITY DEFINER
SELECT resource, lock_name, COALESCE(token, 0), source_id, history_id, IF(claim IS NULL, NULL, '*'), is_closed
FROM fencelock_mark
WHERE lock_name IS NOT NULL AND (p_resource IS NULL OR resource = p_resource) ORDER BY resource;

-- name: fencelock_show_triggers
-- Every table that was protected and not unprotected, with each existing trigger of fencelock, for any account: its
-- table, its name, whether it is intact, and its position among the table's triggers of its kind.
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
-- What observe mode let pass; as bytes, since a program's name for itself may be anything.
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
