-- The triggers of one protected table: one each for insert, update and delete. Words in braces are filled in, quoted or
-- as hexadecimal digits, when the table is protected; the trigger alone says the mode. Each trigger reads the mark
-- itself, as it is now, and locks it until the end of the open transaction: a routine that reads it too would make every
-- statement open one more table. A session that has presented nothing waits for no mark.

-- name: enforce
-- Refuse a change of a row, unless the session has presented the resource's current open mark.
CREATE TRIGGER {trigger} BEFORE {kind} ON {table} FOR EACH ROW {order}
IF COALESCE(LOCATE(',{resource}.', @fencelock_presented), 0) = 0 OR NOT EXISTS (
    SELECT 1 FROM fencelock_mark PARTITION (lasting) AS mark
    WHERE mark.resource = x'{resource}' AND NOT mark.is_closed
        AND LOCATE(CONCAT(',', PRESENTED('{resource}', mark.token, mark.stamp)), @fencelock_presented)
    LOCK IN SHARE MODE) THEN
    CALL fencelock_refuse_write(x'{resource}', IF(LOCATE(',{resource}.', @fencelock_presented), (
        SELECT mark.token
            FROM fencelock_mark PARTITION (lasting) AS mark WHERE mark.resource = x'{resource}' LOCK IN SHARE MODE), NULL));
END IF;

-- name: observe
-- Count a change of a row that enforcement would refuse.
CREATE TRIGGER {trigger} BEFORE {kind} ON {table} FOR EACH ROW {order}
IF COALESCE(LOCATE(',{resource}.', @fencelock_presented), 0) = 0 OR NOT EXISTS (
    SELECT 1 FROM fencelock_mark PARTITION (lasting) AS mark
    WHERE mark.resource = x'{resource}' AND NOT mark.is_closed
        AND LOCATE(CONCAT(',', PRESENTED('{resource}', mark.token, mark.stamp)), @fencelock_presented)
    LOCK IN SHARE MODE) THEN
    CALL fencelock_observe_write(x'{resource}', {table_text}, '{kind}');
END IF;
