-- The source's functions, third file: its histories, what operators do, and rights. Last come the first rows.

-- name: create_describe
-- The source's identity and counter, and whether its history is unbroken here. It never is on a standby, where unlogged
-- tables such as the witness cannot even be read.
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
            WHERE w.xmin = w.xid AND s.xmin = s.xid AND w.location = fencelock.location());
    END IF;
END
$$;

-- name: create_past_us
-- A time later than every claim that is known here was drawn, and than every forgotten one.
CREATE FUNCTION fencelock.past_us() RETURNS bigint LANGUAGE sql VOLATILE AS
$$
    SELECT greatest(fencelock.now_us(), (SELECT born_after_us FROM fencelock.source),
                    (SELECT max(greatest(born_us, ended_us, forgotten_us)) FROM fencelock.lock),
                    (SELECT max(born_us) FROM fencelock.waiter))
$$;

-- name: create_begin_history
-- Begin a history above every token of the old one, on disk before anyone gets a token of it (T1, T7): above every token
-- reserved here, and, where the clocks are right, above what another server reserved that knew more than this one: 2**30
-- tokens for each second. Such a server is a primary that was replaced too early, a standby that was promoted before this
-- one, or the original of a copy.
--
-- A history that an operator begins starts at a multiple of 2**40, and so does one whose clock is behind the tokens.
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
        epoch = old.epoch + 1, history_id = fresh, bound = base + 67108864, location = fencelock.location(),
        born_after_us = fencelock.past_us(), xid = pg_current_xact_id()::xid;
    PERFORM fencelock.check_outermost();
    DELETE FROM fencelock.witness;
    INSERT INTO fencelock.witness VALUES (1, pg_current_xact_id()::xid, fencelock.location());
    INSERT INTO fencelock.source_audit (who, action, subject, token, reason) VALUES (
        p_who, CASE WHEN p_is_noticed THEN 'begin history' ELSE 'raise epoch' END, old.history_id, base, p_reason);
END
$$;

-- name: create_begin_flushed
-- Make this transaction's commit flushed, and the only change of the history at a time. An old snapshot would not show the
-- leases that were granted since: they would outlive a raised epoch.
CREATE FUNCTION fencelock.begin_flushed() RETURNS void LANGUAGE plpgsql AS
$$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM fencelock.settle_in();
    END IF;
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM FROM fencelock.source FOR UPDATE;
END
$$;

-- name: create_check_outermost
-- Refuse a savepoint, or a block with EXCEPTION, after the source's row was written: that has another xmin there than the
-- transaction that it names, as if it came from a dump, and the next grant would begin a new history.
CREATE FUNCTION fencelock.check_outermost() RETURNS void LANGUAGE plpgsql AS
$$
BEGIN
    IF EXISTS (SELECT FROM fencelock.source WHERE xmin <> xid) THEN
        RAISE 'a source is not changed inside a savepoint or a block with EXCEPTION' USING ERRCODE = 'FL101';
    END IF;
END
$$;

