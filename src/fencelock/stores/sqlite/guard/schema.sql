-- The guard's tables in a file that it protects. The statements run in this order, in one transaction.
--
-- How a file knows which transaction holds a token: a transaction presents its token as a row of fencelock_seal, and
-- that table has a deferred foreign key that no row can satisfy. Only the triggers of the same transaction can see the
-- row, because no COMMIT succeeds while it exists; the guard deletes it just before its own COMMIT. This needs `PRAGMA
-- foreign_keys = ON` before BEGIN.
--
-- A mark and a seal hold the digest, H(proof), which their writer makes: SQLite has no hash function. Everybody who can open
-- the file can write it, so the digest keeps no secret from them; it keeps the proof out of copies and backups.

-- name: guard
-- The number of this schema; any other number is refused.
CREATE TABLE main.fencelock_guard (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    schema INTEGER NOT NULL
) STRICT;

-- name: guard_row
-- Record the schema number.
INSERT INTO main.fencelock_guard (id, schema) VALUES (1, 3);

-- name: audit
-- Operators' actions on resources, with time (UTC) and reason. Append-only. `is_implausible` is 1 if the operator
-- vouches for a token that no source can have issued by now.
CREATE TABLE main.fencelock_audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    who TEXT NOT NULL,
    action TEXT NOT NULL,
    resource TEXT NOT NULL,
    from_token INTEGER NOT NULL CHECK (from_token BETWEEN 0 AND 9223372036854775807),
    to_token INTEGER NOT NULL CHECK (to_token BETWEEN 0 AND 9223372036854775807),
    reason TEXT NOT NULL CHECK (trim(reason) <> ''),
    is_implausible INTEGER NOT NULL DEFAULT 0 CHECK (is_implausible IN (0, 1))
) STRICT;

