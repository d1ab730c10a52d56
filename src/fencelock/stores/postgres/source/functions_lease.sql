-- The source's functions, second file: taking, releasing and renewing a lock.

-- name: create_newest_key
-- The id of the key to sign with; NULL without one. Read at each grant: a key that was retired a moment ago signs nothing.
CREATE FUNCTION fencelock.newest_key(p_now_us bigint) RETURNS text LANGUAGE plpgsql AS
$$
BEGIN
    RETURN (
        SELECT key_id FROM fencelock.signing_key
        WHERE not_before_s <= p_now_us / 1000000 AND retired_s IS NULL
        ORDER BY not_before_s DESC, number DESC LIMIT 1);
END
$$;

-- name: create_sign
-- The signature of a sequencer. PL/pgSQL keeps the plan; a function in SQL is planned again in each transaction.
CREATE FUNCTION fencelock.sign(
    p_key_id text, p_source_id text, p_history_id text, p_token bigint, p_digest text, p_lock bytea)
RETURNS text LANGUAGE plpgsql AS
$$
BEGIN
    RETURN (
        SELECT fencelock.signature_of(k.inner_pad, k.outer_pad, concat_ws(
            '.', 'fl2', p_key_id, p_source_id, p_history_id, 'x', p_token, p_digest, fencelock.base64url(p_lock)))
        FROM fencelock.signing_key AS k WHERE k.key_id = p_key_id);
END
$$;

-- name: create_decide
-- Decide who gets a lock, and mint its token: all the cases that `acquire` does not handle itself.
CREATE FUNCTION fencelock.decide(
    p_lock bytea, p_digest text, p_holder text, p_ttl_ms bigint, p_born_us bigint, p_mode text, p_channel text,
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
    -- Read after the row is locked: what a purged row would remember, the source remembers instead. What this very
    -- transaction has reserved is not on disk yet: if it is rolled back, and the server crashes, that is issued again.
    SELECT s.source_id, s.epoch, s.history_id, s.bound, s.born_after_us, w.id IS NOT NULL AS is_whole,
           EXISTS (SELECT FROM fencelock.waiter AS q WHERE q.lock = p_lock) AS has_queue, fencelock.now_us() AS now_us
    INTO STRICT state FROM fencelock.source AS s
    LEFT JOIN fencelock.witness AS w ON w.id = 1 AND w.xmin = w.xid AND s.xmin = s.xid
        AND s.xid IS DISTINCT FROM pg_current_xact_id_if_assigned()::xid
    WHERE s.id = 1;
    answer.source_id := state.source_id;
    answer.epoch := state.epoch;
    answer.history_id := state.history_id;
    answer.now_us := state.now_us;
    IF NOT state.is_whole THEN
        answer.outcome := 'spent';
        RETURN answer;
    END IF;
    IF held.digest IS NOT NULL THEN
        remaining_us := fencelock.remaining_us(held, state.now_us);
    END IF;
    IF held.digest = p_digest THEN
        -- A repeated request: the same token while its lease runs, never a new one (T3).
        answer.outcome := CASE WHEN remaining_us > 0 THEN 'held' ELSE 'ended' END;
        answer.token := held.token;
        answer.key_id := held.key_id;
        IF held.history_id <> state.history_id THEN
            -- The lease has outlived a crash before its reply arrived: its sequencer names the new history.
            UPDATE fencelock.lock SET history_id = state.history_id WHERE name = p_lock;
        END IF;
        answer.time_ms := remaining_us / 1000;
        RETURN answer;
    END IF;
    IF state.has_queue THEN
        head := fencelock.live_head(p_lock, state.now_us);
        SELECT * INTO own FROM fencelock.waiter WHERE digest = p_digest AND lock = p_lock;
        held := fencelock.hold_lock(p_lock);  -- live_head may have made it remember other claims.
        IF own.deadline_us <= state.now_us THEN
            DELETE FROM fencelock.waiter WHERE ticket = own.ticket;
            PERFORM fencelock.remember_ended(p_lock, p_digest, greatest(state.now_us, own.born_us));
            answer.outcome := 'ended';
            RETURN answer;
        END IF;
    END IF;
    IF own.ticket IS NULL THEN
        -- A claim drawn before the last forgotten one ended may be a late duplicate of it (H4).
        IF p_mode = 'poll' OR p_digest = held.ended_digest
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
                p_lock, p_digest, p_holder, p_ttl_ms, p_born_us, p_channel, state.now_us, p_queue_limit, head.ticket);
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
    -- The lock is free, and it is this claim's turn.
    answer.token := nextval('fencelock.token');
    IF answer.token > state.bound THEN
        -- Beyond the durable bound a crash could issue the token again: it stays unused.
        answer.outcome := 'spent';
        RETURN answer;
    END IF;
    answer.outcome := 'granted';
    answer.key_id := fencelock.newest_key(state.now_us);
    UPDATE fencelock.lock AS l SET
        token = answer.token, digest = p_digest, history_id = state.history_id, key_id = answer.key_id,
        holder = coalesce(own.holder, p_holder), ended = NULL,
        ttl_ms = coalesce(own.ttl_ms, p_ttl_ms), born_us = coalesce(own.born_us, p_born_us),
        deadline_us = fencelock.now_us() + coalesce(own.ttl_ms, p_ttl_ms) * 1000,
        forgotten_us = CASE WHEN l.digest IS NULL THEN l.forgotten_us ELSE greatest(l.forgotten_us, l.ended_us) END,
        ended_us = CASE WHEN l.digest IS NULL THEN l.ended_us ELSE greatest(state.now_us, l.born_us) END,
        ended_digest = coalesce(l.digest, l.ended_digest)
    WHERE l.name = p_lock
    RETURNING l.ttl_ms INTO answer.time_ms;
    IF own.ticket IS NOT NULL THEN
        DELETE FROM fencelock.waiter WHERE ticket = own.ticket;
    END IF;
    RETURN answer;
