-- The tables of the source. Times are microseconds of the server's clock, and names of locks are the bytes of their
-- UTF-8.
--
-- A session's own temporary table hides the table of its name from routines. It cannot have partitions, so each table has
-- one, and each statement of a routine names it: it fails if the table is hidden. A unique key must contain what its table
-- is partitioned by: so a waiter's claim is unique at its lock, and nothing but its primary key in a table of keys or audit.

-- name: create_source
-- One row: the source's identity, its one counter, which key signs until when (NULL: none), and a secret from which
-- sessions' masks are drawn. The transaction that grants a token writes it here.
CREATE TABLE IF NOT EXISTS fencelock_source (
    id            TINYINT      NOT NULL PRIMARY KEY CHECK (id = 1),
    schema_number INT          NOT NULL,
    source_id     VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch         BIGINT       NOT NULL CHECK (epoch >= 1),
    history_id    VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    token         BIGINT       NOT NULL,
    key_id        VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin,
    key_until_s   BIGINT       NOT NULL DEFAULT 9223372036854775807,  -- a later key begins then
    mask_secret   VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    born_after_us BIGINT       NOT NULL,  -- refuse claims drawn until then: purged rows remembered them
    began_because TEXT         CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL
) ENGINE = InnoDB
PARTITION BY KEY () (PARTITION lasting);

-- name: create_lock
-- One row for each lock that was ever taken; without a claim, or with one of another epoch, it is free. The row remembers
-- which claim ended last (`ended_digest`), and until when earlier ones had ended (`forgotten_us`): a claim drawn until
-- then may be a late duplicate of one of them, and is refused (H4). `key_id` is the key that signed the lease's sequencer
-- (NULL: none). A transaction that changes the lock's queue locks
-- this row, and counts the waiters in it.
CREATE TABLE IF NOT EXISTS fencelock_lock (
    name         VARBINARY(512) NOT NULL PRIMARY KEY,
    token        BIGINT,
    epoch        BIGINT         NOT NULL DEFAULT 0,
    digest       VARCHAR(64)    CHARACTER SET ascii COLLATE ascii_bin,
    key_id       VARCHAR(64)    CHARACTER SET ascii COLLATE ascii_bin,
    holder       VARCHAR(512)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    ttl_ms       BIGINT         NOT NULL DEFAULT 0,
    deadline_us  BIGINT         NOT NULL DEFAULT 0,
    born_us      BIGINT         NOT NULL DEFAULT 0,
    ended        TEXT           CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,  -- why, for a holder that asks later
    ended_digest VARCHAR(64)    CHARACTER SET ascii COLLATE ascii_bin,
    ended_us     BIGINT         NOT NULL DEFAULT 0,
    forgotten_us BIGINT         NOT NULL DEFAULT 0,
    waiting      BIGINT         NOT NULL DEFAULT 0,
    last_ticket  BIGINT         NOT NULL DEFAULT 0,
    CONSTRAINT fencelock_a_ttl_is_a_day_at_most CHECK (ttl_ms BETWEEN 0 AND 86400000)
) ENGINE = InnoDB
PARTITION BY KEY () (PARTITION lasting);

-- name: create_waiter
-- One row for each waiting claim; the order of tickets is the order of the queue (H7).
CREATE TABLE IF NOT EXISTS fencelock_waiter (
    lock_name   VARBINARY(512) NOT NULL,
    ticket      BIGINT         NOT NULL,
    digest      VARCHAR(64)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    holder      VARCHAR(512)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    epoch       BIGINT         NOT NULL,
    ttl_ms      BIGINT         NOT NULL,
    deadline_us BIGINT         NOT NULL,
    born_us     BIGINT         NOT NULL,
    headed_us   BIGINT         NOT NULL,  -- since when it is the head of the queue; 0: it is not
    PRIMARY KEY (lock_name, ticket),
    UNIQUE (digest, lock_name),
    CONSTRAINT fencelock_a_waiter_s_ttl_is_a_day_at_most CHECK (ttl_ms BETWEEN 0 AND 86400000)
) ENGINE = InnoDB
PARTITION BY KEY (lock_name) (PARTITION lasting);

-- name: create_source_key
-- The keys with which this source signs sequencers, for its owner alone. `inner_pad` and `outer_pad` are the key XOR'ed
-- with HMAC's two constants. Times are seconds since 1970. Of two keys of one second, the higher number is the newer.
CREATE TABLE IF NOT EXISTS fencelock_source_key (
    number       BIGINT        NOT NULL AUTO_INCREMENT,
    key_id       VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    secret       VARBINARY(512) NOT NULL,
    inner_pad    BINARY(64)    NOT NULL,
    outer_pad    BINARY(64)    NOT NULL,
    not_before_s BIGINT        NOT NULL,
    retired_s    BIGINT,
    INDEX (number)
) ENGINE = InnoDB
PARTITION BY KEY () (PARTITION lasting);

-- name: create_source_audit
-- What operators did to the source. `who` is what the caller says, `account` the session's: nobody acts in another one's
-- name. The claim of a break is kept, so that a repeated request, after its reply was lost, breaks no second lease; who
-- breaks a lock holds its row.
CREATE TABLE IF NOT EXISTS fencelock_source_audit (
    id          BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    happened_at DATETIME(6)  NOT NULL,
    account     VARCHAR(288) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    who         VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    what        VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    lock_name   VARBINARY(512),
    token       BIGINT       NOT NULL,
    reason      TEXT         CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    holder      VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    digest      VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin,
    INDEX (digest)
) ENGINE = InnoDB
PARTITION BY KEY () (PARTITION lasting);
