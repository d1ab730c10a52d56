-- The statements that a client sends to the source: one for each request.

-- name: describe
-- The first statement of a connection, and what `fencelock epoch` shows.
CALL fencelock_describe();

-- name: acquire
-- Take the lock, queue for it, or look whether its turn has come.
CALL fencelock_acquire(%s, %s, %s, %s, %s, %s, %s, %s, %s);

-- name: release
-- End a claim for good.
CALL fencelock_release(%s, %s, %s);

-- name: renew
-- Extend every lease of a batch that has not expired.
CALL fencelock_renew(%s);

-- name: raise_epoch
-- Begin a new history if the current one is still the one that was read, and describe it; no row if it is not.
CALL fencelock_raise_epoch(%s, %s, %s, %s, %s);

-- name: break_lease
-- Free a lock, and mint the breaker's token.
CALL fencelock_break(%s, %s, %s, %s);

-- name: purge
-- Forget locks without holder and waiters.
CALL fencelock_purge();

-- name: inspect
-- One lock as people see it.
CALL fencelock_inspect(%s, NULL, 1);

-- name: inspect_page
-- A page of locks, ordered by name.
CALL fencelock_inspect(NULL, %s, %s);

-- name: check_proof
-- Whether the lease of a proof holds the lock now.
CALL fencelock_check(%s, %s, %s);

-- name: add_key
-- Keep a key, which signs in so many seconds.
CALL fencelock_add_key(%s, %s, %s, %s, %s);

-- name: retire_key
-- Sign with a key no more.
CALL fencelock_retire_key(%s);

-- name: read_keys
-- The keys, oldest first, and for each whether a lease that is running was signed with it, and whether it signs now.
SELECT k.key_id, k.secret, k.not_before_s, k.retired_s, EXISTS (
    SELECT 1 FROM fencelock_lock AS l JOIN fencelock_source AS s ON s.id = 1
    WHERE l.key_id = k.key_id AND l.digest IS NOT NULL AND l.epoch = s.epoch
      AND l.deadline_us > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))),
    k.key_id <=> (
        SELECT n.key_id FROM fencelock_source_key AS n
        WHERE n.not_before_s <= TIMESTAMPDIFF(SECOND, '1970-01-01', SYSDATE(6))
          AND COALESCE(n.retired_s > TIMESTAMPDIFF(SECOND, '1970-01-01', SYSDATE(6)), TRUE)
        ORDER BY n.not_before_s DESC, n.number DESC LIMIT 1)
FROM fencelock_source_key AS k ORDER BY k.not_before_s, k.number;

-- name: settings
-- Settings that break the source's guarantees; a server shows those that it has.
SHOW GLOBAL VARIABLES WHERE Variable_name IN (
    'innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'log_bin', 'sync_binlog', 'read_only', 'wsrep_on');

-- name: clock
-- Whether SYSDATE() returns the time of the moment, and not that of the statement's beginning (H1).
SELECT SLEEP(0.01), SYSDATE(6) > NOW(6);

-- name: grants
-- The rights of this account.
SHOW GRANTS;

-- name: finish
-- The identity of a new source, whose first history begins at token 1. This row marks the schema as whole.
INSERT INTO fencelock_source (
    id, schema_number, source_id, epoch, history_id, mask_secret, token, born_after_us, began_because)
VALUES (1, %s, %s, 1, %s, %s, 0, 0, 'it was installed');
