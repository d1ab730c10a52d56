-- What the source does inside the database, after source_schema.sql. What runs with its owner's rights has a search_path of
-- its own, and debug_print_plan off: any role may set that on and have plans sent to itself, with what variables held, the
-- claims of others among it.

-- name: create_now_us
-- The server's clock at this moment, not at the beginning of the transaction (H1).
CREATE FUNCTION fencelock.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- name: create_place
-- Where this is: cluster, database, table, and the timeline that is written at this moment, which pg_control_checkpoint()
-- shows late.
CREATE FUNCTION fencelock.place() RETURNS text LANGUAGE sql VOLATILE AS
$$
    SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
                     (SELECT oid FROM pg_database WHERE datname = current_database()),
                     'fencelock.source'::regclass::oid,
                     substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))
$$;

-- name: create_refuse_time
-- Refuse a time that no client has heard of: Linux sets no clock past the year 2232. A lock whose claims ended then was spoiled
-- for good, since none is drawn later; a purge spoiled all.
CREATE FUNCTION fencelock.refuse_time(p_said_us bigint, p_now_us bigint) RETURNS void LANGUAGE plpgsql AS
$$
BEGIN
    RAISE 'the time that came with the claim, %, is more than a thousand years after the server''s, %: start the process anew',
        p_said_us, p_now_us USING ERRCODE = '22023';
END
$$;

