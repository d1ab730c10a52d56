-- The guard's statements. `main.` keeps a temporary table of the user's from hiding the guard's.

-- name: has_schema
-- Whether the file has the guard's schema.
SELECT count(*) FROM main.sqlite_schema WHERE type = 'table' AND name = 'fencelock_guard';

-- name: read_schema_number
-- The schema number; read before anything else.
SELECT schema FROM main.fencelock_guard WHERE id = 1;

-- name: read_mark
-- The mark of a resource; no row if it was neither sealed nor protected yet.
SELECT resource, lock, ifnull(token, 0), source_id, history_id, digest, is_closed
FROM main.fencelock_mark WHERE resource = :resource;

-- name: read_marks
-- The marks of one resource, or of all.
SELECT resource, lock, ifnull(token, 0), source_id, history_id, digest, is_closed
FROM main.fencelock_mark WHERE :resource IS NULL OR resource = :resource ORDER BY resource;

-- name: insert_mark
-- The first mark of a resource.
INSERT INTO main.fencelock_mark (resource, lock, token, source_id, history_id, digest, is_closed, audit_id)
VALUES (:resource, :lock, nullif(:token, 0), :source_id, :history_id, :digest, :is_closed, :audit_id);

-- name: update_mark
-- Change a mark; a trigger of the file refuses what no lease may write.
UPDATE main.fencelock_mark
SET lock = :lock, token = nullif(:token, 0), source_id = :source_id, history_id = :history_id,
    digest = :digest, is_closed = :is_closed, audit_id = ifnull(:audit_id, audit_id),
    raised_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE resource = :resource;

-- name: close_mark
-- Close the mark of the lease with this digest, which was made from its claim.
UPDATE main.fencelock_mark SET is_closed = 1, raised_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE resource = :resource AND digest = :digest;

-- name: write_audit
-- Record an operator's action; the table adds the time.
INSERT INTO main.fencelock_audit (who, action, resource, from_token, to_token, reason, is_implausible)
VALUES (:who, :action, :resource, :from_token, :to_token, :reason, :is_implausible);

-- name: present
-- Compare the mark with the lease and admit this transaction's writes, in one step: if the mark differs, the token is
-- NULL, which the table refuses. (INSERT … SELECT would be materialised first because of the trigger: 4 us.) An existing
-- row was committed by a client without foreign keys, and is replaced.
INSERT OR REPLACE INTO main.fencelock_seal (resource, token, digest, client)
VALUES (
    ?,
    (
        SELECT mark.token FROM main.fencelock_mark AS mark
        WHERE mark.resource = ? AND mark.token = ? AND mark.digest = ? AND mark.lock = ?
            AND mark.source_id = ? AND mark.history_id = ? AND NOT mark.is_closed
    ),
    ?,
    'fencelock'
);

-- name: unpresent
-- Withdraw the presented token, so that the transaction can be committed.
DELETE FROM main.fencelock_seal WHERE resource = ?;

-- name: hold_marks
-- Take the write lock for the rest of the caller's transaction without changing a row.
UPDATE main.fencelock_mark SET lock = lock WHERE 0;

-- name: find_table
-- The table that a name means, as the schema spells it, and its kind.
SELECT name, type FROM pragma_table_list WHERE schema = 'main' AND name = :name COLLATE NOCASE;

-- name: read_parts
-- Every trigger and index of a user's table whose name is one of fencelock's, with the current name of the table.
SELECT name, tbl_name, sql FROM main.sqlite_schema
WHERE type IN ('trigger', 'index') AND name GLOB 'fencelock_*' AND NOT tbl_name GLOB 'fencelock_*' ORDER BY name;

-- name: read_names
-- The names of everything in the file that begins as fencelock's do.
SELECT name FROM main.sqlite_schema WHERE name GLOB 'fencelock_*';

-- name: read_protected
-- Every table that was protected and not unprotected since, whether its triggers still exist or not.
SELECT id, resource, name, mode FROM main.fencelock_protected ORDER BY id;

-- name: find_bare
-- A table of the resource that exists under its name, and whose rows do not meet all of its triggers; and the table on which
-- they are now, if there is one.
SELECT
    entry.name,
    (
        SELECT tbl_name FROM main.sqlite_schema
        WHERE type = 'trigger' AND name = 'fencelock_enforce_insert_' || entry.id
            AND tbl_name <> entry.name COLLATE NOCASE
    )
FROM main.fencelock_protected AS entry
WHERE entry.resource = :resource AND entry.mode = 'enforce'
    AND 3 > (
        SELECT count(*) FROM main.sqlite_schema
        WHERE type = 'trigger' AND tbl_name = entry.name COLLATE NOCASE AND name IN (
            'fencelock_enforce_insert_' || entry.id,
            'fencelock_enforce_update_' || entry.id,
            'fencelock_enforce_delete_' || entry.id
        )
    )
    AND EXISTS (
        SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = entry.name COLLATE NOCASE
    )
LIMIT 1;

-- name: schema_version
-- A number that changes with every table, index and trigger of the file.
PRAGMA main.schema_version;

-- name: add_protected
-- Register a protected table; its id becomes part of the names of its triggers, and is above all that were used before.
INSERT INTO main.fencelock_protected (id, resource, name, mode)
VALUES (
    1 + max(:highest, ifnull((SELECT seq FROM main.sqlite_sequence WHERE name = 'fencelock_protected'), 0)),
    :resource, :name, :mode
);

