-- The statements that a client sends to the source: one for each request.

-- name: describe
-- The first statement of a connection, and what `fencelock epoch` shows. The backend's process id reveals a pooler.
SELECT schema, is_whole, now_us, source_id, epoch, history_id, last_token, bound,
       pg_backend_pid()
FROM fencelock.describe() WHERE schema IS NOT NULL;

-- name: settle_in
-- The settings of a session of its own: otherwise each change would have to set them, or be refused. The last three keep
-- plans that were made while the tables were small good for large ones.
SELECT set_config('synchronous_commit', 'off', false), set_config('default_transaction_isolation', 'read committed', false),
       set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false),
       set_config('plan_cache_mode', 'force_generic_plan', false);

-- name: examine
-- The server's settings and this role's rights that break the source's guarantees. Some functions without a search_path
-- are the guard's, where it is in the same database: every name in them is schema-qualified.
SELECT pg_is_in_recovery(), current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
       has_table_privilege('fencelock.lock', 'INSERT, UPDATE, DELETE, TRUNCATE')
       OR has_sequence_privilege('fencelock.token', 'USAGE, UPDATE')
       OR has_table_privilege('fencelock.signing_key', 'SELECT, INSERT, UPDATE'),
       has_schema_privilege('fencelock', 'CREATE'),
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
       EXISTS (SELECT FROM pg_proc WHERE pronamespace = 'fencelock'::regnamespace AND proname = 'begin_flushed'
               AND has_function_privilege('public', oid, 'EXECUTE')),
       ARRAY (SELECT p.proname::text FROM pg_proc AS p
              WHERE p.pronamespace = 'fencelock'::regnamespace AND p.prosecdef
                AND p.proname <> ALL ('{confirm,enforce,note_name,observe,offer}')
                AND NOT coalesce(p.proconfig, '{}') @> ARRAY['search_path=pg_catalog, pg_temp'] ORDER BY 1),
       pg_backend_pid();

-- name: acquire
-- Take the lock, queue for it, or look whether its turn has come.
SELECT outcome, token, time_ms, now_us, source_id, epoch, history_id, key_id, signature
FROM fencelock.acquire(%s, %s, %s, %s, %s, %s, %s, %s, %s);

-- name: release
-- End a claim for good, and notify the next waiter.
SELECT was_held, now_us FROM fencelock.release(%s, %s, %s);

-- name: renew
-- Extend every lease of a batch that has not expired.
SELECT claim, remaining_ms, reason FROM fencelock.renew(%s, %s);

-- name: reserve
-- Make sure that tokens are reserved, on disk.
SELECT fencelock.reserve(%s);

-- name: raise_epoch
-- Begin a new history if the current one is still the one that was read, and describe it; no row if it is not. (OFFSET 0
-- keeps the planner from calling describe() first.)
SELECT d.source_id, d.epoch, d.history_id, d.last_token, d.bound
FROM fencelock.raise_epoch(%s, %s, %s, %s) AS was_raised
CROSS JOIN LATERAL (SELECT * FROM fencelock.describe() WHERE was_raised OFFSET 0) AS d;

-- name: break_lease
-- Free a lock, and mint the breaker's token.
SELECT token, source_id, epoch, history_id, holder, key_id, signature FROM fencelock.break_lease(%s, %s, %s, %s, %s);

-- name: purge
-- Forget locks without holder and waiters.
SELECT gone, now_us FROM fencelock.purge();

-- name: inspect
-- One lock as people see it.
SELECT name, token, holder, remaining_ms, ttl_ms, waiters FROM fencelock.inspect(%s, NULL, 1);

-- name: inspect_page
-- A page of locks, ordered by name.
SELECT name, token, holder, remaining_ms, ttl_ms, waiters FROM fencelock.inspect(NULL, %s, %s);

-- name: check_proof
-- Whether the lease of a proof holds the lock now.
SELECT remaining_ms, last_token FROM fencelock.check_proof(%s, %s, %s);

-- name: add_key
-- Keep a key, which signs in so many seconds by this server's clock, and flush it. A repeated request changes nothing.
INSERT INTO fencelock.signing_key (key_id, secret, inner_pad, outer_pad, not_before_s)
VALUES (%s, %s, %s, %s, fencelock.now_us() / 1000000 + %s)
ON CONFLICT (key_id) DO UPDATE SET key_id = excluded.key_id RETURNING set_config('synchronous_commit', 'on', true);

-- name: retire_key
-- Sign with a key no more, also after a power cut: the commits of this session are not flushed otherwise.
UPDATE fencelock.signing_key SET retired_s = coalesce(retired_s, fencelock.now_us() / 1000000) WHERE key_id = %s
RETURNING set_config('synchronous_commit', 'on', true);

-- name: read_keys
-- The keys, oldest first, and for each whether a lease that is running was signed with it, and whether it signs now.
SELECT key_id, secret, not_before_s, retired_s, EXISTS (
    SELECT FROM fencelock.lock AS held
    WHERE held.key_id = signing_key.key_id AND held.digest IS NOT NULL AND held.deadline_us > fencelock.now_us()),
    key_id IS NOT DISTINCT FROM fencelock.newest_key(fencelock.now_us())
FROM fencelock.signing_key ORDER BY not_before_s, number;
