-- name: create_source
-- One row: the source's identity, and its one counter. Each token is written here by the transaction that grants it.
CREATE TABLE IF NOT EXISTS fencelock_source (
    id            TINYINT      NOT NULL PRIMARY KEY CHECK (id = 1),
    schema_number INT          NOT NULL,
    source_id     VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch         BIGINT       NOT NULL CHECK (epoch >= 1),
    history_id    VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    token         BIGINT       NOT NULL,
    born_after_us BIGINT       NOT NULL,  -- claims drawn until then are refused: what was remembered of them is gone
    began_because TEXT         CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL
) ENGINE = InnoDB;

-- name: create_lock
-- One row a lock that was ever taken; no claim, or one of another epoch: free. Times are microseconds of the server's clock.
-- The row remembers which claim ended last, and until when earlier ones ended: whatever claim was drawn until then may be a
-- late duplicate of one of them, and is refused (H4). Who changes the lock's queue holds this row, and counts it here.
CREATE TABLE IF NOT EXISTS fencelock_lock (
    name         VARBINARY(512) NOT NULL PRIMARY KEY,
    token        BIGINT,
    epoch        BIGINT         NOT NULL DEFAULT 0,
    claim        VARCHAR(64)    CHARACTER SET ascii COLLATE ascii_bin,
    holder       VARCHAR(512)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    ttl_ms       BIGINT         NOT NULL DEFAULT 0,
    deadline_us  BIGINT         NOT NULL DEFAULT 0,
    born_us      BIGINT         NOT NULL DEFAULT 0,
    ended        TEXT           CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,  -- for the holder that asks too late
    ended_claim  VARCHAR(64)    CHARACTER SET ascii COLLATE ascii_bin,
    ended_us     BIGINT         NOT NULL DEFAULT 0,
    forgotten_us BIGINT         NOT NULL DEFAULT 0,
    waiting      BIGINT         NOT NULL DEFAULT 0,
    last_ticket  BIGINT         NOT NULL DEFAULT 0,
    CONSTRAINT fencelock_a_ttl_is_a_day_at_most CHECK (ttl_ms BETWEEN 0 AND 86400000)
) ENGINE = InnoDB;

-- name: create_waiter
-- One row a waiting claim; the order of tickets is the order of the queue (H7).
CREATE TABLE IF NOT EXISTS fencelock_waiter (
    lock_name   VARBINARY(512) NOT NULL,
    ticket      BIGINT         NOT NULL,
    claim       VARCHAR(64)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL UNIQUE,
    holder      VARCHAR(512)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    epoch       BIGINT         NOT NULL,
    ttl_ms      BIGINT         NOT NULL,
    deadline_us BIGINT         NOT NULL,
    born_us     BIGINT         NOT NULL,
    headed_us   BIGINT         NOT NULL,  -- since when it is the first in the queue; 0: it is not yet
    PRIMARY KEY (lock_name, ticket),
    CONSTRAINT fencelock_a_waiter_s_ttl_is_a_day_at_most CHECK (ttl_ms BETWEEN 0 AND 86400000)
) ENGINE = InnoDB;

-- name: create_source_audit
-- What operators did to the source. The claim of a break is kept, so that the same request asked again, after its reply was
-- lost, breaks nobody else's lease.
CREATE TABLE IF NOT EXISTS fencelock_source_audit (
    id          BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    happened_at DATETIME(6)  NOT NULL,
    who         VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    what        VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    lock_name   VARBINARY(512),
    token       BIGINT       NOT NULL,
    reason      TEXT         CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    holder      VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    claim       VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin UNIQUE
) ENGINE = InnoDB;
