-- The queries of `fencelock doctor` about a guarded database. None of them writes. A server shows the rights of other
-- accounts only to those that may read its system tables.

-- name: triggered
-- Every table with triggers of fencelock that this account can see, and their resource.
SELECT EVENT_OBJECT_TABLE, UNHEX(SUBSTRING_INDEX(SUBSTRING_INDEX(
    CONVERT(ACTION_STATEMENT USING latin1), 'mark.resource = x''', -1), '''', 1))
FROM information_schema.TRIGGERS
WHERE TRIGGER_SCHEMA = CONVERT({database} USING utf8mb4)
    AND TRIGGER_NAME REGEXP '^fencelock_[0-9]+_(insert|update|delete)_(enforce|observe)$';

-- name: kept
-- Resources that keep keys.
SELECT DISTINCT resource FROM {here}.fencelock_effect;

-- name: cascades
-- Foreign keys between tables of this database: child, parent, and what a change of the parent does.
SELECT TABLE_NAME, REFERENCED_TABLE_NAME, CONCAT('ON DELETE ', DELETE_RULE, ', ON UPDATE ', UPDATE_RULE)
FROM information_schema.REFERENTIAL_CONSTRAINTS
WHERE CONSTRAINT_SCHEMA = CONVERT({database} USING utf8mb4)
    AND (DELETE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT') OR UPDATE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT'))
ORDER BY 1, 2;

-- name: engines
-- Tables whose engine cannot roll back a refused statement.
SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES
WHERE TABLE_SCHEMA = CONVERT({database} USING utf8mb4) AND ENGINE <> 'InnoDB' ORDER BY 1;

-- name: powers
-- Accounts with rights that no trigger stops, and the table that the rights are on; NULL: all tables.
SELECT found.GRANTEE, GROUP_CONCAT(DISTINCT found.PRIVILEGE_TYPE ORDER BY found.PRIVILEGE_TYPE SEPARATOR ', '), found.scope FROM (
    SELECT GRANTEE, PRIVILEGE_TYPE, NULL AS scope FROM information_schema.USER_PRIVILEGES
    UNION ALL
    SELECT GRANTEE, PRIVILEGE_TYPE, NULL FROM information_schema.SCHEMA_PRIVILEGES
    WHERE CONVERT({database} USING utf8mb4) COLLATE utf8mb4_bin LIKE CONVERT(TABLE_SCHEMA USING utf8mb4) COLLATE utf8mb4_bin
    UNION ALL
    SELECT GRANTEE, PRIVILEGE_TYPE, TABLE_NAME FROM information_schema.TABLE_PRIVILEGES
    WHERE TABLE_SCHEMA = CONVERT({database} USING utf8mb4)
) AS found
WHERE found.PRIVILEGE_TYPE IN (
        'DROP', 'ALTER', 'TRIGGER', 'SUPER', 'BINLOG REPLAY', 'CREATE ROUTINE', 'ALTER ROUTINE', 'DELETE HISTORY')
    AND found.GRANTEE NOT LIKE '''mysql.%' AND found.GRANTEE NOT LIKE '''mariadb.sys''%'
GROUP BY found.GRANTEE, found.scope ORDER BY 1, 3;

-- name: readers
-- Accounts with rights on fencelock's tables, by a grant on each or on the whole database (where `powers` shows the other
-- rights).
SELECT found.GRANTEE, GROUP_CONCAT(DISTINCT found.PRIVILEGE_TYPE ORDER BY found.PRIVILEGE_TYPE SEPARATOR ', '), found.scope FROM (
    SELECT GRANTEE, PRIVILEGE_TYPE, 'all tables of the database' AS scope FROM information_schema.SCHEMA_PRIVILEGES
    WHERE CONVERT({database} USING utf8mb4) COLLATE utf8mb4_bin LIKE CONVERT(TABLE_SCHEMA USING utf8mb4) COLLATE utf8mb4_bin
    UNION ALL
    SELECT GRANTEE, PRIVILEGE_TYPE, TABLE_NAME FROM information_schema.TABLE_PRIVILEGES
    WHERE TABLE_SCHEMA = CONVERT({database} USING utf8mb4)
        AND TABLE_NAME IN (
            'fencelock_mark', 'fencelock_floor', 'fencelock_guard', 'fencelock_guard_audit', 'fencelock_observation',
            'fencelock_guard_key', 'fencelock_right')
) AS found
WHERE found.PRIVILEGE_TYPE IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    OR (found.PRIVILEGE_TYPE IN ('DROP', 'ALTER', 'TRIGGER') AND found.scope LIKE 'fencelock\_%')
GROUP BY found.GRANTEE, found.scope ORDER BY 1, 3;

-- name: namesakes
-- Accounts whose sessions count as another one's, with whose: those without a name, which may log in by any, and those of
-- the owner's name that log in from a host of the owner's pattern.
SELECT found.GRANTEE, IF(found.GRANTEE LIKE '''''@%', NULL, owner.account)
FROM (SELECT DISTINCT GRANTEE FROM information_schema.USER_PRIVILEGES) AS found
LEFT JOIN (
    SELECT CONCAT('''', REPLACE(DEFINER, '@', '''@'''), '''') AS account FROM information_schema.ROUTINES
    WHERE ROUTINE_SCHEMA = CONVERT({database} USING utf8mb4) AND ROUTINE_NAME = 'fencelock_seal'
) AS owner ON owner.account <> found.GRANTEE
    AND SUBSTRING_INDEX(owner.account, '@', 1) = SUBSTRING_INDEX(found.GRANTEE, '@', 1)
    AND SUBSTRING_INDEX(found.GRANTEE, '@', -1) LIKE SUBSTRING_INDEX(owner.account, '@', -1)
WHERE found.GRANTEE LIKE '''''@%' OR owner.account IS NOT NULL ORDER BY 1;

-- name: settings
-- Settings of the server without which a commit is not on disk, or reaches a replica without its triggers' consent.
SELECT 'unflushed', 'innodb_flush_log_at_trx_commit', @@global.innodb_flush_log_at_trx_commit,
    'after a power cut marks and data may be older than what was confirmed' FROM DUAL
WHERE @@global.innodb_flush_log_at_trx_commit <> 1
UNION ALL
SELECT 'unflushed', 'sync_binlog', @@global.sync_binlog,
    'after a power cut the server rolls back what its binary log lacks, so marks and data may be older too' FROM DUAL
WHERE @@global.log_bin AND @@global.sync_binlog <> 1
UNION ALL
SELECT 'replication', 'binlog_format', @@global.binlog_format,
    'a replica runs the statements itself, where no session has presented anything, and its triggers refuse them' FROM DUAL
WHERE @@global.log_bin AND @@global.binlog_format = 'STATEMENT';
