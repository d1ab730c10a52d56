-- The guard's routines about what is done once per key (`once=`, `fencelock.dispatch`). Only the operator may write to the
-- table. A session that has presented the resource's mark calls these; an account that may present the resource reads it, with a
-- stale token too.

-- name: fencelock_check_presented
-- Refuse a session that has not presented the resource's current open mark, as the triggers of protected tables do. The
-- mark stays locked until the end of the transaction.
CREATE PROCEDURE fencelock_check_presented(p_resource VARBINARY(512))
READS SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE entry VARBINARY(2048) DEFAULT CONCAT(',', HEX(p_resource), '.');
    IF COALESCE(LOCATE(entry, @fencelock_presented), 0) = 0 THEN
        CALL fencelock_refuse_write(p_resource, NULL);
    ELSEIF NOT EXISTS (
        SELECT 1 FROM fencelock_mark PARTITION (lasting) AS mark
        WHERE mark.resource = p_resource AND NOT mark.is_closed
            AND LOCATE(CONCAT(',', PRESENTED(HEX(p_resource), mark.token, mark.stamp)), @fencelock_presented)
        LOCK IN SHARE MODE) THEN
        CALL fencelock_refuse_write(p_resource, (
            SELECT mark.token
                FROM fencelock_mark PARTITION (lasting) AS mark WHERE mark.resource = p_resource LOCK IN SHARE MODE));
    END IF;
END;

-- name: fencelock_read_effect
-- What the resource keeps under a key: a row without a holder is no effect.
CREATE PROCEDURE fencelock_read_effect(p_resource VARBINARY(512), p_key VARBINARY(512))
READS SQL DATA SQL SECURITY DEFINER
BEGIN
    CALL fencelock_check_right(p_resource, FALSE);
    SELECT effect_key, token, holder, DATE_FORMAT(began_at, '%Y-%m-%dT%H:%i:%s.%fZ'), result, request_digest
    FROM fencelock_effect PARTITION (lasting) WHERE resource = p_resource AND effect_key = p_key AND holder <> '';
END;

-- name: fencelock_write_effect
-- Keep an effect under the token of the presented mark, or forget it, if it has no holder. A result leaves the time at which
-- its effect began, and is never taken back: its key would be done again. (MySQL assigns from left to right: began_at comes
-- before result.)
CREATE PROCEDURE fencelock_write_effect(
    p_resource VARBINARY(512), p_key VARBINARY(512), p_holder VARBINARY(2048), p_result VARBINARY(4096),
    p_request_digest VARBINARY(64))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE v_token BIGINT;
    CALL fencelock_check_presented(p_resource);
    IF (p_result IS NULL OR p_holder = '') AND EXISTS (
        SELECT 1 FROM fencelock_effect PARTITION (lasting)
            WHERE resource = p_resource AND effect_key = p_key AND result IS NOT NULL FOR UPDATE) THEN
        SIGNAL SQLSTATE 'FL009' SET MESSAGE_TEXT = 'FL009 this key was done, and keeps its result: see fencelock purge --help';
    END IF;
    IF p_holder = '' THEN
        DELETE FROM fencelock_effect PARTITION (lasting) WHERE resource = p_resource AND effect_key = p_key;
    ELSE
        SELECT mark.token INTO v_token
        FROM fencelock_mark PARTITION (lasting) AS mark WHERE mark.resource = p_resource LOCK IN SHARE MODE;
        INSERT INTO fencelock_effect PARTITION (lasting) (resource, effect_key, token, holder, began_at, result, request_digest)
        VALUES (p_resource, p_key, v_token, p_holder, UTC_TIMESTAMP(6), p_result, p_request_digest)
        ON DUPLICATE KEY UPDATE token = v_token, holder = p_holder, request_digest = p_request_digest,
            began_at = IF(p_result IS NULL, UTC_TIMESTAMP(6), began_at), result = p_result;
    END IF;
END;