-- name: create_reserve
-- Make sure that tokens are reserved, 2**26 at a time. After any recovery this begins a new history: a crash of this
-- server looks the same as a restored backup or a standby that knows less than was issued. Leases whose rows survived go
-- on.
CREATE FUNCTION fencelock.reserve(p_who text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    state record;
BEGIN
    PERFORM fencelock.begin_flushed();
    SELECT * INTO STRICT state FROM fencelock.describe();
    IF NOT state.is_whole THEN
        PERFORM fencelock.begin_history(0, true, p_who, 'the server has recovered, or this is another location');
    ELSIF state.bound - state.last_token <= 33554432 THEN
        IF greatest(state.bound, state.last_token) > 9223372036854775807 - 67108864 THEN
            RAISE 'no token is left above %: make a new source', state.last_token USING ERRCODE = 'FL103';
        END IF;
        UPDATE fencelock.source
        SET bound = greatest(bound, state.last_token) + 67108864, xid = pg_current_xact_id()::xid;
        PERFORM fencelock.check_outermost();
    END IF;
END
$$;

-- name: create_raise_epoch
-- Begin a new history for an operator, if the current one is still the one that was read; every lease ends. Returns
-- whether it did.
CREATE FUNCTION fencelock.raise_epoch(p_history_id text, p_seen bigint, p_who text, p_reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
BEGIN
    -- Wait for grants in progress, and let none begin until this is committed: every lease is visible, and ends.
    LOCK TABLE fencelock.lock IN EXCLUSIVE MODE;
    PERFORM fencelock.begin_flushed();
    IF NOT EXISTS (SELECT FROM fencelock.source WHERE history_id = p_history_id) THEN
        RETURN false;
    END IF;
    PERFORM fencelock.begin_history(p_seen, false, p_who, p_reason);
    UPDATE fencelock.lock SET
        ended = CASE WHEN digest IS NULL THEN ended ELSE 'the source''s epoch was raised: ' || p_reason END,
        digest = NULL, holder = NULL, deadline_us = 0, ended_digest = NULL, ended_us = 0, forgotten_us = 0;
    DELETE FROM fencelock.waiter;
    RETURN true;
END
$$;

-- name: create_break_lease
-- Free a lock, and mint the breaker's token. Repeated with the same claim it breaks no second lease, and it signs that token
-- for no other lock.
CREATE FUNCTION fencelock.break_lease(p_lock bytea, p_name text, p_digest text, p_who text, p_reason text)
RETURNS TABLE (token bigint, source_id text, epoch bigint, history_id text, holder text, key_id text, signature text)
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
    -- Flushed: a lease that an operator was told is broken stays broken after a power cut.
    PERFORM set_config('synchronous_commit', 'on', true);
    held := fencelock.hold_lock(p_lock);
    moment := fencelock.now_us();
    SELECT s.source_id, s.epoch, s.history_id, s.bound, w.id IS NOT NULL
    INTO STRICT source_id, epoch, history_id, bound, is_whole FROM fencelock.source AS s
    LEFT JOIN fencelock.witness AS w ON w.xmin = w.xid AND s.xmin = s.xid
        AND s.xid IS DISTINCT FROM pg_current_xact_id_if_assigned()::xid;
    IF p_digest IS NULL THEN
        PERFORM fencelock.refuse_claim();
    ELSIF convert_to(p_name, 'UTF8') IS DISTINCT FROM p_lock THEN
        RAISE 'the audit would name another lock than the one that is broken: %', p_name USING ERRCODE = '22023';
    END IF;
    SELECT * INTO done FROM fencelock.source_audit AS a WHERE a.digest = p_digest;
    IF FOUND AND done.subject <> p_name THEN
        RAISE 'this claim has broken lock %, and breaks no other', done.subject USING ERRCODE = '22023';
    ELSIF FOUND THEN
        token := done.token;
        holder := done.holder;
    ELSIF is_whole THEN
        token := nextval('fencelock.token');
        IF token > bound THEN
            token := NULL;
        ELSE
            IF held.digest IS NOT NULL AND fencelock.remaining_us(held, moment) > 0 THEN
                holder := held.holder;
            END IF;
            UPDATE fencelock.lock AS l SET
                token = break_lease.token, digest = NULL, holder = NULL, deadline_us = 0,
                ended = format('%s broke it: %s', p_who, p_reason),
                forgotten_us = CASE WHEN l.digest IS NULL THEN l.forgotten_us ELSE greatest(l.forgotten_us, l.ended_us) END,
                ended_us = CASE WHEN l.digest IS NULL THEN l.ended_us ELSE greatest(moment, l.born_us) END,
                ended_digest = coalesce(l.digest, l.ended_digest)
            WHERE l.name = p_lock;
            INSERT INTO fencelock.source_audit (who, action, subject, token, reason, holder, digest)
            VALUES (p_who, 'break', p_name, token, p_reason, break_lease.holder, p_digest);
        END IF;
    END IF;
    key_id := fencelock.newest_key(moment);
    IF token IS NOT NULL AND key_id IS NOT NULL THEN
        signature := fencelock.sign(key_id, source_id, history_id, token, p_digest, p_lock);
    END IF;
    PERFORM fencelock.notify_head(p_lock, moment);
    RETURN NEXT;
END
$$;

-- name: create_purge
-- Forget locks without holder and waiters; their tokens stay spent (T6), and every claim drawn until now is refused.
CREATE FUNCTION fencelock.purge(OUT gone bigint, OUT now_us bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
DECLARE
    freed bytea[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') <> 'off' THEN
        PERFORM fencelock.settle_in();
    END IF;
    -- Lock the rows first: a claim of these locks that ends now does so before past_us() is read, or after everything.
    SELECT array_agg(free.name) INTO freed FROM (
        SELECT l.name FROM fencelock.lock AS l CROSS JOIN fencelock.now_us() AS moment
        WHERE (l.digest IS NULL OR l.deadline_us <= moment)
          AND NOT EXISTS (SELECT FROM fencelock.waiter AS q WHERE q.lock = l.name AND q.deadline_us > moment)
        FOR UPDATE OF l SKIP LOCKED
    ) AS free;
    UPDATE fencelock.source SET born_after_us = fencelock.past_us(), xid = pg_current_xact_id()::xid
    RETURNING born_after_us + 1 INTO now_us;
    PERFORM fencelock.check_outermost();
    DELETE FROM fencelock.waiter WHERE lock = ANY (freed);
    DELETE FROM fencelock.lock WHERE name = ANY (freed);
    GET DIAGNOSTICS gone = ROW_COUNT;
END
$$;

-- name: create_inspect
-- Locks as people see them, ordered by name: one, or a page of those after a name. Waiters are in the order of the queue.
-- A time left is rounded up, so that a lock with less than a millisecond left is still held.
CREATE FUNCTION fencelock.inspect(p_lock bytea, p_after bytea, p_page bigint)
RETURNS TABLE (name bytea, token bigint, holder text, remaining_ms bigint, ttl_ms bigint, waiters text[])
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
    SELECT l.name, l.token, l.holder,
           CASE WHEN l.digest IS NULL THEN 0 ELSE (greatest(0, least(l.deadline_us - now_us, l.ttl_ms * 1000)) + 999) / 1000 END,
           l.ttl_ms,
           ARRAY (SELECT w.holder FROM fencelock.waiter AS w
                  WHERE w.lock = l.name AND w.deadline_us > now_us ORDER BY w.ticket)
    FROM fencelock.lock AS l CROSS JOIN fencelock.now_us() AS now_us
    WHERE l.token IS NOT NULL AND (l.name = p_lock OR l.name > p_after) ORDER BY l.name LIMIT p_page
$$;

-- name: create_check_proof
-- The time left of the lease with this proof, 0 if it does not hold the lock, and the lock's last token; no row for an
-- unknown lock.
CREATE FUNCTION fencelock.check_proof(p_lock bytea, p_history_id text, p_proof text)
RETURNS TABLE (remaining_ms bigint, last_token bigint)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET debug_print_plan = off AS
$$
    SELECT CASE WHEN l.digest = fencelock.one_way(p_proof) AND l.history_id = p_history_id
                THEN greatest(0, least(l.deadline_us - fencelock.now_us(), l.ttl_ms * 1000)) / 1000 ELSE 0 END, l.token
    FROM fencelock.lock AS l WHERE l.name = p_lock
$$;

-- name: revoke_operators
-- Functions that decide for others are only for roles that were granted them; the rest are for every role that may use
-- the schema.
REVOKE ALL ON FUNCTION
    fencelock.begin_history(bigint, boolean, text, text), fencelock.begin_flushed(), fencelock.settle_in(),
    fencelock.check_outermost(), fencelock.refuse_time(bigint, bigint), fencelock.refuse_claim(), fencelock.past_us(), fencelock.hold_lock(bytea),
    fencelock.end_lease(bytea, text, bigint),
    fencelock.decide(bytea, text, text, bigint, bigint, text, text, bigint, bigint),
    fencelock.remember_ended(bytea, text, bigint), fencelock.live_head(bytea, bigint),
    fencelock.remaining_us(fencelock.lock, bigint), fencelock.notify_head(bytea, bigint),
    fencelock.enqueue(bytea, text, text, bigint, bigint, text, bigint, bigint, bigint),
    fencelock.stay_queued(fencelock.waiter, boolean, bigint, text, bigint, bigint),
    fencelock.raise_epoch(text, bigint, text, text), fencelock.break_lease(bytea, text, text, text, text),
    fencelock.purge(), fencelock.newest_key(bigint), fencelock.sign(text, text, text, bigint, text, bytea)
FROM PUBLIC;

-- name: revoke_tables
-- Whatever the database's default privileges are, no other role reads them.
REVOKE ALL ON fencelock.source, fencelock.witness, fencelock.token, fencelock.lock, fencelock.waiter, fencelock.source_audit,
    fencelock.signing_key
FROM PUBLIC;

-- name: insert_source
-- The identity of a new source, whose first history begins at token 1.
INSERT INTO fencelock.source
SELECT 1, 3, substr(replace(gen_random_uuid()::text, '-', ''), 1, 16), 1,
       substr(replace(gen_random_uuid()::text, '-', ''), 1, 16), 67108864, 0, fencelock.location(),
       pg_current_xact_id()::xid;

-- name: insert_witness
-- The first history is unbroken from here on.
INSERT INTO fencelock.witness
VALUES (1, pg_current_xact_id()::xid, fencelock.location());
