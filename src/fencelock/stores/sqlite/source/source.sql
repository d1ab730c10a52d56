-- name: has_schema
-- Whether this file holds a source.
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'fencelock_source';

-- name: read_schema_number
-- The number of the schema, before anything else is read.
SELECT schema FROM fencelock_source WHERE id = 1;

-- name: read_source
-- The source's identity and counter.
SELECT source_id, epoch, history_id, counter, bound, reserved, boot_id, time_namespace, machine_id, inode, born_ns
FROM fencelock_source WHERE id = 1;

-- name: grant_if_free
-- The common case in one statement: the lock was taken before and is free, nobody waits, the block has a token left, nothing
-- about the source is new to us, and the claim cannot be a late duplicate. Else no row is changed, and `look` decides.
-- fencelock_tell hands the token to the caller and is NULL: RETURNING would cost as much as a third of the statement.
-- Values in the order of the text: named ones take longer to bind, and Python 3.12 warns of numbered ones.
UPDATE fencelock_lock SET
    (token, ended) = (SELECT s.counter + 1, fencelock_tell(s.counter + 1) FROM fencelock_source AS s WHERE s.id = 1),
    claim = ?, holder = ?, ttl_ms = ?, deadline_ms = fencelock_now_ns() / 1000000 + ?
WHERE name = ? AND claim IS NULL AND forgotten_us < ? AND ended_claim IS NOT ?
  AND EXISTS (
      SELECT 1 FROM fencelock_source AS s
      WHERE s.id = 1 AND s.history_id = ? AND s.counter >= max(?, token) AND s.counter < s.bound
        AND s.boot_id = ? AND s.time_namespace = ? AND s.born_after_us < ?)
  AND NOT EXISTS (SELECT 1 FROM fencelock_waiter AS w WHERE w.lock = fencelock_lock.name);

-- name: look
-- Everything that decides who gets a lock, with the clock read under the write lock (H1).
SELECT s.source_id, s.epoch, s.history_id, s.counter, s.bound, s.boot_id, s.time_namespace, s.born_after_us,
       l.claim, l.holder, l.token, l.ttl_ms, l.deadline_ms, l.ended_claim, coalesce(l.forgotten_us, 0),
       fencelock_now_ns() / 1000000 AS now_ms,
       (SELECT w.claim FROM fencelock_waiter AS w
        WHERE w.lock = :lock AND w.deadline_ms > (SELECT fencelock_now_ns() / 1000000)
        ORDER BY w.ticket LIMIT 1) AS head,
       EXISTS (SELECT 1 FROM fencelock_waiter AS w WHERE w.claim = :claim) AS is_queued
FROM fencelock_source AS s LEFT JOIN fencelock_lock AS l ON l.name = :lock
WHERE s.id = 1;

-- name: grant
-- Write who holds the lock, and remember the claim whose expired lease it takes over.
INSERT INTO fencelock_lock (name, token, claim, holder, ttl_ms, deadline_ms)
VALUES (:lock, :token, :claim, :holder, :ttl_ms, :now_ms + :ttl_ms)
ON CONFLICT (name) DO UPDATE SET
    token = excluded.token, claim = excluded.claim, holder = excluded.holder,
    ttl_ms = excluded.ttl_ms, deadline_ms = excluded.deadline_ms, ended = NULL,
    forgotten_us = iif(claim IS NULL, forgotten_us, max(forgotten_us, ended_us)),
    ended_us = iif(claim IS NULL, ended_us, fencelock_now_ns() / 1000),
    ended_claim = coalesce(claim, ended_claim);

-- name: remember_ended
-- A claim that did not hold the lock is over.
UPDATE fencelock_lock SET
    forgotten_us = max(forgotten_us, ended_us), ended_us = fencelock_now_ns() / 1000, ended_claim = :claim
WHERE name = :lock;

-- name: is_queue_full
-- Whether the queue has its largest length already.
SELECT 1 FROM fencelock_waiter WHERE lock = :lock LIMIT 1 OFFSET :limit - 1;