-- name: mark
-- The highest token that each resource has promised (NULL: none yet), and the lease that the mark belongs to (NULL: an
-- operator's). `audit_id` is the entry of the last change by an operator, `raised_at` (UTC) the time of the last write.
CREATE TABLE main.fencelock_mark (
    resource TEXT PRIMARY KEY,
    lock TEXT NOT NULL,
    token INTEGER CHECK (token BETWEEN 1 AND 9223372036854775807),
    source_id TEXT,
    history_id TEXT,
    digest TEXT,
    is_closed INTEGER NOT NULL DEFAULT 0 CHECK (is_closed IN (0, 1)),
    audit_id INTEGER REFERENCES fencelock_audit (id),
    raised_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT, WITHOUT ROWID;

-- name: floor
-- The highest token of each source up to which marks were purged: a resource without a mark admits only tokens above it
-- (G15). `audit_id` is the entry of the last change.
CREATE TABLE main.fencelock_floor (
    source_id TEXT PRIMARY KEY,
    token INTEGER NOT NULL CHECK (token BETWEEN 0 AND 9223372036854775807),
    audit_id INTEGER NOT NULL REFERENCES fencelock_audit (id)
) STRICT, WITHOUT ROWID;

-- name: never
-- A table that can have no row.
CREATE TABLE main.fencelock_never (id INTEGER PRIMARY KEY CHECK (0)) STRICT;

-- name: seal
-- The tokens that the open transaction presents; never committed. `client` says who checked that foreign keys are on.
CREATE TABLE main.fencelock_seal (
    resource TEXT PRIMARY KEY,
    token INTEGER NOT NULL,
    digest TEXT NOT NULL,
    client TEXT NOT NULL DEFAULT 'other',
    never INTEGER NOT NULL DEFAULT 1 CHECK (never = 1)
        REFERENCES fencelock_never (id) DEFERRABLE INITIALLY DEFERRED
) STRICT, WITHOUT ROWID;

-- name: protected
-- Protected tables; the id is part of their triggers' names, `name` and `mode` are those at the time of `protect`. The
-- mode in force is only in the triggers.
CREATE TABLE main.fencelock_protected (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    resource TEXT NOT NULL,
    name TEXT NOT NULL,
    mode TEXT NOT NULL CHECK (mode IN ('enforce', 'observe'))
) STRICT;

-- name: observed
-- What observe mode counted; `table_name` is empty for a lease that would have been refused.
CREATE TABLE main.fencelock_observed (
    resource TEXT NOT NULL,
    table_name TEXT NOT NULL,
    kind TEXT NOT NULL,
    count INTEGER NOT NULL,
    first_at TEXT NOT NULL,
    last_at TEXT NOT NULL,
    PRIMARY KEY (resource, table_name, kind)
) STRICT, WITHOUT ROWID;

-- name: effect
-- What is done once per key, in a guarded block (`once=`) or outside of the file (`fencelock.dispatch`): who began it, with
-- which token, its result (NULL: nobody has recorded one), and the digest of the request.
CREATE TABLE main.fencelock_effect (
    resource TEXT NOT NULL,
    key TEXT NOT NULL CHECK (length(CAST(key AS BLOB)) BETWEEN 1 AND 512),
    token INTEGER NOT NULL,
    holder TEXT NOT NULL,
    began_at TEXT NOT NULL,
    result TEXT CHECK (length(CAST(result AS BLOB)) <= 4096),
    request_digest TEXT NOT NULL DEFAULT '' CHECK (length(request_digest) <= 64),
    PRIMARY KEY (resource, key)
) STRICT, WITHOUT ROWID;

-- name: check_seal
-- For clients in any language: refuse to present a token that is not the mark, or without the foreign keys that keep the
-- seal from being committed. The guard checks both itself. A client that pretends to be the guard gains nothing, because
-- the triggers of the tables compare the seal with the mark again. (FAIL suffices: there is nothing for ABORT to undo.)
CREATE TRIGGER main.fencelock_check_seal BEFORE INSERT ON fencelock_seal
WHEN NEW.client <> 'fencelock'
BEGIN
    SELECT RAISE(FAIL, 'fencelock: this token is not the mark of its resource, or its holder closed it: a newer holder owns the resource. Stop, and acquire the lock again')
    WHERE NOT EXISTS (
        SELECT 1 FROM fencelock_mark AS mark
        WHERE mark.resource = NEW.resource AND mark.token = NEW.token AND mark.digest = NEW.digest AND NOT mark.is_closed
    );
    SELECT RAISE(FAIL, 'fencelock: a token can only be presented while foreign keys are on: run PRAGMA foreign_keys = ON before BEGIN')
    WHERE NOT EXISTS (SELECT 1 FROM pragma_foreign_keys WHERE foreign_keys = 1);
END;

-- name: check_tables
-- For clients in any language: refuse to present a token while a protected table of the resource exists under its name, and
-- its rows do not meet all triggers (G16). The guard checks it itself, and less often.
CREATE TRIGGER main.fencelock_check_tables BEFORE INSERT ON fencelock_seal
WHEN NEW.client <> 'fencelock' AND EXISTS (
    SELECT 1 FROM fencelock_protected AS entry
    WHERE entry.resource = NEW.resource AND entry.mode = 'enforce'
        AND 3 > (
            SELECT count(*) FROM sqlite_schema
            WHERE type = 'trigger' AND tbl_name = entry.name COLLATE NOCASE AND name IN (
                'fencelock_enforce_insert_' || entry.id,
                'fencelock_enforce_update_' || entry.id,
                'fencelock_enforce_delete_' || entry.id
            )
        )
        AND EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = entry.name COLLATE NOCASE)
)
BEGIN
    SELECT RAISE(FAIL, 'fencelock: a protected table of this resource was rebuilt, and its rows meet no trigger: run fencelock protect');
END;

-- name: keep_mark
-- Allow the changes that a lease may make (raise the mark under the same lock and source, or close it); any other change
-- needs a new audit entry for exactly that change.
CREATE TRIGGER main.fencelock_keep_mark BEFORE UPDATE ON fencelock_mark
WHEN NOT (
    NEW.resource = OLD.resource
    AND CASE
        WHEN NEW.audit_id IS NOT OLD.audit_id THEN
            NEW.audit_id > ifnull(OLD.audit_id, 0)
            AND EXISTS (
                SELECT 1 FROM fencelock_audit AS entry
                WHERE entry.id = NEW.audit_id AND entry.resource = OLD.resource
                    AND entry.from_token = ifnull(OLD.token, 0) AND entry.to_token = ifnull(NEW.token, 0)
                    AND (entry.action = 'rebind' OR NEW.lock = OLD.lock)
            )
        WHEN NEW.lock <> OLD.lock OR (OLD.source_id IS NOT NULL AND NEW.source_id IS NOT OLD.source_id) THEN 0
        WHEN NEW.token IS OLD.token THEN
            NEW.digest IS OLD.digest AND NEW.source_id IS OLD.source_id AND NEW.history_id IS OLD.history_id
            AND NEW.is_closed >= OLD.is_closed
        ELSE ifnull(NEW.token > ifnull(OLD.token, 0), 0)
    END
)
BEGIN
    SELECT RAISE(ABORT, 'fencelock: a mark only goes up, and stays with its lock. An operator may lower or move it, with a reason: see fencelock marks --help and fencelock rebind --help');
END;

-- name: plausible_raise
-- Refuse a token that no source can have issued by now: a source begins at most 2^30 tokens for each second since 2026,
-- and nothing is issued 2^50 above that, or above the last token (see `token_ceiling`). An operator's entry may vouch for
-- it. A sum that exceeds 64 bits becomes a REAL, which is above every token.
CREATE TRIGGER main.fencelock_plausible_raise BEFORE UPDATE ON fencelock_mark
WHEN NEW.token > max((strftime('%s', 'now') - 1767225600) * 1073741824, ifnull(OLD.token, 0)) + 1125899906842624
    AND NOT EXISTS (
        SELECT 1 FROM fencelock_audit AS entry
        WHERE entry.id = NEW.audit_id AND entry.to_token = NEW.token AND entry.is_implausible
    )
BEGIN
    SELECT RAISE(ABORT, 'fencelock: this token is implausible: no source can have issued it by now. Find out who made it');
END;

-- name: plausible_first
-- The same for the first mark of a resource.
CREATE TRIGGER main.fencelock_plausible_first BEFORE INSERT ON fencelock_mark
WHEN NEW.token > max((strftime('%s', 'now') - 1767225600) * 1073741824, 0) + 1125899906842624
    AND NOT EXISTS (
        SELECT 1 FROM fencelock_audit AS entry
        WHERE entry.id = NEW.audit_id AND entry.to_token = NEW.token AND entry.is_implausible
    )
BEGIN
    SELECT RAISE(ABORT, 'fencelock: this token is implausible: no source can have issued it by now. Find out who made it');
END;

-- name: keep_mark_row
-- Refuse to replace an existing mark, as INSERT OR REPLACE would.
CREATE TRIGGER main.fencelock_keep_mark_row BEFORE INSERT ON fencelock_mark
WHEN EXISTS (SELECT 1 FROM fencelock_mark WHERE resource = NEW.resource)
BEGIN
    SELECT RAISE(ABORT, 'fencelock: this resource has a mark already: it may be updated, not replaced');
END;

-- name: above_floor_first
-- Refuse the first mark of a resource whose token is not above the floor of its source: it may be older than a mark that
-- was purged (G15). An operator's mark may equal the floor, for it admits only higher tokens.
CREATE TRIGGER main.fencelock_above_floor_first BEFORE INSERT ON fencelock_mark
WHEN EXISTS (
    SELECT 1 FROM fencelock_floor AS floor
    WHERE floor.source_id = NEW.source_id AND ifnull(NEW.token, 0) < floor.token + (NEW.digest IS NOT NULL)
)
BEGIN
    SELECT RAISE(ABORT, 'fencelock: this resource has no mark of this source, and marks of the source with this token or a higher one were purged here. Nothing was written; acquire the lock again');
END;

-- name: above_floor_bound
-- The same for a mark that gets a source which it did not have.
CREATE TRIGGER main.fencelock_above_floor_bound BEFORE UPDATE ON fencelock_mark
WHEN NEW.source_id IS NOT OLD.source_id AND EXISTS (
    SELECT 1 FROM fencelock_floor AS floor
    WHERE floor.source_id = NEW.source_id AND ifnull(NEW.token, 0) < floor.token + (NEW.digest IS NOT NULL)
)
BEGIN
    SELECT RAISE(ABORT, 'fencelock: this resource has no mark of this source, and marks of the source with this token or a higher one were purged here. Nothing was written; acquire the lock again');
END;

-- name: keep_mark_forever
-- Refuse to delete a mark, for without it old tokens would be admitted again: except one whose source has a floor that
-- refuses them, whose resource protects no table, and which was never moved from another lock or source (G15).
CREATE TRIGGER main.fencelock_keep_mark_forever BEFORE DELETE ON fencelock_mark
WHEN NOT EXISTS (
        SELECT 1 FROM fencelock_floor AS floor WHERE floor.source_id = OLD.source_id AND floor.token >= OLD.token
    )
    OR EXISTS (SELECT 1 FROM fencelock_protected AS entry WHERE entry.resource = OLD.resource)
    OR (
        OLD.audit_id IS NOT NULL
        AND EXISTS (SELECT 1 FROM fencelock_audit AS entry WHERE entry.resource = OLD.resource AND entry.action = 'rebind')
    )
BEGIN
    SELECT RAISE(ABORT, 'fencelock: a mark is never deleted, except by fencelock purge --marks. To stop enforcing it, run fencelock unprotect');
END;

-- name: keep_floor
-- A floor only rises; an operator's new audit entry for exactly that change, whose reason names the source, may lower it.
CREATE TRIGGER main.fencelock_keep_floor BEFORE UPDATE ON fencelock_floor
WHEN NOT (
    NEW.source_id = OLD.source_id AND NEW.audit_id >= OLD.audit_id
    AND (
        NEW.token >= OLD.token
        OR NEW.audit_id > OLD.audit_id AND EXISTS (
            SELECT 1 FROM fencelock_audit AS entry
            WHERE entry.id = NEW.audit_id AND entry.action = 'floor'
                AND instr(entry.reason, '(source ' || OLD.source_id || ')') > 0
                AND entry.from_token = OLD.token AND entry.to_token = NEW.token
        )
    )
)
BEGIN
    SELECT RAISE(ABORT, 'fencelock: a floor only goes up. An operator may lower it, with a reason: see fencelock marks --help');
END;

-- name: keep_floor_row
-- Refuse to replace a floor.
CREATE TRIGGER main.fencelock_keep_floor_row BEFORE INSERT ON fencelock_floor
WHEN EXISTS (SELECT 1 FROM fencelock_floor WHERE source_id = NEW.source_id)
BEGIN
    SELECT RAISE(ABORT, 'fencelock: this source has a floor already: it may be updated, not replaced');
END;

-- name: keep_floor_forever
-- Refuse to delete a floor: without it every token that was purged would be admitted again.
CREATE TRIGGER main.fencelock_keep_floor_forever BEFORE DELETE ON fencelock_floor
BEGIN
    SELECT RAISE(ABORT, 'fencelock: a floor is never deleted. An operator may lower it: see fencelock marks --help');
END;

-- name: keep_audit
-- Refuse to change an audit entry.
CREATE TRIGGER main.fencelock_keep_audit BEFORE UPDATE ON fencelock_audit
BEGIN
    SELECT RAISE(ABORT, 'fencelock: audit entries are only ever added');
END;

-- name: keep_audit_row
-- Refuse to replace an audit entry.
CREATE TRIGGER main.fencelock_keep_audit_row BEFORE INSERT ON fencelock_audit
WHEN EXISTS (SELECT 1 FROM fencelock_audit WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'fencelock: audit entries are only ever added');
END;

-- name: keep_audit_forever
-- Refuse to delete an audit entry.
CREATE TRIGGER main.fencelock_keep_audit_forever BEFORE DELETE ON fencelock_audit
BEGIN
    SELECT RAISE(ABORT, 'fencelock: audit entries are only ever added');
END;

-- name: keep_effect_row
-- Keep an effect only of a transaction that presents the open mark of the resource, under that token.
CREATE TRIGGER main.fencelock_keep_effect_row BEFORE INSERT ON fencelock_effect
WHEN NOT EXISTS (
    SELECT 1 FROM fencelock_seal AS seal JOIN fencelock_mark AS mark USING (resource, token, digest)
    WHERE seal.resource = NEW.resource AND seal.token = NEW.token AND NOT mark.is_closed
)
BEGIN
    SELECT RAISE(ABORT, 'fencelock: an effect is kept only inside a guarded transaction of its resource: use once=, or fencelock.dispatch');
END;

-- name: keep_effect
-- The same for a change of one.
CREATE TRIGGER main.fencelock_keep_effect BEFORE UPDATE ON fencelock_effect
WHEN NEW.resource <> OLD.resource OR NOT EXISTS (
    SELECT 1 FROM fencelock_seal AS seal JOIN fencelock_mark AS mark USING (resource, token, digest)
    WHERE seal.resource = NEW.resource AND seal.token = NEW.token AND NOT mark.is_closed
)
BEGIN
    SELECT RAISE(ABORT, 'fencelock: an effect is kept only inside a guarded transaction of its resource: use once=, or fencelock.dispatch');
END;

-- name: keep_done
-- A result stays as long as the token under which it was recorded is the mark: its holder may ask for it again.
CREATE TRIGGER main.fencelock_keep_done BEFORE DELETE ON fencelock_effect
WHEN OLD.result IS NOT NULL AND EXISTS (
    SELECT 1 FROM fencelock_mark AS mark WHERE mark.resource = OLD.resource AND mark.token = OLD.token
)
BEGIN
    SELECT RAISE(ABORT, 'fencelock: a result stays while its token is the mark of its resource: use fencelock purge --done');
END;

-- name: keep_intent
-- Only a holder takes back an intent.
CREATE TRIGGER main.fencelock_keep_intent BEFORE DELETE ON fencelock_effect
WHEN OLD.result IS NULL AND NOT EXISTS (
    SELECT 1 FROM fencelock_seal AS seal JOIN fencelock_mark AS mark USING (resource, token, digest)
    WHERE seal.resource = OLD.resource AND NOT mark.is_closed
)
BEGIN
    SELECT RAISE(ABORT, 'fencelock: an effect is kept only inside a guarded transaction of its resource: use once=, or fencelock.dispatch');
END;
