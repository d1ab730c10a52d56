-- The triggers of one protected table, one of each for insert, update and delete. What stands in braces is filled in, quoted
-- or as hexadecimal digits, when the table is protected; the mode is in the trigger and nowhere else. Each reads the mark
-- itself, as it is now, and holds it until the end of whichever transaction is open: a routine that reads it too would cost
-- every statement the opening of one table more. Whoever has presented nothing waits for no mark.

-- name: enforce
-- Refuse a change of a row unless the session has presented what is the open mark of the resource now.
CREATE TRIGGER {trigger} BEFORE {kind} ON {table} FOR EACH ROW {order}
IF COALESCE(LOCATE(',{resource}.', @fencelock_presented), 0) = 0 OR NOT EXISTS (
    SELECT 1 FROM fencelock_mark AS mark
    WHERE mark.resource = x'{resource}' AND NOT mark.is_closed
        AND LOCATE(CONCAT(',{resource}.', mark.token, '.', mark.claim, ','), @fencelock_presented)
    LOCK IN SHARE MODE) THEN
    CALL fencelock_refuse_write(x'{resource}', IF(LOCATE(',{resource}.', @fencelock_presented), (
        SELECT mark.token FROM fencelock_mark AS mark WHERE mark.resource = x'{resource}' LOCK IN SHARE MODE), NULL));
END IF;

-- name: observe
-- Count a change of a row that enforcement would refuse.
CREATE TRIGGER {trigger} BEFORE {kind} ON {table} FOR EACH ROW {order}
IF COALESCE(LOCATE(',{resource}.', @fencelock_presented), 0) = 0 OR NOT EXISTS (
    SELECT 1 FROM fencelock_mark AS mark
    WHERE mark.resource = x'{resource}' AND NOT mark.is_closed
        AND LOCATE(CONCAT(',{resource}.', mark.token, '.', mark.claim, ','), @fencelock_presented)
    LOCK IN SHARE MODE) THEN
    CALL fencelock_observe_write(x'{resource}', {table_text}, '{kind}');
END IF;