END
$$;

-- name: create_acquire
-- Take a lock, queue for it, or look again. `p_mode`: 'try' (now or never), 'wait' (or queue), 'poll' (queued already).
-- Outcomes: granted, held (by this claim), queued, busy, ended (the claim is over; now_us is later than every claim that
-- ended), spent (no token is reserved: begin a history first, in a transaction of its own), full.
--
-- The common case is one UPDATE: the lock was taken before and is free, nobody waits, enough tokens are reserved, and the
-- claim cannot be a late duplicate. If another transaction changed the row since the statement began, the comparison of
-- its xmin fails, and `decide` considers everything again; and so it does if another one has the row locked. That one may
-- be open for long, draw tokens of this lock, and be rolled back: a token that was drawn before it would be below them (T1).
CREATE FUNCTION fencelock.acquire(
    p_lock bytea, p_digest text, p_holder text, p_ttl_ms bigint, p_born_us bigint, p_mode text, p_channel text,
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
    IF (p_digest <> '' AND (
        p_mode = 'poll' OR (p_mode IN ('try', 'wait') AND octet_length(p_holder) BETWEEN 1 AND 512))) IS NOT TRUE THEN
        PERFORM fencelock.refuse_claim();
    END IF;
    UPDATE fencelock.lock AS l SET
        token = nextval('fencelock.token'), digest = p_digest, history_id = s.history_id, holder = p_holder,
        ended = NULL, ttl_ms = p_ttl_ms, born_us = p_born_us, deadline_us = answer.now_us + p_ttl_ms * 1000,
        -- What newest_key() does, without the cost of a call.
        key_id = (
            SELECT k.key_id FROM fencelock.signing_key AS k
            WHERE k.not_before_s <= answer.now_us / 1000000 AND k.retired_s IS NULL
            ORDER BY k.not_before_s DESC, k.number DESC LIMIT 1)
    FROM (
        SELECT free.xmin FROM fencelock.lock AS free
        WHERE free.name = p_lock AND free.digest IS NULL AND free.ended_digest IS DISTINCT FROM p_digest
          AND free.forgotten_us < p_born_us AND p_mode <> 'poll'
        FOR UPDATE SKIP LOCKED
    ) AS before, fencelock.source AS s, fencelock.witness AS w
    WHERE l.name = p_lock AND l.xmin = before.xmin AND s.born_after_us < p_born_us
      AND NOT EXISTS (SELECT FROM fencelock.waiter AS q WHERE q.lock = p_lock)
      AND s.id = 1 AND s.xmin = s.xid AND s.xid IS DISTINCT FROM pg_current_xact_id_if_assigned()::xid
      AND w.id = 1 AND w.xmin = w.xid
      AND s.bound - (SELECT t.last_value FROM fencelock.token AS t) > 100000
    RETURNING l.token, s.source_id, s.epoch, s.history_id, s.bound, l.key_id, (
        -- What sign() does, without the cost of a call and of a statement of its own.
        SELECT fencelock.signature_of(k.inner_pad, k.outer_pad, concat_ws(
            '.', 'fl2', k.key_id, s.source_id, s.history_id, 'x', l.token, p_digest, fencelock.base64url(p_lock)))
        FROM fencelock.signing_key AS k WHERE k.key_id = l.key_id)
    INTO answer.token, answer.source_id, answer.epoch, answer.history_id, bound, answer.key_id, answer.signature;
    IF NOT FOUND THEN
        answer := fencelock.decide(
            p_lock, p_digest, p_holder, p_ttl_ms, p_born_us, p_mode, p_channel, p_head_wait_ms, p_queue_limit);
        IF answer.key_id IS NOT NULL THEN
            answer.signature := fencelock.sign(
                answer.key_id, answer.source_id, answer.history_id, answer.token, p_digest, p_lock);
        END IF;
    ELSIF answer.token > bound THEN
        RAISE 'a hundred thousand tokens were drawn at once in epoch %: try again', answer.epoch USING ERRCODE = 'FL103';
    ELSE
        answer.outcome := 'granted';
        answer.time_ms := p_ttl_ms;
    END IF;
    RETURN answer;
END
$$;

-- name: create_token_grows
-- Refuse a token that is not higher than the last one, from any writer of a lock's row (T1).
CREATE FUNCTION fencelock.token_grows() RETURNS trigger LANGUAGE plpgsql AS
$$
BEGIN
    RAISE 'it had token %, and the counter is at %', OLD.token, NEW.token USING ERRCODE = 'FL102';
END
$$;

-- name: create_token_grows_trigger
-- The WHEN clause costs nothing where the rule holds.
CREATE TRIGGER token_grows BEFORE UPDATE OF token ON fencelock.lock FOR EACH ROW
WHEN (NEW.token <= OLD.token) EXECUTE FUNCTION fencelock.token_grows();

-- name: create_notify_head
-- Notify the head of a lock's queue, if there is one, that its turn may have come. The notification carries its digest. A
-- channel or digest that the server would refuse is passed over: it would make the holder's release fail, and a break.
CREATE FUNCTION fencelock.notify_head(p_lock bytea, p_now_us bigint) RETURNS void LANGUAGE plpgsql AS
$$
DECLARE
    head fencelock.waiter := fencelock.live_head(p_lock, p_now_us);
BEGIN
    IF octet_length(head.channel) BETWEEN 1 AND 63 AND octet_length(head.digest) < 8000 THEN
        PERFORM pg_notify(head.channel, head.digest);
    END IF;
END
$$;

-- name: create_end_lease
-- Free a lock if this claim holds it, and return whether it did. A claim never ends before it was drawn.
CREATE FUNCTION fencelock.end_lease(p_lock bytea, p_digest text, p_ended_us bigint) RETURNS boolean LANGUAGE plpgsql AS
$$
BEGIN
    UPDATE fencelock.lock SET
        digest = NULL, holder = NULL, deadline_us = 0, ended = 'it was released',
        forgotten_us = greatest(forgotten_us, ended_us), ended_us = greatest(p_ended_us, born_us), ended_digest = p_digest
    WHERE name = p_lock AND digest = p_digest;
    RETURN FOUND;
END
$$;

-- name: create_release
-- End a claim for good, whether it holds the lock, waits, has ended or has not arrived yet, and notify the next waiter.
CREATE FUNCTION fencelock.release(p_lock bytea, p_claim text, p_asked_us bigint, OUT was_held boolean, OUT now_us bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    own_digest constant text := fencelock.one_way(fencelock.one_way(p_claim));
    held fencelock.lock;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') <> 'off' THEN
        PERFORM fencelock.settle_in();
    END IF;
    now_us := fencelock.now_us();
    IF p_asked_us > now_us + 31556952000000000 THEN
        PERFORM fencelock.refuse_time(p_asked_us, now_us);
    END IF;
    was_held := fencelock.end_lease(p_lock, own_digest, greatest(now_us, p_asked_us));
    IF NOT was_held THEN
        held := fencelock.hold_lock(p_lock);
        -- Once more: a cancelled acquire of this claim may have been granted between the two.
        was_held := fencelock.end_lease(p_lock, own_digest, greatest(now_us, p_asked_us));
        DELETE FROM fencelock.waiter WHERE digest = own_digest AND lock = p_lock;
        IF NOT was_held AND held.ended_digest IS DISTINCT FROM own_digest THEN
            PERFORM fencelock.remember_ended(p_lock, own_digest, greatest(now_us, p_asked_us));
        END IF;
    END IF;
    IF EXISTS (SELECT FROM fencelock.waiter AS q WHERE q.lock = p_lock) THEN
        PERFORM fencelock.notify_head(p_lock, now_us);
    END IF;
END
$$;

-- name: create_renew
-- Extend every lease of a batch that has not expired. The rows are locked before the clock is read (H1).
CREATE FUNCTION fencelock.renew(p_locks bytea[], p_claims text[])
RETURNS TABLE (claim text, remaining_ms bigint, reason text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    digests constant text[] := ARRAY (
        SELECT fencelock.one_way(fencelock.one_way(asked.claim))
        FROM unnest(p_claims) WITH ORDINALITY AS asked (claim, number) ORDER BY asked.number);
    moment bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') <> 'off' THEN
        PERFORM fencelock.settle_in();
    END IF;
    PERFORM FROM unnest(p_locks, digests) AS asked (lock, digest)
    JOIN fencelock.lock AS l ON l.name = asked.lock AND l.digest = asked.digest
    FOR UPDATE OF l;
    moment := fencelock.now_us();
    RETURN QUERY
    WITH renewed AS (
        UPDATE fencelock.lock AS l SET deadline_us = moment + l.ttl_ms * 1000
        FROM unnest(p_locks, digests) AS asked (lock, digest)
        WHERE l.name = asked.lock AND l.digest = asked.digest AND l.deadline_us > moment
        RETURNING l.digest, l.ttl_ms
    )
    SELECT asked.claim, r.ttl_ms,
           CASE WHEN r.digest IS NOT NULL THEN NULL
                WHEN l.name IS NULL THEN 'the source no longer knows the lock'
                WHEN l.digest = asked.digest THEN 'it expired at the source before it was renewed'
                WHEN l.digest IS NOT NULL THEN format('%s holds the lock now, with token %s', l.holder, l.token)
                ELSE coalesce(l.ended, 'it ended at the source') END
    FROM unnest(p_locks, p_claims, digests) AS asked (lock, claim, digest)
    LEFT JOIN renewed AS r ON r.digest = asked.digest
    LEFT JOIN fencelock.lock AS l ON r.digest IS NULL AND l.name = asked.lock;
END
$$;
