-- The guard's routines about floors: what purged marks leave in their place, so that no stale holder gets in again (G15).
--
-- A purge locks each mark, and afterwards the floor, until its end. So who has locked the row of a mark, and reads the floor
-- then, by a read that locks and sees past an old snapshot, reads one that is not below a mark that is gone.

-- name: fencelock_check_floor
-- Refuse a mark that gets a source, unless its token is above the source's floor. An operator's may equal it: such a mark
-- admits only higher ones. A message has 128 characters: the name of the resource needs them more than the source's id.
CREATE PROCEDURE fencelock_check_floor(
    p_resource VARBINARY(512), p_source_id VARBINARY(64), p_token BIGINT, p_digest VARBINARY(64))
READS SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE floor BIGINT;
    DECLARE message VARCHAR(1024) CHARACTER SET utf8mb4;
    SELECT MAX(kept.token) INTO floor
    FROM fencelock_floor PARTITION (lasting) AS kept WHERE kept.source_id = p_source_id LOCK IN SHARE MODE;
    IF p_token - (p_digest IS NOT NULL) < floor THEN
        SET message = LEFT(CONCAT('FL017 token ', p_token, ' is not above floor ', floor, ' of source ',
            LEFT(p_source_id, 8), ' at resource ', CONVERT(p_resource USING utf8mb4)), 128);
        SIGNAL SQLSTATE 'FL017' SET MESSAGE_TEXT = message;
    END IF;
END;

-- name: fencelock_purge_marks
-- Forget those of these marks that are still exactly the same, and that a floor may stand for, and raise the floor of their
-- source in their place, with the caller's own rights; the result is how many there were. Each mark is written as below, in
-- the order of their bytes. One that another transaction has locked is in use, and stays, where the server can skip it.
CREATE PROCEDURE fencelock_purge_marks(
    p_marks LONGTEXT CHARACTER SET ascii, p_source_id VARBINARY(64), p_floor BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_marks;
    DECLARE chosen LONGTEXT CHARACTER SET ascii DEFAULT '';
    DECLARE entry VARCHAR(4096) CHARACTER SET ascii;
    DECLARE wanted VARBINARY(512);
    DECLARE v_found, v_count INT DEFAULT 0;
    WHILE rest <> '' DO
        SET entry = SUBSTRING_INDEX(rest, ',', 1), rest = SUBSTRING(rest, LENGTH(entry) + 2),
            wanted = UNHEX(SUBSTRING_INDEX(entry, '.', 1));
        SELECT COUNT(*) INTO v_found FROM fencelock_mark PARTITION (lasting) AS mark
        WHERE mark.resource = wanted AND mark.source_id = p_source_id AND mark.token <= p_floor
            AND CONCAT_WS('.', HEX(mark.resource), HEX(mark.lock_name), mark.token, COALESCE(HEX(mark.history_id), ''),
                COALESCE(HEX(mark.digest), ''), mark.is_closed) = entry
        FOR UPDATE /*M!100600 SKIP LOCKED */ /*!80001 SKIP LOCKED */;
        IF v_found THEN
            SELECT COUNT(*) INTO v_found FROM fencelock_mark PARTITION (lasting) AS mark
            WHERE mark.resource = wanted AND NOT mark.requires_signature
                AND NOT EXISTS (SELECT 1 FROM fencelock_protection AS protection WHERE protection.resource = mark.resource)
                AND (mark.audit_id IS NULL OR NOT EXISTS (
                    SELECT 1 FROM fencelock_guard_audit AS audit
                    WHERE audit.resource = mark.resource AND audit.action = 'rebind'));
        END IF;
        IF v_found THEN
            SET chosen = CONCAT(chosen, HEX(wanted), ','), v_count = v_count + 1;
        END IF;
    END WHILE;
    IF v_count THEN
        INSERT INTO fencelock_floor PARTITION (lasting) (source_id, token) VALUES (p_source_id, p_floor)
        ON DUPLICATE KEY UPDATE token = GREATEST(token, p_floor);
    END IF;
    WHILE chosen <> '' DO
        DELETE FROM fencelock_mark PARTITION (lasting) WHERE resource = UNHEX(SUBSTRING_INDEX(chosen, ',', 1));
        SET chosen = SUBSTRING(chosen, LENGTH(SUBSTRING_INDEX(chosen, ',', 1)) + 2);
    END WHILE;
    SELECT v_count;
END;

-- name: fencelock_set_floor
-- Set the floor of a source from what an operator has seen, by the audit entry that was just written, with the caller's rights.
CREATE PROCEDURE fencelock_set_floor(p_source_id VARBINARY(64), p_token BIGINT, p_seen BIGINT, p_audit_id BIGINT UNSIGNED)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE found_token BIGINT;
    DECLARE message VARCHAR(1024) CHARACTER SET utf8mb4;
    INSERT INTO fencelock_floor PARTITION (lasting) (source_id, token) VALUES (p_source_id, 0)
        ON DUPLICATE KEY UPDATE token = token;
    SELECT token INTO found_token FROM fencelock_floor PARTITION (lasting) WHERE source_id = p_source_id FOR UPDATE;
    IF found_token <> p_seen THEN
        SET message = LEFT(CONCAT('FL009 the floor of source ', p_source_id, ' is ', found_token, ' now, not ', p_seen,
            ': look again before you set it'), 128);
        SIGNAL SQLSTATE 'FL009' SET MESSAGE_TEXT = message;
    END IF;
    UPDATE fencelock_floor PARTITION (lasting) SET token = p_token, audit_id = p_audit_id WHERE source_id = p_source_id;
END;

-- name: fencelock_show_floors
-- The floor of each source.
CREATE PROCEDURE fencelock_show_floors()
READS SQL DATA SQL SECURITY DEFINER
SELECT source_id, token FROM fencelock_floor PARTITION (lasting) WHERE token > 0 ORDER BY source_id;
