-- What the guard asks of the file. `main.` keeps a temporary table of the user's out of the way.

-- name: has_schema
-- Whether this file has marks at all.
SELECT count(*) FROM main.sqlite_schema WHERE type = 'table' AND name = 'fencelock_guard';

-- name: read_schema_number
-- The number of the schema, before anything else is used.
SELECT schema FROM main.fencelock_guard WHERE id = 1;

-- name: read_mark
-- One resource's mark; no row: neither sealed nor protected yet.
SELECT resource, lock, ifnull(token, 0), source_id, history_id, claim, is_closed
FROM main.fencelock_mark WHERE resource = :resource;

-- name: read_marks
-- The marks of one resource, or of all.
SELECT resource, lock, ifnull(token, 0), source_id, history_id, claim, is_closed
FROM main.fencelock_mark WHERE :resource IS NULL OR resource = :resource ORDER BY resource;

-- name: insert_mark
-- The first mark of a resource.
INSERT INTO main.fencelock_mark (resource, lock, token, source_id, history_id, claim, is_closed, audit_id)
VALUES (:resource, :lock, nullif(:token, 0), :source_id, :history_id, :claim, :is_closed, :audit_id);

-- name: update_mark
-- A new state of a mark; the file itself refuses what no lease may write.
UPDATE main.fencelock_mark
SET lock = :lock, token = nullif(:token, 0), source_id = :source_id, history_id = :history_id,
    claim = :claim, is_closed = :is_closed, audit_id = ifnull(:audit_id, audit_id)
WHERE resource = :resource;

-- name: write_audit
-- An operator's deed; the file adds when.
INSERT INTO main.fencelock_audit (who, action, resource, from_token, to_token, reason)
VALUES (:who, :action, :resource, :from_token, :to_token, :reason);

-- name: present
-- Compare the mark with the lease, and admit this transaction's writes, in one step: where the mark is another, the
-- token becomes NULL, which the table refuses. (INSERT … SELECT would be materialised first, for the trigger: 4 us.) A
-- row that is there already was committed by a client without foreign keys: it is replaced.
INSERT OR REPLACE INTO main.fencelock_seal (resource, token, claim, client)
VALUES (
    ?,
    (
        SELECT mark.token FROM main.fencelock_mark AS mark
        WHERE mark.resource = ? AND mark.token = ? AND mark.claim = ? AND mark.lock = ?
            AND mark.source_id = ? AND mark.history_id = ? AND NOT mark.is_closed
    ),
    ?,
    'fencelock'
);

-- name: unpresent
-- Take back what was presented: now the transaction can be committed.
DELETE FROM main.fencelock_seal WHERE resource = ?;

-- name: hold_marks
-- Take the write lock for the rest of the caller's transaction, without a change.
UPDATE main.fencelock_mark SET lock = lock WHERE 0;

-- name: find_table
-- What a name means: the table in its own spelling, and its kind.
SELECT name, type FROM pragma_table_list WHERE schema = 'main' AND name = :name COLLATE NOCASE;

-- name: read_triggers
-- Every trigger of a protected table, under the name that the table has now, which may be a new one.
SELECT entry.id, entry.resource, made.tbl_name, made.name
FROM main.fencelock_protected AS entry
JOIN main.sqlite_schema AS made ON made.type = 'trigger'
    AND made.name IN (
        'fencelock_enforce_insert_' || entry.id,
        'fencelock_enforce_update_' || entry.id,
        'fencelock_enforce_delete_' || entry.id,
        'fencelock_observe_insert_' || entry.id,
        'fencelock_observe_update_' || entry.id,
        'fencelock_observe_delete_' || entry.id
    )
ORDER BY entry.id;

-- name: read_protected
-- Every table that was ever protected and not unprotected, whether its triggers are still there or not.
SELECT id, resource, name FROM main.fencelock_protected ORDER BY id;

-- name: add_protected
-- A table is protected from now on; its number goes into the names of its triggers.
INSERT INTO main.fencelock_protected (resource, name) VALUES (:resource, :name);

-- name: remove_protected
-- A table is not protected any more.
DELETE FROM main.fencelock_protected WHERE id = :id;

-- name: record_refusal
-- A lease that enforcement would have refused was let through.
INSERT INTO main.fencelock_observed (resource, table_name, kind, count, first_at, last_at)
VALUES (:resource, '', :kind, 1, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
ON CONFLICT (resource, table_name, kind) DO UPDATE SET count = count + 1, last_at = excluded.last_at;

-- name: read_observed
-- What observe mode let pass, of one resource or of all.
SELECT resource, table_name, kind, count, first_at, last_at
FROM main.fencelock_observed WHERE :resource IS NULL OR resource = :resource
ORDER BY resource, table_name, kind;

-- name: count_seals
-- Seals that were committed: only a client that switched foreign keys off can have done that.
SELECT count(*) FROM main.fencelock_seal;
