-- The source's functions, first file: the clock, the lock's row and its queue. store.py installs the files in this order:
-- schema, functions_queue, functions_lease, functions_history.
--
-- Functions with their owner's rights set their own search_path, so that no object of the caller's replaces one of
-- theirs. They set debug_print_plan off, too: any role may set it on and have plans sent to itself, with the values of
-- variables, which include other clients' claims. No table has a claim: `p_claim` is hashed twice before it is compared.

-- name: create_now_us
-- The server's clock at this moment, not at the beginning of the transaction (H1).
CREATE FUNCTION fencelock.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- name: create_location
-- Where this history is: cluster, database, table, and the timeline that is being written. pg_control_checkpoint() would
-- show the timeline of the last checkpoint.
CREATE FUNCTION fencelock.location() RETURNS text LANGUAGE sql VOLATILE AS
$$
    SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
                     (SELECT oid FROM pg_database WHERE datname = current_database()),
                     'fencelock.source'::regclass::oid,
                     substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))
$$;

-- name: create_refuse_time
-- Refuse a time that no client can have: Linux sets no clock past the year 2232. A lock that remembered such a time would
-- refuse every later claim, and after a purge so would all locks.
CREATE FUNCTION fencelock.refuse_time(p_said_us bigint, p_now_us bigint) RETURNS void LANGUAGE plpgsql AS
$$
BEGIN
    RAISE 'the time that came with the claim, %, is more than a thousand years after the server''s, %: restart the process',
        p_said_us, p_now_us USING ERRCODE = '22023';
END
$$;

-- name: create_refuse_claim
-- Refuse a claim that nobody could hold or see: a lock without a digest is free, and one without a holder looks free.
CREATE FUNCTION fencelock.refuse_claim() RETURNS void LANGUAGE plpgsql AS
$$
BEGIN
    RAISE 'a claim needs a digest, a mode that is try, wait or poll, and, but to poll, a holder of 1 to 512 bytes'
        USING ERRCODE = '22023';
END
$$;

-- name: create_settle_in
-- For a session that did not run settle_in when it connected, behind a pooler: commits need no flush, and never decide on
-- an old snapshot.
CREATE FUNCTION fencelock.settle_in() RETURNS void LANGUAGE plpgsql AS
$$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE 'a source decides at READ COMMITTED, and this transaction is %', current_setting('transaction_isolation')
            USING ERRCODE = 'FL101';
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
END
$$;

-- name: create_hold_lock
-- Lock the row of a lock until the end of the transaction, and create the row if there is none. Rows are created only
-- here, so here names are refused that a client could not read. (Converting text to its own encoding makes the server
-- check it.)
CREATE FUNCTION fencelock.hold_lock(p_lock bytea) RETURNS fencelock.lock LANGUAGE plpgsql AS
$$
DECLARE
    held fencelock.lock;
BEGIN
    LOOP
        SELECT * INTO held FROM fencelock.lock WHERE name = p_lock FOR UPDATE;
        IF FOUND THEN
            RETURN held;
        END IF;
        IF octet_length(convert(p_lock, 'UTF8', 'UTF8')) NOT BETWEEN 1 AND 512 THEN
            RAISE 'the name of a lock must have 1 to 512 bytes of UTF-8, and this one has %', octet_length(p_lock) USING ERRCODE = '22023';
        END IF;
        INSERT INTO fencelock.lock (name) VALUES (p_lock) ON CONFLICT (name) DO NOTHING;
    END LOOP;
END
$$;

-- name: create_remember_ended
-- Remember that a claim, which does not hold the lock, has ended. The lock's row is locked.
CREATE FUNCTION fencelock.remember_ended(p_lock bytea, p_digest text, p_ended_us bigint) RETURNS void LANGUAGE sql AS
$$
    UPDATE fencelock.lock
    SET forgotten_us = greatest(forgotten_us, ended_us), ended_us = p_ended_us, ended_digest = p_digest
    WHERE name = p_lock
$$;

