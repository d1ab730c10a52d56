-- The statements of an installation besides those that create tables and routines.

-- name: read_schema
-- The number of the schema; no row if an installation was interrupted.
SELECT schema_number FROM fencelock_guard WHERE id = 1;

-- name: read_tables
-- The names of the tables that are there.
SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'fencelock\_%';

-- name: read_left
-- What shows that there was a guard: the triggers on tables that are not fencelock's own.
SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE()
    AND TRIGGER_NAME REGEXP '^fencelock_[0-9]+_(insert|update|delete)_(enforce|observe)$';

-- name: probe
-- Fails if the routines are missing, as after a dump without them.
CALL fencelock_show_floors();

-- name: lock
-- Admits one installation at a time; the lock ends with the connection.
SELECT COALESCE(GET_LOCK('{lock}', {limit_s}), 0);

-- name: drop_routine
-- Remove a routine that an interrupted installation may have created.
DROP PROCEDURE IF EXISTS {routine};

-- name: write_schema
-- Marks the schema as whole: from now on it is used.
INSERT INTO fencelock_guard (id, schema_number, mask_secret) VALUES (1, {number}, '{secret}');