-- name: enqueue
-- Take a ticket, unless this claim has one.
INSERT INTO fencelock_waiter (lock, claim, holder, ttl_ms, deadline_ms)
VALUES (:lock, :claim, :holder, :ttl_ms, :now_ms + :ttl_ms)
ON CONFLICT (claim) DO NOTHING;

-- name: read_waiter
-- A waiting claim's own row.
SELECT ticket, holder, ttl_ms, deadline_ms FROM fencelock_waiter WHERE claim = :claim AND lock = :lock;

-- name: refresh_waiter
-- The waiter is alive: its place is kept for another ttl.
UPDATE fencelock_waiter SET deadline_ms = :now_ms + ttl_ms WHERE ticket = :ticket;

-- name: read_predecessor_deadline
-- Until when the waiter in front may be dead without being passed over.
SELECT deadline_ms FROM fencelock_waiter
WHERE lock = :lock AND ticket < :ticket AND deadline_ms > :now_ms ORDER BY ticket DESC LIMIT 1;

-- name: leave_queue
-- Give up a place in the queue.
DELETE FROM fencelock_waiter WHERE claim = :claim;

-- name: drop_dead_waiters
-- Waiters up to this place whose own time is up are passed over (H7), and do not come back (H8).
DELETE FROM fencelock_waiter
WHERE lock = :lock AND ticket <= :ticket AND deadline_ms <= :now_ms RETURNING claim;

-- name: drop_every_dead_waiter
-- The same for all locks, when everything that is over is forgotten.
DELETE FROM fencelock_waiter WHERE deadline_ms <= fencelock_now_ns() / 1000000 RETURNING claim;

-- name: end_lease
-- Free the lock (the first value) if this claim holds it, and tell whose turn it is.
UPDATE fencelock_lock SET
    claim = NULL, deadline_ms = 0, ended = 'it was released',
    forgotten_us = max(forgotten_us, ended_us), ended_us = fencelock_now_ns() / 1000, ended_claim = claim,
    holder = fencelock_tell((
        SELECT w.claim FROM fencelock_waiter AS w
        WHERE w.lock = fencelock_lock.name AND w.deadline_ms > (SELECT fencelock_now_ns() / 1000000)
        ORDER BY w.ticket LIMIT 1))
WHERE name = ? AND claim = ?;

-- name: read_head
-- Whose turn it is.
SELECT claim FROM fencelock_waiter
WHERE lock = :lock AND deadline_ms > fencelock_now_ns() / 1000000 ORDER BY ticket LIMIT 1;

-- name: renew
-- Extend every lease of a batch that is still running; :leases is a JSON object of claim to lock.
UPDATE fencelock_lock AS l SET deadline_ms = (SELECT fencelock_now_ns() / 1000000) + l.ttl_ms
FROM json_each(:leases) AS asked
WHERE l.name = asked.value AND l.claim = asked.key AND l.deadline_ms > (SELECT fencelock_now_ns() / 1000000)
RETURNING claim, ttl_ms;

-- name: read_lock
-- Why a lease was not renewed.
SELECT token, claim, holder, ended FROM fencelock_lock WHERE name = :lock;

-- name: inspect
-- One lock as people see it; waiters as a JSON array in the order of the queue.
SELECT l.name, l.token, l.holder, l.claim, l.ttl_ms, l.deadline_ms, fencelock_now_ns() / 1000000,
       (SELECT json_group_array(holder) FROM (
            SELECT w.holder FROM fencelock_waiter AS w
            WHERE w.lock = l.name AND w.deadline_ms > (SELECT fencelock_now_ns() / 1000000) ORDER BY w.ticket))
FROM fencelock_lock AS l WHERE l.name = :lock;