-- name: create_live_head
-- The head of the queue of a lock whose row is locked. Waiters in front that have expired are removed (H7), and do not
-- come back (H8). A time left greater than the ttl, after the clock was set back, counts as the ttl.
CREATE FUNCTION fencelock.live_head(p_lock bytea, p_now_us bigint) RETURNS fencelock.waiter LANGUAGE plpgsql AS
$$
DECLARE
    head fencelock.waiter;
BEGIN
    LOOP
        SELECT * INTO head FROM fencelock.waiter WHERE lock = p_lock ORDER BY ticket LIMIT 1;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        IF head.deadline_us > p_now_us + head.ttl_ms * 1000 THEN
            -- For the whole queue at once, so that dead waiters do not delay it one after the other.
            UPDATE fencelock.waiter SET deadline_us = p_now_us + ttl_ms * 1000
            WHERE lock = p_lock AND deadline_us > p_now_us + ttl_ms * 1000;
            head.deadline_us := p_now_us + head.ttl_ms * 1000;
        END IF;
        IF head.deadline_us > p_now_us THEN
            RETURN head;
        END IF;
        DELETE FROM fencelock.waiter WHERE ticket = head.ticket;
        PERFORM fencelock.remember_ended(p_lock, head.digest, greatest(p_now_us, head.born_us));
    END LOOP;
END
$$;

-- name: create_remaining_us
-- The time left to the lease on a lock whose row is locked. A time left greater than its ttl counts as the ttl, from now
-- on.
CREATE FUNCTION fencelock.remaining_us(p_lock fencelock.lock, p_now_us bigint) RETURNS bigint LANGUAGE plpgsql AS
$$
BEGIN
    IF p_lock.deadline_us > p_now_us + p_lock.ttl_ms * 1000 THEN
        UPDATE fencelock.lock SET deadline_us = p_now_us + ttl_ms * 1000 WHERE name = p_lock.name;
        RETURN p_lock.ttl_ms * 1000;
    END IF;
    RETURN p_lock.deadline_us - p_now_us;
END
$$;

-- name: create_enqueue
-- Take a ticket; no row if the queue is full. All locks draw tickets from one sequence, so a queue is never longer than
-- the distance from its head: only a large distance needs counting.
CREATE FUNCTION fencelock.enqueue(
    p_lock bytea, p_digest text, p_holder text, p_ttl_ms bigint, p_born_us bigint, p_channel text, p_now_us bigint,
    p_limit bigint, p_head bigint)
RETURNS fencelock.waiter LANGUAGE plpgsql AS
$$
DECLARE
    own fencelock.waiter;
BEGIN
    INSERT INTO fencelock.waiter (lock, digest, holder, ttl_ms, deadline_us, born_us, channel)
    VALUES (p_lock, p_digest, p_holder, p_ttl_ms, p_now_us + p_ttl_ms * 1000, p_born_us, p_channel)
    RETURNING * INTO own;
    IF own.ticket - p_head >= p_limit AND (SELECT count(*) FROM fencelock.waiter WHERE lock = p_lock) > p_limit THEN
        DELETE FROM fencelock.waiter WHERE ticket = own.ticket;
        RETURN NULL;
    END IF;
    RETURN own;
END
$$;

-- name: create_stay_queued
-- Keep a live waiter's place for another ttl. Returns after how many milliseconds it must look again without a
-- notification: the head when the lease ends, the others when the waiter in front may have died.
CREATE FUNCTION fencelock.stay_queued(
    p_own fencelock.waiter, p_is_head boolean, p_remaining_us bigint, p_channel text, p_now_us bigint, p_head_wait_ms bigint)
RETURNS bigint LANGUAGE plpgsql AS
$$
DECLARE
    wait_us bigint := least(p_remaining_us, p_head_wait_ms * 1000);
BEGIN
    UPDATE fencelock.waiter SET deadline_us = p_now_us + ttl_ms * 1000, channel = p_channel WHERE ticket = p_own.ticket;
    IF NOT p_is_head THEN
        SELECT deadline_us - p_now_us INTO wait_us FROM fencelock.waiter
        WHERE lock = p_own.lock AND ticket < p_own.ticket ORDER BY ticket DESC LIMIT 1;
    END IF;
    RETURN greatest(1, least(wait_us / 1000, p_own.ttl_ms / 3));
END
$$;
