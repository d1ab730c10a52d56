-- The guard's routines about effects outside of the database (`fencelock.dispatch`). Only the operator may write to their
-- table; a session that has presented the resource's mark calls these.

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
        SELECT 1 FROM fencelock_mark AS mark
        WHERE mark.resource = p_resource AND NOT mark.is_closed
            AND LOCATE(CONCAT(',', PRESENTED(HEX(p_resource), mark.token, mark.stamp)), @fencelock_presented)
        LOCK IN SHARE MODE) THEN
        CALL fencelock_refuse_write(p_resource, (
            SELECT mark.token FROM fencelock_mark AS mark WHERE mark.resource = p_resource LOCK IN SHARE MODE));
    END IF;
END;

-- name: fencelock_read_effect
-- What the resource keeps of one effect, which nobody else begins until this transaction ends: a row without a holder is no
-- effect, and two who read it for the first time wait for each other by it.
CREATE PROCEDURE fencelock_read_effect(p_resource VARBINARY(512), p_key VARBINARY(512))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    CALL fencelock_check_presented(p_resource);
    INSERT INTO fencelock_effect (resource, effect_key, token, holder, began_at)
    VALUES (p_resource, p_key, 0, '', UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE token = token;
    SELECT effect_key, token, holder, DATE_FORMAT(began_at, '%Y-%m-%dT%H:%i:%s.%fZ'), result
    FROM fencelock_effect WHERE resource = p_resource AND effect_key = p_key AND holder <> '' FOR UPDATE;
END;

-- name: fencelock_write_effect
-- Keep an effect under the token of the presented mark, or forget it, if it has no holder.
CREATE PROCEDURE fencelock_write_effect(
    p_resource VARBINARY(512), p_key VARBINARY(512), p_holder VARBINARY(2048), p_began_at VARCHAR(40) CHARACTER SET ascii,
    p_result VARBINARY(4096))
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE v_token BIGINT;
    DECLARE v_began_at DATETIME(6) DEFAULT IF(
        p_began_at = '', UTC_TIMESTAMP(6), STR_TO_DATE(p_began_at, '%Y-%m-%dT%H:%i:%s.%fZ'));
    CALL fencelock_check_presented(p_resource);
    IF p_holder = '' THEN
        DELETE FROM fencelock_effect WHERE resource = p_resource AND effect_key = p_key;
    ELSE
        SELECT mark.token INTO v_token FROM fencelock_mark AS mark WHERE mark.resource = p_resource LOCK IN SHARE MODE;
        INSERT INTO fencelock_effect (resource, effect_key, token, holder, began_at, result)
        VALUES (p_resource, p_key, v_token, p_holder, v_began_at, p_result)
        ON DUPLICATE KEY UPDATE token = v_token, holder = p_holder, began_at = v_began_at, result = p_result;
    END IF;
END;
