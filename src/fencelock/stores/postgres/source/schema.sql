-- The tables of the source. Times are microseconds, and names of locks are the bytes of their UTF-8.

-- name: create_source
-- One row: the source's identity, and the tokens reserved for its current history. `location` is where that history is:
-- it differs in a dump that was restored elsewhere, in a copy of the database and on a promoted standby. `xid` is the
-- transaction that wrote the row: a row from a dump has another xmin.
CREATE TABLE fencelock.source (
    id            integer PRIMARY KEY CHECK (id = 1),
    schema        integer NOT NULL,
    source_id     text    NOT NULL,
    epoch         bigint  NOT NULL CHECK (epoch >= 1),
    history_id    text    NOT NULL,
    bound         bigint  NOT NULL CHECK (bound > 0),
    born_after_us bigint  NOT NULL,  -- refuse claims drawn until then: purged rows remembered them
    location      text    NOT NULL,
    xid           xid     NOT NULL
);

-- name: create_witness
-- One row while the server runs without interruption. The table is unlogged, so any recovery empties it: after a crash,
-- in a base backup, on a promoted standby. A dump contains the row, but its xmin is not the transaction that it names.
CREATE UNLOGGED TABLE fencelock.witness (
    id    integer PRIMARY KEY CHECK (id = 1),
    xid   xid     NOT NULL,
    location text    NOT NULL
);

-- name: create_token
-- The counter. Values that a crash loses are never issued again, since the next history begins above everything that the
-- last one had reserved.
CREATE SEQUENCE fencelock.token AS bigint NO CYCLE CACHE 1;

-- name: create_lock
-- One row for each lock that was ever taken; without a digest it is free. Times are microseconds of the server's clock.
-- Tables keep no claim, only digests, H(H(claim)), with which nobody can release or write (G12).
-- The row remembers which claim ended last (`ended_digest`), and until when earlier ones had ended (`forgotten_us`): a
-- claim drawn until then may be a late duplicate of one of them, and is refused (H4). A claim never ends before it was
-- drawn, whatever the clock does. `history_id` and `key_id` (NULL: none) are those of the lease's sequencer.
CREATE TABLE fencelock.lock (
    name         bytea  PRIMARY KEY,
    token        bigint CHECK (token >= 1),
    digest       text,
    history_id   text,
    key_id       text,
    holder       text,
    ttl_ms       bigint NOT NULL DEFAULT 0,
    deadline_us  bigint NOT NULL DEFAULT 0,
    born_us      bigint NOT NULL DEFAULT 0,
    ended        text,                         -- why the last lease ended, for a holder that asks later
    ended_digest text,
    ended_us     bigint NOT NULL DEFAULT 0,
    forgotten_us bigint NOT NULL DEFAULT 0,
    CONSTRAINT a_ttl_is_a_day_at_most CHECK (ttl_ms BETWEEN 0 AND 86400000)
) WITH (fillfactor = 50);

-- name: create_waiter
-- One row for each waiting claim; the order of tickets is the order of the queue (H7). `channel` is where its process
-- listens.
CREATE TABLE fencelock.waiter (
    ticket      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lock        bytea  NOT NULL,
    digest      text   NOT NULL UNIQUE,
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
-- What operators did to the source, and the breaks of its history that it noticed itself. `who` is what the caller says,
-- `role` the session's: nobody acts in another one's name. The digest of a break's claim is kept, so that a repeated
-- request, after its reply was lost, breaks no second lease.
CREATE TABLE fencelock.source_audit (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    role    text   NOT NULL DEFAULT session_user,
    who     text   NOT NULL,
    action  text   NOT NULL,
    subject text   NOT NULL,
    token   bigint NOT NULL,
    reason  text   NOT NULL,
    holder  text,
    digest  text UNIQUE
);

-- name: create_signing_key
-- The keys with which this source signs sequencers, for its owner alone. `inner_pad` and `outer_pad` are the key XOR'ed
-- with HMAC's two constants. Times are seconds since 1970.
CREATE TABLE fencelock.signing_key (
    number       bigint GENERATED ALWAYS AS IDENTITY,  -- the order of keys that begin in the same second
    key_id       text   PRIMARY KEY CHECK (key_id ~ '^[A-Za-z0-9_-]{1,64}$' AND key_id <> '0'),
    secret       bytea  NOT NULL,
    inner_pad    bytea  NOT NULL CHECK (octet_length(inner_pad) = 64),
    outer_pad    bytea  NOT NULL CHECK (octet_length(outer_pad) = 64),
    not_before_s bigint NOT NULL,
    retired_s    bigint
);

-- name: create_signing_key_order
-- Finds the newest key without sorting: each grant looks for it. With retired keys in it, the planner would sort.
CREATE INDEX signing_key_order ON fencelock.signing_key (not_before_s, number) WHERE retired_s IS NULL;

-- name: create_answer
-- The answer of `acquire`: the outcome, with the token and the time that belong to it, the source that issued the token,
-- and the signature of the sequencer.
CREATE TYPE fencelock.answer AS (
    outcome    text,
    token      bigint,
    time_ms    bigint,
    now_us     bigint,
    source_id  text,
    epoch      bigint,
    history_id text,
    key_id     text,
    signature  text
);
