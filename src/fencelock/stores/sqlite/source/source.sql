-- name: has_schema
-- Whether the file holds a source.
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'fencelock_source';

-- name: read_schema_number
-- The schema number; read before anything else.
SELECT schema FROM fencelock_source WHERE id = 1;

-- name: read_source
-- The source's identity and counter.
SELECT source_id, epoch, history_id, counter, bound, reserved, boot_id, time_namespace, machine_id, inode, born_ns
FROM fencelock_source WHERE id = 1;

-- name: grant_if_free
-- The common case in one statement: the lock was taken before and is free, there is no waiter, the block has a token
-- left, the source is in the state that this process knows, and the claim cannot be a late duplicate. In any other case
-- no row changes, and `look` decides. fencelock_emit hands the token to the caller and returns NULL: RETURNING would
-- cost a third of the statement. Parameters are positional, because named ones take longer to bind, and Python 3.12
-- warns about numbered ones.
UPDATE fencelock_lock SET
    (token, ended) = (SELECT s.counter + 1, fencelock_emit(s.counter + 1) FROM fencelock_source AS s WHERE s.id = 1),
    digest = ?, holder = ?, ttl_ms = ?, deadline_ms = fencelock_now_ns() / 1000000 + ?
WHERE name = ? AND digest IS NULL AND forgotten_us < ? AND ended_digest IS NOT ?
  AND EXISTS (
      SELECT 1 FROM fencelock_source AS s
      WHERE s.id = 1 AND s.history_id = ? AND s.counter >= max(?, token) AND s.counter < s.bound
        AND s.boot_id = ? AND s.time_namespace = ? AND s.born_after_us < ?)
  AND NOT EXISTS (SELECT 1 FROM fencelock_waiter AS w WHERE w.lock = fencelock_lock.name);

-- name: look
-- Everything that decides who gets a lock, with the clock read under the write lock (H1).
SELECT s.source_id, s.epoch, s.history_id, s.counter, s.bound, s.boot_id, s.time_namespace, s.born_after_us,
       l.digest, l.holder, l.token, l.ttl_ms, l.deadline_ms, l.ended_digest, coalesce(l.forgotten_us, 0),
       fencelock_now_ns() / 1000000 AS now_ms,
       (SELECT w.digest FROM fencelock_waiter AS w
        WHERE w.lock = :lock AND w.deadline_ms > (SELECT fencelock_now_ns() / 1000000)
        ORDER BY w.ticket LIMIT 1) AS head,
       EXISTS (SELECT 1 FROM fencelock_waiter AS w WHERE w.digest = :digest) AS is_queued
FROM fencelock_source AS s LEFT JOIN fencelock_lock AS l ON l.name = :lock
WHERE s.id = 1;

-- name: grant
-- Write the new holder, and remember the claim whose expired lease it takes over.
INSERT INTO fencelock_lock (name, token, digest, holder, ttl_ms, deadline_ms)
VALUES (:lock, :token, :digest, :holder, :ttl_ms, :now_ms + :ttl_ms)
ON CONFLICT (name) DO UPDATE SET
    token = excluded.token, digest = excluded.digest, holder = excluded.holder,
    ttl_ms = excluded.ttl_ms, deadline_ms = excluded.deadline_ms, ended = NULL,
    forgotten_us = iif(digest IS NULL, forgotten_us, max(forgotten_us, ended_us)),
    ended_us = iif(digest IS NULL, ended_us, fencelock_now_ns() / 1000),
    ended_digest = coalesce(digest, ended_digest);

-- name: remember_ended
-- End a claim that did not hold the lock.
UPDATE fencelock_lock SET
    forgotten_us = max(forgotten_us, ended_us), ended_us = fencelock_now_ns() / 1000, ended_digest = :digest
WHERE name = :lock;

-- name: is_queue_full
-- Whether the queue is full.
SELECT 1 FROM fencelock_waiter WHERE lock = :lock LIMIT 1 OFFSET :limit - 1;

