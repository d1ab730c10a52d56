-- name: create_source
-- One row: the source's identity, its counter (T1), and the kernel whose clock the deadlines are on. Tokens are issued
-- up to `bound`, which is raised only after `reserved` was flushed at least as high. A value read from the file is not
-- enough: it may belong to a commit whose flush was interrupted and which is not on disk.
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
    born_after_us  INTEGER NOT NULL,  -- claims drawn until then are refused: all claims were ended
    boot_id        TEXT    NOT NULL,
    time_namespace TEXT    NOT NULL,
    machine_id     TEXT    NOT NULL,
    inode          INTEGER NOT NULL,  -- if the file has another inode or time of birth, it is a copy
    born_ns        INTEGER NOT NULL   -- 0: the file system keeps no time of birth
) STRICT;

-- name: create_lock
-- One row per lock that was taken at least once; without a digest it is free. The digest is H(H(claim)): who reads the
-- row can neither end the lease nor write in its name. Deadlines are milliseconds since boot. The row remembers the
-- claim that ended last, and when the one before it ended (`forgotten_us`): a claim drawn until then may be a late
-- duplicate of a forgotten one, and is refused (H4).
CREATE TABLE fencelock_lock (
    name         TEXT    PRIMARY KEY NOT NULL,
    token        INTEGER NOT NULL CHECK (token >= 1),
    digest       TEXT,
    holder       TEXT,
    ttl_ms       INTEGER NOT NULL,
    deadline_ms  INTEGER NOT NULL,
    ended        TEXT,                        -- why the last lease ended, for the holder that asks too late
    ended_digest TEXT,
    ended_us     INTEGER NOT NULL DEFAULT 0,
    forgotten_us INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- name: create_token_spent_by_insert
-- The counter advances in the step that writes the token into a lock; the CHECK on the bound refuses a higher token (T1).
CREATE TRIGGER fencelock_token_spent_by_insert AFTER INSERT ON fencelock_lock
BEGIN UPDATE fencelock_source SET counter = NEW.token WHERE id = 1; END;

-- name: create_token_spent_by_update
-- The same for a lock that was taken before.
CREATE TRIGGER fencelock_token_spent_by_update AFTER UPDATE OF token ON fencelock_lock
BEGIN UPDATE fencelock_source SET counter = NEW.token WHERE id = 1; END;

-- name: create_waiter
-- One row per waiting claim; the queue is ordered by ticket (H7).
CREATE TABLE fencelock_waiter (
    ticket      INTEGER PRIMARY KEY AUTOINCREMENT,
    lock        TEXT    NOT NULL,
    digest      TEXT    NOT NULL UNIQUE,
    holder      TEXT    NOT NULL,
    ttl_ms      INTEGER NOT NULL,
    deadline_ms INTEGER NOT NULL
) STRICT;

-- name: create_waiter_order
-- Finds the head of a lock's queue without reading the rest.
CREATE INDEX fencelock_waiter_order ON fencelock_waiter (lock, ticket);

-- name: create_source_audit
-- Operators' actions: epochs raised, leases broken (`holder` had the lease). The digest of a break is kept, so that a
-- request repeated after a lost reply does not break a later holder's lease.
CREATE TABLE fencelock_source_audit (
    id      INTEGER PRIMARY KEY,
    at      TEXT NOT NULL,
    who     TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    token   INTEGER NOT NULL,
    reason  TEXT NOT NULL,
    holder  TEXT,
    digest  TEXT UNIQUE
) STRICT;

-- name: insert_source
-- The identity of a new source. Its first block of tokens is reserved before the first grant.
INSERT INTO fencelock_source
VALUES (1, :schema, :source_id, 1, :history_id, 0, 0, 0, 0, 0, :boot_id, :time_namespace, :machine_id, :inode, :born_ns);