-- name: inspect_page
-- A page of locks in the order of their names, each as `inspect` shows it.
SELECT l.name, l.token, l.holder, l.claim, l.ttl_ms, l.deadline_ms, fencelock_now_ns() / 1000000,
       (SELECT json_group_array(holder) FROM (
            SELECT w.holder FROM fencelock_waiter AS w
            WHERE w.lock = l.name AND w.deadline_ms > (SELECT fencelock_now_ns() / 1000000) ORDER BY w.ticket))
FROM fencelock_lock AS l WHERE l.name > :after ORDER BY l.name LIMIT :page;

-- name: break_lease
-- Free the lock, and note the breaker's token as the last one issued.
INSERT INTO fencelock_lock (name, token, ttl_ms, deadline_ms, ended)
VALUES (:lock, :token, 0, 0, :ended)
ON CONFLICT (name) DO UPDATE SET
    token = excluded.token, claim = NULL, holder = NULL, deadline_ms = 0, ended = excluded.ended,
    forgotten_us = max(forgotten_us, ended_us), ended_us = fencelock_now_ns() / 1000, ended_claim = coalesce(claim, ended_claim);

-- name: write_audit
-- What an operator did, and why.
INSERT INTO fencelock_source_audit (at, who, action, subject, token, reason, holder, claim)
VALUES (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'), :who, :action, :subject, :token, :reason, :holder, :claim);

-- name: read_break
-- What this very request did before, if it was asked before.
SELECT token, holder FROM fencelock_source_audit WHERE claim = :claim;

-- name: end_expired_leases
-- Make expired leases free ones, so that they can be forgotten.
UPDATE fencelock_lock SET claim = NULL, holder = NULL, ended = 'it expired'
WHERE claim IS NOT NULL AND deadline_ms <= fencelock_now_ns() / 1000000;

-- name: purge
-- Forget free locks without waiters; the counter is the source's, so their tokens stay spent (T6).
DELETE FROM fencelock_lock
WHERE claim IS NULL AND name NOT IN (SELECT lock FROM fencelock_waiter WHERE deadline_ms > fencelock_now_ns() / 1000000);

-- name: refuse_older_claims
-- Whatever claim was drawn until now and is not known to the file is over.
UPDATE fencelock_source SET born_after_us = fencelock_now_ns() / 1000 WHERE id = 1;

-- name: reserve_block
-- The first step towards a higher bound, to be flushed in any case: what somebody else wrote may not have been.
UPDATE fencelock_source SET reserved = max(reserved, :reserved), flushes = flushes + 1 WHERE id = 1;

-- name: raise_bound
-- The second step: tokens are issued up to what was flushed.
UPDATE fencelock_source SET bound = :reserved WHERE id = 1 AND bound < :reserved AND reserved >= :reserved;

-- name: end_all_leases
-- No lease of the history until now is one any more, and nothing is remembered on the clock until now.
UPDATE fencelock_lock SET
    claim = NULL, holder = NULL, deadline_ms = 0, ended = iif(claim IS NULL, ended, :ended),
    ended_claim = NULL, ended_us = 0, forgotten_us = 0;

-- name: drop_all_waiters
-- Nor is any place in a queue.
DELETE FROM fencelock_waiter;

-- name: adopt_clock
-- Deadlines are on this kernel's clock from now on; after an unclean start the counter skips to what was
-- reserved (T1).
UPDATE fencelock_source SET
    counter = reserved, bound = reserved, born_after_us = :born_after_us,
    boot_id = :boot_id, time_namespace = :time_namespace, machine_id = :machine_id
WHERE id = 1;

-- name: read_highest_token
-- The highest token that any lock has: not above the counter, unless the file is damaged.
SELECT coalesce(max(token), 0) FROM fencelock_lock;

-- name: raise_epoch
-- Begin a new history, if the old one is still the one that was read (T7).
UPDATE fencelock_source SET
    epoch = epoch + 1, history_id = :new_history_id, counter = :counter,
    bound = :counter, reserved = :counter,
    inode = :inode, born_ns = :born_ns
WHERE id = 1 AND history_id = :history_id;
