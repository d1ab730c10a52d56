-- name: create_source
-- One row: the source's identity, its counter (T1), and whose clock the deadlines are on. Tokens are issued up to
-- `bound`, which is raised only when `reserved` was flushed at least as high: what is read of a file may be a commit
-- whose flush was interrupted, and is on no disk yet.
CREATE TABLE fencelock_source (
    id             INTEGER PRIMARY KEY CHECK (id = 1),
    schema         INTEGER NOT NULL,
    source_id      TEXT    NOT NULL,
    epoch          INTEGER NOT NULL CHECK (epoch >= 1),
    history_id     TEXT    NOT NULL,
    counter        INTEGER NOT NULL CHECK (counter >= 0),
    bound          INTEGER NOT NULL CHECK (bound >= counter),
    reserved       INTEGER NOT NULL CHECK (reserved >= bound),
    flushes        INTEGER NOT NULL,  -- makes each reservation a change: SQLite flushes no commit without one
    born_after_us  INTEGER NOT NULL,  -- claims drawn until then are refused: everything was ended
    boot_id        TEXT    NOT NULL,
    time_namespace TEXT    NOT NULL,
    machine_id     TEXT    NOT NULL,
    inode          INTEGER NOT NULL,  -- another one, or another birth: this file is a copy
    born_ns        INTEGER NOT NULL   -- 0: the file system keeps no time of birth
) STRICT;

-- name: create_lock
-- One row a lock that was ever taken; no claim: free. Deadlines are milliseconds since boot. The row remembers which
-- claim ended last, and until when earlier ones ended: whatever claim was drawn until then may be a late duplicate of
-- one of them, and is refused (H4).
CREATE TABLE fencelock_lock (
    name         TEXT    PRIMARY KEY NOT NULL,
    token        INTEGER NOT NULL CHECK (token >= 1),
    claim        TEXT,
    holder       TEXT,
    ttl_ms       INTEGER NOT NULL,
    deadline_ms  INTEGER NOT NULL,
    ended        TEXT,                        -- why the last lease ended, for the holder that asks too late
    ended_claim  TEXT,
    ended_us     INTEGER NOT NULL DEFAULT 0,
    forgotten_us INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- name: create_token_spent_by_insert
-- A token leaves the counter in the step that writes it into a lock; the check on the bound makes it fail above (T1).
CREATE TRIGGER fencelock_token_spent_by_insert AFTER INSERT ON fencelock_lock
BEGIN UPDATE fencelock_source SET counter = NEW.token WHERE id = 1; END;

-- name: create_token_spent_by_update
-- The same for a lock that was taken before.
CREATE TRIGGER fencelock_token_spent_by_update AFTER UPDATE OF token ON fencelock_lock
BEGIN UPDATE fencelock_source SET counter = NEW.token WHERE id = 1; END;

-- name: create_waiter
-- One row a waiting claim; the order of tickets is the order of the queue (H7).
CREATE TABLE fencelock_waiter (
    ticket      INTEGER PRIMARY KEY AUTOINCREMENT,
    lock        TEXT    NOT NULL,
    claim       TEXT    NOT NULL UNIQUE,
    holder      TEXT    NOT NULL,
    ttl_ms      INTEGER NOT NULL,
    deadline_ms INTEGER NOT NULL
) STRICT;

-- name: create_waiter_order
-- Finds the head of a lock's queue without reading the rest.
CREATE INDEX fencelock_waiter_order ON fencelock_waiter (lock, ticket);

-- name: create_source_audit
-- What operators did to the source: epochs raised, leases broken (`holder`: whose). The claim of a break is kept, so that
-- the same request asked again, after its reply was lost, breaks nobody else's lease.
CREATE TABLE fencelock_source_audit (
    id      INTEGER PRIMARY KEY,
    at      TEXT NOT NULL,
    who     TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    token   INTEGER NOT NULL,
    reason  TEXT NOT NULL,
    holder  TEXT,
    claim   TEXT UNIQUE
) STRICT;

-- name: insert_source
-- The identity of a new source. Its first block of tokens is reserved before the first grant.
INSERT INTO fencelock_source
VALUES (1, :schema, :source_id, 1, :history_id, 0, 0, 0, 0, 0, :boot_id, :time_namespace, :machine_id, :inode, :born_ns);