-- name: enqueue
-- Append the claim to the queue, unless it is there already.
INSERT INTO fencelock_waiter (lock, digest, holder, ttl_ms, deadline_ms)
VALUES (:lock, :digest, :holder, :ttl_ms, :now_ms + :ttl_ms)
ON CONFLICT (digest) DO NOTHING;

-- name: read_waiter
-- A waiting claim's own row.
SELECT ticket, holder, ttl_ms, deadline_ms FROM fencelock_waiter WHERE digest = :digest AND lock = :lock;

-- name: refresh_waiter
-- The waiter is alive: keep its entry for another ttl.
UPDATE fencelock_waiter SET deadline_ms = :now_ms + ttl_ms WHERE ticket = :ticket;

-- name: read_predecessor_deadline
-- The deadline of the waiter in front: if it is dead, it is passed over after this time.
SELECT deadline_ms FROM fencelock_waiter
WHERE lock = :lock AND ticket < :ticket AND deadline_ms > :now_ms ORDER BY ticket DESC LIMIT 1;

-- name: leave_queue
-- Remove a claim from the queue.
DELETE FROM fencelock_waiter WHERE digest = :digest;

-- name: drop_dead_waiters
-- Remove expired waiters up to this ticket: they are passed over (H7) and never granted (H8).
DELETE FROM fencelock_waiter
WHERE lock = :lock AND ticket <= :ticket AND deadline_ms <= :now_ms RETURNING digest;

-- name: drop_every_dead_waiter
-- Remove expired waiters of all locks (for `purge`).
DELETE FROM fencelock_waiter WHERE deadline_ms <= fencelock_now_ns() / 1000000 RETURNING digest;

-- name: end_lease
-- Free the lock if this claim holds it, and emit the claim whose turn it is. (`holder` becomes NULL: fencelock_emit
-- returns it.)
UPDATE fencelock_lock SET
    digest = NULL, deadline_ms = 0, ended = 'it was released',
    forgotten_us = max(forgotten_us, ended_us), ended_us = fencelock_now_ns() / 1000, ended_digest = digest,
    holder = fencelock_emit((
        SELECT w.digest FROM fencelock_waiter AS w
        WHERE w.lock = fencelock_lock.name AND w.deadline_ms > (SELECT fencelock_now_ns() / 1000000)
        ORDER BY w.ticket LIMIT 1))
WHERE name = ? AND digest = ?;

-- name: read_head
-- The claim whose turn it is.
SELECT digest FROM fencelock_waiter
WHERE lock = :lock AND deadline_ms > fencelock_now_ns() / 1000000 ORDER BY ticket LIMIT 1;

-- name: renew
-- Extend each lease of a batch that has not expired; :leases is a JSON object from digest to lock.
UPDATE fencelock_lock AS l SET deadline_ms = (SELECT fencelock_now_ns() / 1000000) + l.ttl_ms
FROM json_each(:leases) AS asked
WHERE l.name = asked.value AND l.digest = asked.key AND l.deadline_ms > (SELECT fencelock_now_ns() / 1000000)
RETURNING digest, ttl_ms;

-- name: read_lock
-- Why a lease was not renewed.
SELECT token, digest, holder, ended FROM fencelock_lock WHERE name = :lock;

-- name: inspect
-- The public view of one lock; waiters as a JSON array in the order of the queue.
SELECT l.name, l.token, l.holder, l.digest, l.ttl_ms, l.deadline_ms, fencelock_now_ns() / 1000000,
       (SELECT json_group_array(holder) FROM (
            SELECT w.holder FROM fencelock_waiter AS w
            WHERE w.lock = l.name AND w.deadline_ms > (SELECT fencelock_now_ns() / 1000000) ORDER BY w.ticket))
FROM fencelock_lock AS l WHERE l.name = :lock;

-- name: check
-- The source's state, and what it knows of one lock; NULLs if the lock was never taken.
SELECT s.source_id, s.epoch, s.history_id, s.counter, s.boot_id, s.time_namespace,
       l.digest, l.token, min(l.deadline_ms - fencelock_now_ns() / 1000000, l.ttl_ms)
FROM fencelock_source AS s LEFT JOIN fencelock_lock AS l ON l.name = :lock
WHERE s.id = 1;

