-- The triggers of one protected table, one of each for insert, update and delete. What stands in braces is filled in, quoted
-- or as hexadecimal digits, when the table is protected; the mode is in the trigger and nowhere else. Each first compares the
-- note of the session without reading a table; what it calls next reads the mark.

-- name: enforce
-- Refuse a change of a row unless this transaction has presented the open mark of the resource.
CREATE TRIGGER {trigger} BEFORE {kind} ON {table} FOR EACH ROW {order}
IF NOT COALESCE(
    NOT @@session.autocommit AND /*M! @@session.tx_read_only */ /*!80003 @@session.transaction_read_only */
    AND LOCATE(CONCAT(',{resource}.', SHA2(CONCAT('{secret}.', CONNECTION_ID(), '.{resource}'), 256), ','), @fenceline_presented),
    FALSE) THEN
    CALL fenceline_admit_write(x'{resource}');
END IF;

-- name: observe
-- Count a change of a row that enforcement would refuse.
CREATE TRIGGER {trigger} BEFORE {kind} ON {table} FOR EACH ROW {order}
IF NOT COALESCE(
    NOT @@session.autocommit AND /*M! @@session.tx_read_only */ /*!80003 @@session.transaction_read_only */
    AND LOCATE(CONCAT(',{resource}.', SHA2(CONCAT('{secret}.', CONNECTION_ID(), '.{resource}'), 256), ','), @fenceline_presented),
    FALSE) THEN
    CALL fenceline_observe_write(x'{resource}', {table_text}, '{kind}');
END IF;