-- name: create_settle_in
-- For whoever did not settle in when it connected, behind a pooler: a change is not flushed, nor decided on a past snapshot.
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
-- Hold a lock's row still until the end of the transaction; it is made if there is none, and nowhere else, so here is where
-- a name is refused that no client could read. (Conversion to the same encoding is the server's check of it.)
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
            RAISE 'the name of a lock has 1 to 512 bytes of UTF-8, and not %', octet_length(p_lock) USING ERRCODE = '22023';
        END IF;
        INSERT INTO fencelock.lock (name) VALUES (p_lock) ON CONFLICT (name) DO NOTHING;
    END LOOP;
END
$$;

-- name: create_remember_ended
-- A claim that does not hold the lock, whose row is held, is over.
CREATE FUNCTION fencelock.remember_ended(p_lock bytea, p_claim text, p_ended_us bigint) RETURNS void LANGUAGE sql AS
$$
    UPDATE fencelock.lock
    SET forgotten_us = greatest(forgotten_us, ended_us), ended_us = p_ended_us, ended_claim = p_claim
    WHERE name = p_lock
$$;

-- name: create_live_head
-- Whose turn it is at a lock whose row is held. Waiters in front whose own time is up are passed over (H7), and do not come
-- back (H8); a time left greater than the ttl, after the clock was set back, counts as the ttl.
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
            -- For the whole queue: the dead ones in it are not waited for one after the other.
            UPDATE fencelock.waiter SET deadline_us = p_now_us + ttl_ms * 1000
            WHERE lock = p_lock AND deadline_us > p_now_us + ttl_ms * 1000;
            head.deadline_us := p_now_us + head.ttl_ms * 1000;
        END IF;
        IF head.deadline_us > p_now_us THEN
            RETURN head;
        END IF;
        DELETE FROM fencelock.waiter WHERE ticket = head.ticket;
        PERFORM fencelock.remember_ended(p_lock, head.claim, greatest(p_now_us, head.born_us));
    END LOOP;
END
$$;

-- name: create_remaining_us
-- The time left to the lease on a lock whose row is held. A time left greater than its ttl counts as the ttl, from now on.
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
-- Take a ticket; no row if the queue has its largest length. Tickets of all locks are one sequence, so that a queue cannot
-- be longer than the distance from its head: only a large distance has to be counted.
CREATE FUNCTION fencelock.enqueue(
    p_lock bytea, p_claim text, p_holder text, p_ttl_ms bigint, p_born_us bigint, p_channel text, p_now_us bigint,
    p_limit bigint, p_head bigint)
RETURNS fencelock.waiter LANGUAGE plpgsql AS
$$
DECLARE
    own fencelock.waiter;
BEGIN
    INSERT INTO fencelock.waiter (lock, claim, holder, ttl_ms, deadline_us, born_us, channel)
    VALUES (p_lock, p_claim, p_holder, p_ttl_ms, p_now_us + p_ttl_ms * 1000, p_born_us, p_channel)
    RETURNING * INTO own;
    IF own.ticket - p_head >= p_limit AND (SELECT count(*) FROM fencelock.waiter WHERE lock = p_lock) > p_limit THEN
        DELETE FROM fencelock.waiter WHERE ticket = own.ticket;
        RETURN NULL;
    END IF;
    RETURN own;
END
$$;

-- name: create_stay_queued
-- The waiter is alive: its place is kept for another ttl. Returns after how many milliseconds it must look again, whatever
-- it is told: the head when the lease ends, the others when the waiter in front may be dead.
CREATE FUNCTION fencelock.stay_queued(
    p_own fencelock.waiter, p_is_head boolean, p_remaining_us bigint, p_channel text, p_now_us bigint, p_head_wait_ms bigint)
RETURNS bigint LANGUAGE plpgsql AS
$$
DECLARE
    patience_us bigint := least(p_remaining_us, p_head_wait_ms * 1000);
BEGIN
    UPDATE fencelock.waiter SET deadline_us = p_now_us + ttl_ms * 1000, channel = p_channel WHERE ticket = p_own.ticket;
    IF NOT p_is_head THEN
        SELECT deadline_us - p_now_us INTO patience_us FROM fencelock.waiter
        WHERE lock = p_own.lock AND ticket < p_own.ticket ORDER BY ticket DESC LIMIT 1;
    END IF;
    RETURN greatest(1, least(patience_us / 1000, p_own.ttl_ms / 3));
END
$$;

-- name: create_decide
-- Decide who gets a lock, and mint its token, all cases considered; as `acquire`, but for its common one.
CREATE FUNCTION fencelock.decide(
    p_lock bytea, p_claim text, p_holder text, p_ttl_ms bigint, p_born_us bigint, p_mode text, p_channel text,
    p_head_wait_ms bigint, p_queue_limit bigint)
RETURNS fencelock.answer LANGUAGE plpgsql AS
$$
DECLARE
    held   fencelock.lock;
    own    fencelock.waiter;
    head   fencelock.waiter;
    state  record;
    answer fencelock.answer;
    remaining_us bigint := 0;
BEGIN
    held := fencelock.hold_lock(p_lock);
    -- After the row is held: what the row does not remember any more, the source does (see purge).
    SELECT s.source_id, s.epoch, s.history_id, s.bound, s.born_after_us, w.id IS NOT NULL AS is_whole,
           EXISTS (SELECT FROM fencelock.waiter AS q WHERE q.lock = p_lock) AS has_queue, fencelock.now_us() AS now_us
    INTO STRICT state FROM fencelock.source AS s
    LEFT JOIN fencelock.witness AS w ON w.id = 1 AND w.xmin = w.xid AND s.xmin = s.xid WHERE s.id = 1;
    answer.source_id := state.source_id;
    answer.epoch := state.epoch;
    answer.history_id := state.history_id;
    answer.now_us := state.now_us;
    IF NOT state.is_whole THEN
        answer.outcome := 'spent';
        RETURN answer;
    END IF;
    IF held.claim IS NOT NULL THEN
        remaining_us := fencelock.remaining_us(held, state.now_us);
    END IF;
    IF held.claim = p_claim THEN
        -- Asked again: the same token while its lease runs, never a fresh one (T3).
        answer.outcome := CASE WHEN remaining_us > 0 THEN 'held' ELSE 'ended' END;
        answer.token := held.token;
        answer.time_ms := remaining_us / 1000;
        RETURN answer;
    END IF;
    IF state.has_queue THEN
        head := fencelock.live_head(p_lock, state.now_us);
        SELECT * INTO own FROM fencelock.waiter WHERE claim = p_claim AND lock = p_lock;
        held := fencelock.hold_lock(p_lock);  -- It may remember other claims now.
        IF own.deadline_us <= state.now_us THEN
            DELETE FROM fencelock.waiter WHERE ticket = own.ticket;
            PERFORM fencelock.remember_ended(p_lock, p_claim, greatest(state.now_us, own.born_us));
            answer.outcome := 'ended';
            RETURN answer;
        END IF;
    END IF;
    IF own.ticket IS NULL THEN
        IF p_mode = 'poll' OR p_claim = held.ended_claim
           OR p_born_us <= greatest(held.forgotten_us, state.born_after_us) THEN
            answer.outcome := 'ended';
            answer.now_us := greatest(state.now_us, held.forgotten_us + 1, state.born_after_us + 1);
            RETURN answer;
        END IF;
        IF remaining_us > 0 OR head.ticket IS NOT NULL THEN
            IF p_mode = 'try' THEN
                answer.outcome := 'busy';
                RETURN answer;
            END IF;
            own := fencelock.enqueue(
                p_lock, p_claim, p_holder, p_ttl_ms, p_born_us, p_channel, state.now_us, p_queue_limit, head.ticket);
            IF own.ticket IS NULL THEN
                answer.outcome := 'full';
                RETURN answer;
            END IF;
        END IF;
    END IF;
    IF remaining_us > 0 OR head.ticket <> own.ticket THEN
        answer.outcome := 'queued';
        answer.time_ms := fencelock.stay_queued(
            own, coalesce(head.ticket = own.ticket, true), remaining_us, p_channel, state.now_us, p_head_wait_ms);
        RETURN answer;
    END IF;
    answer.token := nextval('fencelock.token');
    IF answer.token > state.bound THEN
        answer.outcome := 'spent';
        RETURN answer;
    END IF;
    answer.outcome := 'granted';
    UPDATE fencelock.lock AS l SET
        token = answer.token, claim = p_claim, holder = coalesce(own.holder, p_holder), ended = NULL,
        ttl_ms = coalesce(own.ttl_ms, p_ttl_ms), born_us = coalesce(own.born_us, p_born_us),
        deadline_us = fencelock.now_us() + coalesce(own.ttl_ms, p_ttl_ms) * 1000,
        forgotten_us = CASE WHEN l.claim IS NULL THEN l.forgotten_us ELSE greatest(l.forgotten_us, l.ended_us) END,
        ended_us = CASE WHEN l.claim IS NULL THEN l.ended_us ELSE greatest(state.now_us, l.born_us) END,
        ended_claim = coalesce(l.claim, l.ended_claim)
    WHERE l.name = p_lock
    RETURNING l.ttl_ms INTO answer.time_ms;
    IF own.ticket IS NOT NULL THEN
        DELETE FROM fencelock.waiter WHERE ticket = own.ticket;
    END IF;
    RETURN answer;
END
$$;

-- name: create_acquire
-- Take a lock, queue for it, or look again. `p_mode`: 'try' (now or never), 'wait' (or be queued), 'poll' (is queued already).
-- Outcomes: granted, held (by this very claim), queued, busy, ended (the claim is over; now_us is later than all that ended),
-- spent (no token is reserved: begin a history first), full. The common case is one UPDATE: the lock was taken before and is
-- free, nobody waits, tokens abound, and the claim cannot be a late duplicate. If the row was changed since the statement
-- began, the comparison of its xmin with what it was then fails, and all is decided anew.
CREATE FUNCTION fencelock.acquire(
    p_lock bytea, p_claim text, p_holder text, p_ttl_ms bigint, p_born_us bigint, p_mode text, p_channel text,
    p_head_wait_ms bigint, p_queue_limit bigint)
RETURNS fencelock.answer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    answer fencelock.answer;
    bound  bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') <> 'off' THEN
        PERFORM fencelock.settle_in();
    END IF;
    answer.now_us := fencelock.now_us();
    IF p_born_us > answer.now_us + 31556952000000000 THEN
        PERFORM fencelock.refuse_time(p_born_us, answer.now_us);
    END IF;
    UPDATE fencelock.lock AS l SET
        token = nextval('fencelock.token'), claim = p_claim, holder = p_holder, ended = NULL, ttl_ms = p_ttl_ms,
        born_us = p_born_us, deadline_us = answer.now_us + p_ttl_ms * 1000
    FROM fencelock.lock AS before, fencelock.source AS s, fencelock.witness AS w
    WHERE before.name = p_lock AND l.name = before.name AND l.xmin = before.xmin AND p_mode <> 'poll'
      AND l.claim IS NULL AND l.ended_claim IS DISTINCT FROM p_claim
      AND l.forgotten_us < p_born_us AND s.born_after_us < p_born_us
      AND NOT EXISTS (SELECT FROM fencelock.waiter AS q WHERE q.lock = p_lock)
      AND s.id = 1 AND s.xmin = s.xid AND w.id = 1 AND w.xmin = w.xid
      AND s.bound - (SELECT t.last_value FROM fencelock.token AS t) > 100000
    RETURNING l.token, s.source_id, s.epoch, s.history_id, s.bound
    INTO answer.token, answer.source_id, answer.epoch, answer.history_id, bound;
    IF NOT FOUND THEN
        RETURN fencelock.decide(
            p_lock, p_claim, p_holder, p_ttl_ms, p_born_us, p_mode, p_channel, p_head_wait_ms, p_queue_limit);
    ELSIF answer.token > bound THEN
        RAISE 'a hundred thousand tokens were drawn at once in epoch %: try again', answer.epoch USING ERRCODE = 'FL103';
    END IF;
    answer.outcome := 'granted';
    answer.time_ms := p_ttl_ms;
    RETURN answer;
END
$$;

-- name: create_token_grows
-- Whoever writes a lock's row, its token only grows (T1).
CREATE FUNCTION fencelock.token_grows() RETURNS trigger LANGUAGE plpgsql AS
$$
BEGIN
    RAISE 'it had token %, and the counter says %', OLD.token, NEW.token USING ERRCODE = 'FL102';
END
$$;

-- name: create_token_grows_trigger
-- The check costs nothing where it holds.
CREATE TRIGGER token_grows BEFORE UPDATE OF token ON fencelock.lock FOR EACH ROW
WHEN (NEW.token <= OLD.token) EXECUTE FUNCTION fencelock.token_grows();

-- name: create_ring
-- Tell the head of a lock's queue, if there is one, that its turn may have come. The channel carries no claim.
CREATE FUNCTION fencelock.ring(p_lock bytea, p_now_us bigint) RETURNS void LANGUAGE plpgsql AS
$$
DECLARE
    head fencelock.waiter := fencelock.live_head(p_lock, p_now_us);
BEGIN
    IF head.channel IS NOT NULL THEN
        PERFORM pg_notify(head.channel, encode(sha256(convert_to(head.claim, 'UTF8')), 'hex'));
    END IF;
END
$$;

-- name: create_end_lease
-- Free a lock if this claim holds it; it ended no earlier than it was drawn. Returns whether it did.
CREATE FUNCTION fencelock.end_lease(p_lock bytea, p_claim text, p_ended_us bigint) RETURNS boolean LANGUAGE plpgsql AS
$$
BEGIN
    UPDATE fencelock.lock SET
        claim = NULL, holder = NULL, deadline_us = 0, ended = 'it was released',
        forgotten_us = greatest(forgotten_us, ended_us), ended_us = greatest(p_ended_us, born_us), ended_claim = p_claim
    WHERE name = p_lock AND claim = p_claim;
    RETURN FOUND;
END
$$;

-- name: create_release
-- End a claim for good, wherever it is: holding, queued, ended before, or not yet arrived; and ring for the next one.
CREATE FUNCTION fencelock.release(p_lock bytea, p_claim text, p_asked_us bigint, OUT was_held boolean, OUT now_us bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    held fencelock.lock;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') <> 'off' THEN
        PERFORM fencelock.settle_in();
    END IF;
    now_us := fencelock.now_us();
    IF p_asked_us > now_us + 31556952000000000 THEN
        PERFORM fencelock.refuse_time(p_asked_us, now_us);
    END IF;
    was_held := fencelock.end_lease(p_lock, p_claim, greatest(now_us, p_asked_us));
    IF NOT was_held THEN
        held := fencelock.hold_lock(p_lock);
        -- Once more: an acquire that was cancelled may have been under way, and granted at this moment.
        was_held := fencelock.end_lease(p_lock, p_claim, greatest(now_us, p_asked_us));
        DELETE FROM fencelock.waiter WHERE claim = p_claim AND lock = p_lock;
        IF NOT was_held AND held.ended_claim IS DISTINCT FROM p_claim THEN
            PERFORM fencelock.remember_ended(p_lock, p_claim, greatest(now_us, p_asked_us));
        END IF;
    END IF;
    IF EXISTS (SELECT FROM fencelock.waiter AS q WHERE q.lock = p_lock) THEN
        PERFORM fencelock.ring(p_lock, now_us);
    END IF;
END
$$;

-- name: create_renew
-- Extend every lease of a batch that is still running. The rows are held before the clock is read (H1).
CREATE FUNCTION fencelock.renew(p_locks bytea[], p_claims text[])
RETURNS TABLE (claim text, remaining_ms bigint, reason text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    moment bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') <> 'off' THEN
        PERFORM fencelock.settle_in();
    END IF;
    PERFORM FROM unnest(p_locks, p_claims) AS asked (lock, claim)
    JOIN fencelock.lock AS l ON l.name = asked.lock AND l.claim = asked.claim
    FOR UPDATE OF l;
    moment := fencelock.now_us();
    RETURN QUERY
    WITH renewed AS (
        UPDATE fencelock.lock AS l SET deadline_us = moment + l.ttl_ms * 1000
        FROM unnest(p_locks, p_claims) AS asked (lock, claim)
        WHERE l.name = asked.lock AND l.claim = asked.claim AND l.deadline_us > moment
        RETURNING l.claim, l.ttl_ms
    )
    SELECT asked.claim, r.ttl_ms,
           CASE WHEN r.claim IS NOT NULL THEN NULL
                WHEN l.name IS NULL THEN 'the source no longer knows the lock'
                WHEN l.claim = asked.claim THEN 'it expired at the source before it was renewed'
                WHEN l.claim IS NOT NULL THEN format('%s holds the lock now, with token %s', l.holder, l.token)
                ELSE coalesce(l.ended, 'it ended at the source') END
    FROM unnest(p_locks, p_claims) AS asked (lock, claim)
    LEFT JOIN renewed AS r ON r.claim = asked.claim
    LEFT JOIN fencelock.lock AS l ON r.claim IS NULL AND l.name = asked.lock;
END
$$;

-- name: create_describe
-- The source's identity and counter, and whether its history goes on unbroken here: never on a standby, where the witness
-- cannot even be looked at.
CREATE FUNCTION fencelock.describe(
    OUT schema integer, OUT is_whole boolean, OUT now_us bigint, OUT source_id text, OUT epoch bigint, OUT history_id text,
    OUT last_token bigint, OUT bound bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
BEGIN
    SELECT s.schema, fencelock.now_us(), s.source_id, s.epoch, s.history_id,
           CASE WHEN t.is_called THEN t.last_value ELSE t.last_value - 1 END, s.bound
    INTO schema, now_us, source_id, epoch, history_id, last_token, bound
    FROM fencelock.source AS s CROSS JOIN fencelock.token AS t;
    is_whole := false;
    IF NOT pg_is_in_recovery() THEN
        is_whole := EXISTS (
            SELECT FROM fencelock.witness AS w CROSS JOIN fencelock.source AS s
            WHERE w.xmin = w.xid AND s.xmin = s.xid AND w.place = fencelock.place());
    END IF;
END
$$;

-- name: create_past_us
-- Later than every claim that is known here was drawn, and than every one that was forgotten.
CREATE FUNCTION fencelock.past_us() RETURNS bigint LANGUAGE sql VOLATILE AS
$$
    SELECT greatest(fencelock.now_us(), (SELECT born_after_us FROM fencelock.source),
                    (SELECT max(greatest(born_us, ended_us, forgotten_us)) FROM fencelock.lock),
                    (SELECT max(born_us) FROM fencelock.waiter))
$$;

-- name: create_begin_history
-- Begin a history above every token of the old one, on the disk before anybody gets a token of it (T1, T7): above all that
-- was reserved here, and, where the clocks are right, above what others reserved who knew more than is known here: 2**30
-- tokens for each second. A primary that was replaced too early, a standby that was promoted before this one, the original
-- of a copy. An operator's history begins at a multiple of 2**40, and so does one whose clock says no more than is known.
CREATE FUNCTION fencelock.begin_history(p_seen bigint, p_is_noticed boolean, p_who text, p_reason text) RETURNS void
LANGUAGE plpgsql AS
$$
DECLARE
    old     fencelock.source;
    fresh   text := substr(replace(gen_random_uuid()::text, '-', ''), 1, 16);
    clock   numeric := (extract(epoch FROM clock_timestamp()) - 1767225600) * 1073741824;
    by_clock bigint := CASE WHEN clock BETWEEN 0 AND 4611686018427387904 THEN clock ELSE 0 END;
    highest bigint;
    base    bigint;
BEGIN
    SELECT * INTO STRICT old FROM fencelock.source FOR UPDATE;
    SELECT greatest(old.bound, p_seen, t.last_value, (SELECT max(token) FROM fencelock.lock)) INTO highest
    FROM fencelock.token AS t;
    IF highest >= 9223372036854775807 - 2 * 1099511627776 THEN
        RAISE 'no token is left above epoch %: make a new source', old.epoch USING ERRCODE = 'FL103';
    END IF;
    IF p_is_noticed AND by_clock > highest THEN
        base := by_clock;
    ELSE
        base := (greatest(highest, by_clock) / 1099511627776 + 1) * 1099511627776;
    END IF;
    PERFORM setval('fencelock.token', base);
    UPDATE fencelock.source SET
        epoch = old.epoch + 1, history_id = fresh, bound = base + 67108864, place = fencelock.place(),
        born_after_us = fencelock.past_us(), xid = pg_current_xact_id()::xid;
    DELETE FROM fencelock.witness;
    INSERT INTO fencelock.witness VALUES (1, pg_current_xact_id()::xid, fencelock.place());
    INSERT INTO fencelock.source_audit (who, action, subject, token, reason) VALUES (
        p_who, CASE WHEN p_is_noticed THEN 'begin history' ELSE 'raise epoch' END, old.history_id, base, p_reason);
END
$$;

-- name: create_begin_flushed
-- What every change of the history begins with: it is flushed, and one at a time.
CREATE FUNCTION fencelock.begin_flushed() RETURNS void LANGUAGE plpgsql AS
$$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM FROM fencelock.source FOR UPDATE;
END
$$;

-- name: create_reserve
-- Make sure that tokens are reserved, 2**26 of them at a time. After any recovery this begins a new history: a crash of this
-- server cannot be told from a backup of it, or a standby, that knows less than was issued. Leases whose rows are still
-- there go on.
CREATE FUNCTION fencelock.reserve(p_who text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    state record;
BEGIN
    PERFORM fencelock.begin_flushed();
    SELECT * INTO STRICT state FROM fencelock.describe();
    IF NOT state.is_whole THEN
        PERFORM fencelock.begin_history(0, true, p_who, 'the server has recovered, or this is another place');
    ELSIF state.bound - state.last_token <= 33554432 THEN
        IF greatest(state.bound, state.last_token) > 9223372036854775807 - 67108864 THEN
            RAISE 'no token is left above %: make a new source', state.last_token USING ERRCODE = 'FL103';
        END IF;
        UPDATE fencelock.source
        SET bound = greatest(bound, state.last_token) + 67108864, xid = pg_current_xact_id()::xid;
    END IF;
END
$$;

-- name: create_raise_epoch
-- An operator begins a new history, if the old one is still the one that was read; every lease ends. Returns whether it did.
CREATE FUNCTION fencelock.raise_epoch(p_history_id text, p_seen bigint, p_who text, p_reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
BEGIN
    -- Whoever is being granted a lock is waited for, and nobody is until this is done: every lease is seen, and ends.
    LOCK TABLE fencelock.lock IN EXCLUSIVE MODE;
    PERFORM fencelock.begin_flushed();
    IF NOT EXISTS (SELECT FROM fencelock.source WHERE history_id = p_history_id) THEN
        RETURN false;
    END IF;
    PERFORM fencelock.begin_history(p_seen, false, p_who, p_reason);
    UPDATE fencelock.lock SET
        ended = CASE WHEN claim IS NULL THEN ended ELSE 'the source''s epoch was raised: ' || p_reason END,
        claim = NULL, holder = NULL, deadline_us = 0, ended_claim = NULL, ended_us = 0, forgotten_us = 0;
    DELETE FROM fencelock.waiter;
    RETURN true;
END
$$;

-- name: create_break_lease
-- Free a lock, whoever holds it, and mint the breaker's token. Asked again under the same claim it ends nobody else's lease.
CREATE FUNCTION fencelock.break_lease(p_lock bytea, p_name text, p_claim text, p_who text, p_reason text)
RETURNS TABLE (token bigint, source_id text, epoch bigint, history_id text, holder text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    held   fencelock.lock;
    done   fencelock.source_audit;
    bound  bigint;
    moment bigint;
    is_whole boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') <> 'off' THEN
        PERFORM fencelock.settle_in();
    END IF;
    -- An operator who was told that a lease is broken finds it broken after a power cut, too.
    PERFORM set_config('synchronous_commit', 'on', true);
    held := fencelock.hold_lock(p_lock);
    moment := fencelock.now_us();
    SELECT s.source_id, s.epoch, s.history_id, s.bound, w.id IS NOT NULL
    INTO STRICT source_id, epoch, history_id, bound, is_whole FROM fencelock.source AS s
    LEFT JOIN fencelock.witness AS w ON w.xmin = w.xid AND s.xmin = s.xid;
    SELECT * INTO done FROM fencelock.source_audit AS a WHERE a.claim = p_claim;
    IF FOUND THEN
        token := done.token;
        holder := done.holder;
    ELSIF is_whole THEN
        token := nextval('fencelock.token');
        IF token > bound THEN
            token := NULL;
        ELSE
            IF held.claim IS NOT NULL AND fencelock.remaining_us(held, moment) > 0 THEN
                holder := held.holder;
            END IF;
            UPDATE fencelock.lock AS l SET
                token = break_lease.token, claim = NULL, holder = NULL, deadline_us = 0,
                ended = format('%s broke it: %s', p_who, p_reason),
                forgotten_us = CASE WHEN l.claim IS NULL THEN l.forgotten_us ELSE greatest(l.forgotten_us, l.ended_us) END,
                ended_us = CASE WHEN l.claim IS NULL THEN l.ended_us ELSE greatest(moment, l.born_us) END,
                ended_claim = coalesce(l.claim, l.ended_claim)
            WHERE l.name = p_lock;
            INSERT INTO fencelock.source_audit (who, action, subject, token, reason, holder, claim)
            VALUES (p_who, 'break', p_name, token, p_reason, break_lease.holder, p_claim);
        END IF;
    END IF;
    PERFORM fencelock.ring(p_lock, moment);
    RETURN NEXT;
END
$$;

-- name: create_purge
-- Forget locks that nobody holds or waits for; their tokens stay spent (T6), and every claim drawn until now is refused.
CREATE FUNCTION fencelock.purge(OUT gone bigint, OUT now_us bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    freed bytea[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') <> 'off' THEN
        PERFORM fencelock.settle_in();
    END IF;
    -- Held first: a claim that ends at this moment, on one of these locks, does so before what is remembered, or after all.
    SELECT array_agg(free.name) INTO freed FROM (
        SELECT l.name FROM fencelock.lock AS l CROSS JOIN fencelock.now_us() AS moment
        WHERE (l.claim IS NULL OR l.deadline_us <= moment)
          AND NOT EXISTS (SELECT FROM fencelock.waiter AS q WHERE q.lock = l.name AND q.deadline_us > moment)
        FOR UPDATE OF l SKIP LOCKED
    ) AS free;
    UPDATE fencelock.source SET born_after_us = fencelock.past_us(), xid = pg_current_xact_id()::xid
    RETURNING born_after_us + 1 INTO now_us;
    DELETE FROM fencelock.waiter WHERE lock = ANY (freed);
    DELETE FROM fencelock.lock WHERE name = ANY (freed);
    GET DIAGNOSTICS gone = ROW_COUNT;
END
$$;

-- name: create_inspect
-- Locks as people see them, in the order of their names: one, or a page of those after a name. Waiters in the order of the
-- queue. A time left is rounded up: what has less than a millisecond left is held.
CREATE FUNCTION fencelock.inspect(p_lock bytea, p_after bytea, p_page bigint)
RETURNS TABLE (name bytea, token bigint, holder text, remaining_ms bigint, ttl_ms bigint, waiters text[])
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
    SELECT l.name, l.token, l.holder,
           CASE WHEN l.claim IS NULL THEN 0 ELSE (greatest(0, least(l.deadline_us - now_us, l.ttl_ms * 1000)) + 999) / 1000 END,
           l.ttl_ms,
           ARRAY (SELECT w.holder FROM fencelock.waiter AS w
                  WHERE w.lock = l.name AND w.deadline_us > now_us ORDER BY w.ticket)
    FROM fencelock.lock AS l CROSS JOIN fencelock.now_us() AS now_us
    WHERE l.token IS NOT NULL AND (l.name = p_lock OR l.name > p_after) ORDER BY l.name LIMIT p_page
$$;

-- name: revoke_operators
-- What decides for others is for whoever was granted it; the rest is for everybody who may use the schema.
REVOKE ALL ON FUNCTION
    fencelock.begin_history(bigint, boolean, text, text), fencelock.begin_flushed(), fencelock.settle_in(),
    fencelock.refuse_time(bigint, bigint), fencelock.past_us(), fencelock.hold_lock(bytea),
    fencelock.end_lease(bytea, text, bigint),
    fencelock.decide(bytea, text, text, bigint, bigint, text, text, bigint, bigint),
    fencelock.remember_ended(bytea, text, bigint), fencelock.live_head(bytea, bigint),
    fencelock.remaining_us(fencelock.lock, bigint), fencelock.ring(bytea, bigint),
    fencelock.enqueue(bytea, text, text, bigint, bigint, text, bigint, bigint, bigint),
    fencelock.stay_queued(fencelock.waiter, boolean, bigint, text, bigint, bigint),
    fencelock.raise_epoch(text, bigint, text, text), fencelock.break_lease(bytea, text, text, text, text),
    fencelock.purge()
FROM PUBLIC;

-- name: revoke_tables
-- Whatever the default privileges of the database are, nobody else reads a claim.
REVOKE ALL ON fencelock.source, fencelock.witness, fencelock.token, fencelock.lock, fencelock.waiter, fencelock.source_audit
FROM PUBLIC;

-- name: insert_source
-- The identity of a new source, whose first history begins at token 1.
INSERT INTO fencelock.source
SELECT 1, 1, substr(replace(gen_random_uuid()::text, '-', ''), 1, 16), 1,
       substr(replace(gen_random_uuid()::text, '-', ''), 1, 16), 67108864, 0, fencelock.place(),
       pg_current_xact_id()::xid;

-- name: insert_witness
-- Its history goes on unbroken from here.
INSERT INTO fencelock.witness
VALUES (1, pg_current_xact_id()::xid, fencelock.place());