-- name: inspect_page
-- A page of locks in the order of their names, with the columns of `inspect`.
SELECT l.name, l.token, l.holder, l.digest, l.ttl_ms, l.deadline_ms, fencelock_now_ns() / 1000000,
       (SELECT json_group_array(holder) FROM (
            SELECT w.holder FROM fencelock_waiter AS w
            WHERE w.lock = l.name AND w.deadline_ms > (SELECT fencelock_now_ns() / 1000000) ORDER BY w.ticket))
FROM fencelock_lock AS l WHERE l.name > :after ORDER BY l.name LIMIT :page;

-- name: break_lease
-- Free the lock, and record the breaker's token as the last one issued.
INSERT INTO fencelock_lock (name, token, ttl_ms, deadline_ms, ended)
VALUES (:lock, :token, 0, 0, :ended)
ON CONFLICT (name) DO UPDATE SET
    token = excluded.token, digest = NULL, holder = NULL, deadline_ms = 0, ended = excluded.ended,
    forgotten_us = max(forgotten_us, ended_us), ended_us = fencelock_now_ns() / 1000, ended_digest = coalesce(digest, ended_digest);

-- name: write_audit
-- Record an operator's action and its reason.
INSERT INTO fencelock_source_audit (at, who, action, subject, token, reason, holder, digest)
VALUES (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'), :who, :action, :subject, :token, :reason, :holder, :digest);

-- name: read_break
-- The result of this same break request, if it was executed before.
SELECT token, holder FROM fencelock_source_audit WHERE digest = :digest;

-- name: end_expired_leases
-- Turn expired leases into free locks, so that `purge` can delete them.
UPDATE fencelock_lock SET digest = NULL, holder = NULL, ended = 'it expired'
WHERE digest IS NOT NULL AND deadline_ms <= fencelock_now_ns() / 1000000;

-- name: purge
-- Delete free locks without waiters. The counter belongs to the source, so their tokens stay spent (T6).
DELETE FROM fencelock_lock
WHERE digest IS NULL AND name NOT IN (SELECT lock FROM fencelock_waiter WHERE deadline_ms > fencelock_now_ns() / 1000000);

-- name: refuse_older_claims
-- Refuse all claims drawn until now that the file does not know.
UPDATE fencelock_source SET born_after_us = fencelock_now_ns() / 1000 WHERE id = 1;

-- name: reserve_block
-- First step towards a higher bound. It always changes the row, so that its commit is flushed: an equal value that
-- another process wrote may not be on disk.
UPDATE fencelock_source SET reserved = max(reserved, :reserved), flushes = flushes + 1 WHERE id = 1;

-- name: raise_bound
-- Second step: allow tokens up to the flushed reservation.
UPDATE fencelock_source SET bound = :reserved WHERE id = 1 AND bound < :reserved AND reserved >= :reserved;

-- name: end_all_leases
-- End every lease, and forget all times, which were on the old clock.
UPDATE fencelock_lock SET
    digest = NULL, holder = NULL, deadline_ms = 0, ended = iif(digest IS NULL, ended, :ended),
    ended_digest = NULL, ended_us = 0, forgotten_us = 0;

-- name: drop_all_waiters
-- End every wait.
DELETE FROM fencelock_waiter;

-- name: adopt_clock
-- Deadlines use this kernel's clock from now on. After an unclean start the counter skips to the reserved bound (T1).
UPDATE fencelock_source SET
    counter = reserved, bound = reserved, born_after_us = :born_after_us,
    boot_id = :boot_id, time_namespace = :time_namespace, machine_id = :machine_id
WHERE id = 1;

-- name: read_highest_token
-- The highest token of any lock; it is above the counter only in a damaged file.
SELECT coalesce(max(token), 0) FROM fencelock_lock;

-- name: raise_epoch
-- Begin a new history, if the current one is still the one that was read (T7).
UPDATE fencelock_source SET
    epoch = epoch + 1, history_id = :new_history_id, counter = :counter,
    bound = :counter, reserved = :counter,
    inode = :inode, born_ns = :born_ns
WHERE id = 1 AND history_id = :history_id;
