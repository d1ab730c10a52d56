-- What an installation does besides making tables and routines.

-- name: read_schema
-- The number of the schema; no row: its installation was broken off.
SELECT schema_number FROM fencelock_guard WHERE id = 1;

-- name: take_turn
-- One installation at a time; the turn ends with the connection.
SELECT COALESCE(GET_LOCK('{turn}', {limit_s}), 0);

-- name: drop_routine
-- Make room for a routine that an installation may have left.
DROP PROCEDURE IF EXISTS {routine};

-- name: write_schema
-- Say which schema this is: from here on it is used.
INSERT INTO fencelock_guard (id, schema_number) VALUES (1, {number});
