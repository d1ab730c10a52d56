-- name: describe
-- The first statement of a connection, and what `fencelock epoch` shows; the process id tells a pooler from the server.
SELECT schema, is_whole, now_us, source_id, epoch, history_id, last_token, bound,
       pg_backend_pid()
FROM fencelock.describe() WHERE schema IS NOT NULL;

-- name: settle_in
-- For a connection of its own: what each change would set for itself otherwise, or be refused for; and plans that were made
-- while the tables were small serve when they are large.
SELECT set_config('synchronous_commit', 'off', false), set_config('default_transaction_isolation', 'read committed', false),
       set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false),
       set_config('plan_cache_mode', 'force_generic_plan', false);

-- name: examine
-- What of the server's settings, and of this role's rights, would break the promise. Of the functions without a search_path
-- some are the guard's, where it is in the same database: every name in them is complete.
SELECT pg_is_in_recovery(), current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
       has_table_privilege('fencelock.lock', 'INSERT, UPDATE, DELETE, TRUNCATE')
       OR has_sequence_privilege('fencelock.token', 'USAGE, UPDATE'),
       has_schema_privilege('fencelock', 'CREATE'),
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
       ARRAY (SELECT p.proname::text FROM pg_proc AS p
              WHERE p.pronamespace = 'fencelock'::regnamespace AND p.prosecdef
                AND p.proname <> ALL ('{confirm,enforce,note_name,observe,offer}')
                AND NOT coalesce(p.proconfig, '{}') @> ARRAY['search_path=pg_catalog, pg_temp'] ORDER BY 1),
       pg_backend_pid();

-- name: acquire
-- Take the lock, queue for it, or look again whether its turn has come.
SELECT outcome, token, time_ms, now_us, source_id, epoch, history_id
FROM fencelock.acquire(%s, %s, %s, %s, %s, %s, %s, %s, %s);

-- name: release
-- End a claim for good, and ring for the next one.
SELECT was_held, now_us FROM fencelock.release(%s, %s, %s);

-- name: renew
-- Extend every lease of a batch that is still running.
SELECT claim, remaining_ms, reason FROM fencelock.renew(%s, %s);

-- name: reserve
-- Make sure that tokens are reserved, on the disk.
SELECT fencelock.reserve(%s);

-- name: raise_epoch
-- Begin a new history if the old one is still the one that was read, and tell what it is; no row if it is not. (OFFSET 0 keeps
-- the planner from describing it first.)
SELECT d.source_id, d.epoch, d.history_id, d.last_token, d.bound
FROM fencelock.raise_epoch(%s, %s, %s, %s) AS was_raised
CROSS JOIN LATERAL (SELECT * FROM fencelock.describe() WHERE was_raised OFFSET 0) AS d;

-- name: break_lease
-- Free a lock, whoever holds it, and mint the breaker's token.
SELECT token, source_id, epoch, history_id, holder FROM fencelock.break_lease(%s, %s, %s, %s, %s);

-- name: purge
-- Forget locks that nobody holds or waits for.
SELECT gone, now_us FROM fencelock.purge();

-- name: inspect
-- One lock as people see it.
SELECT name, token, holder, remaining_ms, ttl_ms, waiters FROM fencelock.inspect(%s, NULL, 1);

-- name: inspect_page
-- A page of locks in the order of their names.
SELECT name, token, holder, remaining_ms, ttl_ms, waiters FROM fencelock.inspect(NULL, %s, %s);
