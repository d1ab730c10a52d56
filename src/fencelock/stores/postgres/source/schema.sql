-- name: create_source
-- One row: the source's identity, and the tokens that are reserved for its present history. `place` is where that history
-- is: it differs in a dump that was restored elsewhere, in a copy of the database and on a promoted standby. `xid` is the
-- transaction that wrote the row: one that came out of a dump is known by its xmin, which is another.
CREATE TABLE fencelock.source (
    id            integer PRIMARY KEY CHECK (id = 1),
    schema        integer NOT NULL,
    source_id     text    NOT NULL,
    epoch         bigint  NOT NULL CHECK (epoch >= 1),
    history_id    text    NOT NULL,
    bound         bigint  NOT NULL CHECK (bound > 0),
    born_after_us bigint  NOT NULL,  -- claims drawn until then are refused: what was remembered of them is gone
    place         text    NOT NULL,
    xid           xid     NOT NULL
);

-- name: create_witness
-- One row while the server runs on without a break. It is not logged, so any recovery empties it: after a crash, in a base
-- backup, on a promoted standby. A dump carries it along, and then its xmin is not the transaction that is written in it.
CREATE UNLOGGED TABLE fencelock.witness (
    id    integer PRIMARY KEY CHECK (id = 1),
    xid   xid     NOT NULL,
    place text    NOT NULL
);

-- name: create_token
-- The counter. What a crash takes from it is never issued again: the next history begins above all of the last one.
CREATE SEQUENCE fencelock.token AS bigint NO CYCLE CACHE 1;

-- name: create_lock
-- One row a lock that was ever taken; no claim: free. Times are microseconds of the server's clock. The row remembers which
-- claim ended last, and until when earlier ones ended: whatever claim was drawn until then may be a late duplicate of one
-- of them, and is refused (H4). A claim ends never before it was drawn, whatever the clock does.
CREATE TABLE fencelock.lock (
    name         bytea  PRIMARY KEY,
    token        bigint CHECK (token >= 1),
    claim        text,
    holder       text,
    ttl_ms       bigint NOT NULL DEFAULT 0,
    deadline_us  bigint NOT NULL DEFAULT 0,
    born_us      bigint NOT NULL DEFAULT 0,
    ended        text,                         -- why the last lease ended, for the holder that asks too late
    ended_claim  text,
    ended_us     bigint NOT NULL DEFAULT 0,
    forgotten_us bigint NOT NULL DEFAULT 0,
    CONSTRAINT a_ttl_is_a_day_at_most CHECK (ttl_ms BETWEEN 0 AND 86400000)
) WITH (fillfactor = 50);

-- name: create_waiter
-- One row a waiting claim; the order of tickets is the order of the queue (H7). `channel` is where its process listens.
CREATE TABLE fencelock.waiter (
    ticket      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lock        bytea  NOT NULL,
    claim       text   NOT NULL UNIQUE,
    holder      text   NOT NULL,
    ttl_ms      bigint NOT NULL,
    deadline_us bigint NOT NULL,
    born_us     bigint NOT NULL,
    channel     text,
    CONSTRAINT a_ttl_is_a_day_at_most CHECK (ttl_ms BETWEEN 0 AND 86400000)
) WITH (fillfactor = 70);

-- name: create_waiter_order
-- Finds the head of a lock's queue without reading the rest.
CREATE INDEX waiter_order ON fencelock.waiter (lock, ticket);

-- name: create_source_audit
-- What operators did to the source, and the breaks that it noticed itself. The claim of a break is kept, so that the same
-- request asked again, after its reply was lost, breaks nobody else's lease.
CREATE TABLE fencelock.source_audit (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    who     text   NOT NULL,
    action  text   NOT NULL,
    subject text   NOT NULL,
    token   bigint NOT NULL,
    reason  text   NOT NULL,
    holder  text,
    claim   text UNIQUE
);

-- name: create_answer
-- What `acquire` answers: the outcome, with the token and the time that goes with it, and whose token it is.
CREATE TYPE fencelock.answer AS (
    outcome    text,
    token      bigint,
    time_ms    bigint,
    now_us     bigint,
    source_id  text,
    epoch      bigint,
    history_id text
);
