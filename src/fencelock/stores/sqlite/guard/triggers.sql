-- The triggers of one protected table, one each for insert, update and delete, and its index. `protect` fills in the
-- quoted values in braces. The trigger is the only record of the mode.

-- name: enforce
-- Refuse a change of a row unless this transaction presents the open mark of the resource.
CREATE TRIGGER main.{trigger} BEFORE {kind} ON {table}
WHEN NOT EXISTS (
    SELECT 1 FROM fencelock_seal AS seal JOIN fencelock_mark AS mark USING (resource, token, digest)
    WHERE seal.resource = {resource} AND NOT mark.is_closed
)
BEGIN
    SELECT RAISE(ABORT, {message});
END;

-- name: observe
-- Count a change of a row that enforcement would refuse. Two statements instead of an upsert: inside a trigger, the
-- conflict clause of the user's own statement would replace the upsert's.
CREATE TRIGGER main.{trigger} BEFORE {kind} ON {table}
WHEN NOT EXISTS (
    SELECT 1 FROM fencelock_seal AS seal JOIN fencelock_mark AS mark USING (resource, token, digest)
    WHERE seal.resource = {resource} AND NOT mark.is_closed
)
BEGIN
    UPDATE fencelock_observed
    SET count = count + 1, last_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
    WHERE resource = {resource} AND table_name = {table_text} AND kind = {kind_text};
    INSERT INTO fencelock_observed (resource, table_name, kind, count, first_at, last_at)
    SELECT {resource}, {table_text}, {kind_text}, 1,
        strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
    WHERE NOT EXISTS (
        SELECT 1 FROM fencelock_observed
        WHERE resource = {resource} AND table_name = {table_text} AND kind = {kind_text}
    );
END;

-- name: refuse_blobs
-- Refuse incremental BLOB writes, which fire no trigger: SQLite opens no column for them if an index of the table is over
-- an expression. No row satisfies the WHERE, so the index stays empty, and no query uses it: not even `WHERE 0` implies it.
CREATE INDEX main.{index} ON {table} (1) WHERE 'fencelock' IS 0;