-- name: forget_records
-- Records that outlive the marks are void: their tables count as orphaned, and protecting one again raises its mark.
DELETE FROM main.fencelock_protected WHERE NOT EXISTS (SELECT 1 FROM main.fencelock_mark);

-- name: rename_protected
-- Record the name that a protected table has now.
UPDATE main.fencelock_protected SET name = :name WHERE id = :id;

-- name: remove_protected
-- Remove a protected table.
DELETE FROM main.fencelock_protected WHERE id = :id;

-- name: record_refusal
-- Count a lease that enforcement would have refused.
INSERT INTO main.fencelock_observed (resource, table_name, kind, count, first_at, last_at)
VALUES (:resource, '', :kind, 1, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
ON CONFLICT (resource, table_name, kind) DO UPDATE SET count = count + 1, last_at = excluded.last_at;

-- name: read_observed
-- The writes that observe mode counted, of one resource or of all.
SELECT resource, table_name, kind, count, first_at, last_at
FROM main.fencelock_observed WHERE :resource IS NULL OR resource = :resource
ORDER BY resource, table_name, kind;

-- name: count_seals
-- Committed seals: only a client without foreign keys can commit one.
SELECT count(*) FROM main.fencelock_seal;

-- name: list_kept
-- Resources that keep keys.
SELECT DISTINCT resource FROM main.fencelock_effect;

-- name: read_effect
-- What the resource keeps under a key.
SELECT key, token, holder, began_at, result, request_digest
FROM main.fencelock_effect WHERE resource = :resource AND key = :key;

-- name: begin_effect
-- Keep an intent under the token that this transaction presents, unless something is kept under its key.
INSERT INTO main.fencelock_effect (resource, key, token, holder, began_at, request_digest)
VALUES (
    :resource, :key, (SELECT token FROM main.fencelock_seal WHERE resource = :resource), :holder,
    strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), :request_digest
)
ON CONFLICT (resource, key) DO NOTHING;

-- name: write_effect
-- Insert or replace an effect under the token that this transaction presents. A result leaves the time at which its effect
-- began. (An upsert: REPLACE would delete the row.)
INSERT INTO main.fencelock_effect (resource, key, token, holder, began_at, result, request_digest)
VALUES (
    :resource, :key, (SELECT token FROM main.fencelock_seal WHERE resource = :resource), :holder,
    strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), :result, :request_digest
)
ON CONFLICT (resource, key) DO UPDATE SET
    token = excluded.token, holder = excluded.holder, result = excluded.result, request_digest = excluded.request_digest,
    began_at = CASE WHEN excluded.result IS NULL THEN excluded.began_at ELSE began_at END;

-- name: forget_effect
-- Forget an effect that was never begun.
DELETE FROM main.fencelock_effect WHERE resource = :resource AND key = :key;

-- name: purge_effects
-- Forget old results, except those whose token is the mark.
DELETE FROM main.fencelock_effect
WHERE result IS NOT NULL
    AND began_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-' || (:older_than_ms / 1000.0) || ' seconds')
    AND NOT EXISTS (
        SELECT 1 FROM main.fencelock_mark AS mark
        WHERE mark.resource = fencelock_effect.resource AND mark.token = fencelock_effect.token
    );

-- name: find_old_marks
-- The marks of a source that were not written for so long, and may be purged, in the order of their resources.
SELECT resource, lock, token, source_id, history_id, digest, is_closed
FROM main.fencelock_mark AS mark
WHERE source_id = :source_id AND token IS NOT NULL AND resource > :after
    AND raised_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-' || (:older_than_ms / 1000.0) || ' seconds')
    AND NOT EXISTS (SELECT 1 FROM main.fencelock_protected AS entry WHERE entry.resource = mark.resource)
    AND NOT (
        audit_id IS NOT NULL AND EXISTS (
            SELECT 1 FROM main.fencelock_audit AS entry WHERE entry.resource = mark.resource AND entry.action = 'rebind'
        )
    )
ORDER BY resource LIMIT :limit;

-- name: keeps_mark
-- Whether the mark of a resource is never purged: it protects a table, or an operator has moved it.
SELECT EXISTS (SELECT 1 FROM main.fencelock_protected AS entry WHERE entry.resource = mark.resource) OR (
    audit_id IS NOT NULL AND EXISTS (
        SELECT 1 FROM main.fencelock_audit AS entry WHERE entry.resource = mark.resource AND entry.action = 'rebind'
    )
)
FROM main.fencelock_mark AS mark WHERE resource = :resource;

-- name: forget_mark
-- Delete a mark; a trigger of the file refuses one that the floor does not cover.
DELETE FROM main.fencelock_mark WHERE resource = :resource;

-- name: add_floor
-- The first floor of a source.
INSERT INTO main.fencelock_floor (source_id, token, audit_id) VALUES (:source_id, :token, :audit_id);

-- name: set_floor
-- Set the floor of a source, by the authority of an audit entry.
UPDATE main.fencelock_floor SET token = :token, audit_id = :audit_id WHERE source_id = :source_id;

-- name: read_floors
-- The floors of all sources.
SELECT source_id, token FROM main.fencelock_floor WHERE token > 0 ORDER BY source_id;