-- name: fencelock_begin_effect
-- Keep an intent under the token of the presented mark, unless something is kept under its key: the result is that. A second
-- transaction that begins the same one waits here for the end of the first, by a row without a holder.
CREATE PROCEDURE fencelock_begin_effect(
    p_resource VARBINARY(512), p_key VARBINARY(512), p_holder VARBINARY(2048), p_request_digest VARBINARY(64))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    CALL fencelock_check_presented(p_resource);
    INSERT INTO fencelock_effect PARTITION (lasting) (resource, effect_key, token, holder, began_at)
    VALUES (p_resource, p_key, 0, '', UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE token = token;
    SELECT effect_key, token, holder, DATE_FORMAT(began_at, '%Y-%m-%dT%H:%i:%s.%fZ'), result, request_digest
    FROM fencelock_effect PARTITION (lasting) WHERE resource = p_resource AND effect_key = p_key AND holder <> '' FOR UPDATE;
    IF NOT EXISTS (
        SELECT 1 FROM fencelock_effect PARTITION (lasting)
            WHERE resource = p_resource AND effect_key = p_key AND holder <> '' FOR UPDATE) THEN
        CALL fencelock_write_effect(p_resource, p_key, p_holder, NULL, p_request_digest);
    END IF;
END;

-- name: fencelock_write_bound_effect
-- Write an effect, unless another transaction than the presented one is open by now: how the block ends says so then.
CREATE PROCEDURE fencelock_write_bound_effect(
    p_resource VARBINARY(512), p_key VARBINARY(512), p_holder VARBINARY(2048), p_result VARBINARY(4096),
    p_request_digest VARBINARY(64))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE is_bound BOOLEAN DEFAULT TRUE;
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 SET is_bound = FALSE;
        RELEASE SAVEPOINT fencelock_presented;
    END;
    IF is_bound THEN
        SAVEPOINT fencelock_presented;
        CALL fencelock_write_effect(p_resource, p_key, p_holder, p_result, p_request_digest);
    END IF;
END;

-- name: fencelock_finish_effect
-- Write an effect, and commit the user's transaction, unless another one is open by now.
CREATE PROCEDURE fencelock_finish_effect(
    p_resource VARBINARY(512), p_key VARBINARY(512), p_holder VARBINARY(2048), p_result VARBINARY(4096),
    p_request_digest VARBINARY(64))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    CALL fencelock_write_bound_effect(p_resource, p_key, p_holder, p_result, p_request_digest);
    CALL fencelock_finish();
END;

-- name: fencelock_take_back_effect
-- Write an effect, and take back what was presented to these resources; the result is that of `fencelock_take_back`.
CREATE PROCEDURE fencelock_take_back_effect(
    p_resources LONGTEXT CHARACTER SET ascii, p_resource VARBINARY(512), p_key VARBINARY(512), p_holder VARBINARY(2048),
    p_result VARBINARY(4096), p_request_digest VARBINARY(64))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    CALL fencelock_write_bound_effect(p_resource, p_key, p_holder, p_result, p_request_digest);
    CALL fencelock_take_back(p_resources);
END;

-- name: fencelock_purge_effects
-- Forget old results, except those whose token is the mark, with the caller's own rights; the result is how many there were.
-- The list is read without locks, so that no guarded block waits, nor is waited for.
CREATE PROCEDURE fencelock_purge_effects(p_older_than_s BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_resource, v_key VARBINARY(512);
    DECLARE v_began_at DATETIME(6);
    DECLARE v_count BIGINT DEFAULT 0;
    DECLARE is_over BOOLEAN DEFAULT FALSE;
    DECLARE old_ones CURSOR FOR
        SELECT kept.resource, kept.effect_key, kept.began_at FROM fencelock_effect PARTITION (lasting) AS kept
        LEFT JOIN fencelock_mark PARTITION (lasting) AS mark ON mark.resource = kept.resource AND mark.token = kept.token
        WHERE kept.result IS NOT NULL AND kept.began_at <= UTC_TIMESTAMP(6) - INTERVAL p_older_than_s SECOND
            AND mark.resource IS NULL;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_over = TRUE;
    OPEN old_ones;
    FETCH old_ones INTO v_resource, v_key, v_began_at;
    WHILE NOT is_over DO
        DELETE FROM fencelock_effect PARTITION (lasting)
        WHERE resource = v_resource AND effect_key = v_key AND began_at = v_began_at AND result IS NOT NULL;
        SET v_count = v_count + 1;
        FETCH old_ones INTO v_resource, v_key, v_began_at;
    END WHILE;
    CLOSE old_ones;
    COMMIT;
    SELECT v_count;
END;
