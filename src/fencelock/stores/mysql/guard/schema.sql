-- The guard's tables, in the database that it protects. The statements run in this order, and each can be repeated: DDL
-- commits by itself here, so an installation may end between any two. The number of the schema is written last, by the
-- statement write_schema of install.sql, and nothing is called before. Names and digests are bytes, so that no collation
-- makes two of them equal. Only the operator needs rights on the tables: all others use the routines.
--
-- A session's own temporary table hides the table of its name from routines and triggers. It cannot have partitions, so
-- where a decision is read, the table has one, and each statement names it: it fails if the table is hidden.

-- name: create_guard
-- The number of this schema; any other number is refused. And a secret, from which masks and the stamps of marks are drawn.
CREATE TABLE IF NOT EXISTS fencelock_guard (
    id            INT PRIMARY KEY CHECK (id = 1),
    schema_number INT NOT NULL,
    mask_secret   VARBINARY(64) NOT NULL
) ENGINE = InnoDB
PARTITION BY KEY () (PARTITION lasting);

-- name: create_guard_audit
-- What operators did to resources, when (UTC), and why. Rows are only ever added.
CREATE TABLE IF NOT EXISTS fencelock_guard_audit (
    id         BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY,
    at         DATETIME(6)    NOT NULL,
    account    VARCHAR(288)   NOT NULL,
    who        VARCHAR(2048)  NOT NULL,
    action     VARCHAR(32)    NOT NULL,
    resource   VARBINARY(512) NOT NULL,
    from_token BIGINT         NOT NULL CHECK (from_token >= 0),
    to_token   BIGINT         NOT NULL CHECK (to_token >= 0),
    reason     TEXT           NOT NULL CHECK (TRIM(reason) <> '')
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- name: create_mark
-- The highest token that each resource has promised (NULL: none yet), and the lease that it belongs to (without a digest:
-- an operator's), and when it was written last (UTC). `audit_id` names the entry of an operator's last change.
-- `requires_signature`: a sequencer raises the mark only if it is signed with a key of fencelock_guard_key. `stamp`: a
-- secret of the mark as it is, from which sessions that present it get their entry in @fencelock_presented. A row without a
-- lock is not a mark yet: two first seals of one resource wait for each other by it. A client that may seal may send any
-- name, and such a row cannot be deleted, so names must be readable for every client. (The server accepts U+D800 to U+DFFF as
-- UTF-8, which they are not.)
CREATE TABLE IF NOT EXISTS fencelock_mark (
    resource   VARBINARY(512)  PRIMARY KEY,
    lock_name  VARBINARY(512),
    token      BIGINT          CHECK (token >= 1),
    source_id  VARBINARY(64),
    history_id VARBINARY(64),
    digest     VARBINARY(64),
    is_closed  BOOLEAN         NOT NULL DEFAULT FALSE,
    audit_id   BIGINT UNSIGNED,
    requires_signature BOOLEAN NOT NULL DEFAULT FALSE,
    stamp      VARBINARY(64),
    raised_at  DATETIME(6),
    CONSTRAINT fencelock_a_resource_has_1_to_512_bytes_of_utf8 CHECK (
        resource <> '' AND CAST(CONVERT(resource USING utf8mb4) AS BINARY) <=> resource
        AND HEX(resource) NOT REGEXP '^(..)*(00|ED[AB])'),
    CONSTRAINT fencelock_a_lock_has_1_to_512_bytes_of_utf8 CHECK (
        lock_name IS NULL OR (
            lock_name <> '' AND CAST(CONVERT(lock_name USING utf8mb4) AS BINARY) <=> lock_name
            AND HEX(lock_name) NOT REGEXP '^(..)*(00|ED[AB])')),
    CONSTRAINT fencelock_ids_and_digests_are_of_letters_digits_and_dashes CHECK (
        CONVERT(CONCAT_WS('', source_id, history_id, digest) USING latin1) NOT REGEXP '[^A-Za-z0-9_-]')
) ENGINE = InnoDB
PARTITION BY KEY () (PARTITION lasting);

-- name: create_floor
-- What purged marks leave behind: of each source the highest token that may be theirs. A resource without a mark is sealed only
-- above it (G15). 0: there is no floor. `audit_id` names the entry of an operator's last change.
CREATE TABLE IF NOT EXISTS fencelock_floor (
    source_id VARBINARY(64) PRIMARY KEY,
    token     BIGINT        NOT NULL,
    audit_id  BIGINT UNSIGNED
) ENGINE = InnoDB
PARTITION BY KEY () (PARTITION lasting);

-- name: create_effect
-- What is done once per key, in a guarded block (`once=`) or outside of the database (`fencelock.dispatch`): who began it
-- (UTC), with which token, its result (NULL: nobody has recorded one), and the digest of the request.
CREATE TABLE IF NOT EXISTS fencelock_effect (
    resource   VARBINARY(512)  NOT NULL,
    effect_key VARBINARY(512)  NOT NULL,
    token      BIGINT          NOT NULL,
    holder     VARBINARY(2048) NOT NULL,
    began_at   DATETIME(6)     NOT NULL,
    result     VARBINARY(4096),
    request_digest VARBINARY(64) NOT NULL DEFAULT '',
    PRIMARY KEY (resource, effect_key)
) ENGINE = InnoDB
PARTITION BY KEY () (PARTITION lasting);

-- name: create_right
-- Which accounts may seal, present and close a resource; one that ends in * stands for all with that prefix. An account is
-- a user's name, from every host, or `name@host`, with the host as a pattern of LIKE. A new guard has no row: only the
-- account that owns the routines may (G12).
CREATE TABLE IF NOT EXISTS fencelock_right (
    resource VARBINARY(512) NOT NULL,
    account  VARCHAR(288)   NOT NULL,
    PRIMARY KEY (resource, account)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
PARTITION BY KEY () (PARTITION lasting);

-- name: create_guard_key
-- The keys with which this guard checks signatures, for its owner alone: each XOR'ed with HMAC's two constants, and when it
-- was retired, in seconds since 1970: from then on it is not accepted, whatever the clock says.
CREATE TABLE IF NOT EXISTS fencelock_guard_key (
    key_id    VARBINARY(64) PRIMARY KEY,
    inner_pad BINARY(64)    NOT NULL,
    outer_pad BINARY(64)    NOT NULL,
    retired_s BIGINT
) ENGINE = InnoDB
PARTITION BY KEY () (PARTITION lasting);

-- name: create_protection
-- The tables that were protected and not unprotected, by the number in their triggers' names; `table_name` and `mode` are
-- those at that time; '' while triggers are being created or dropped. The mode in force is only in the triggers.
CREATE TABLE IF NOT EXISTS fencelock_protection (
    id         INT UNSIGNED AUTO_INCREMENT PRIMARY KEY,
    table_name VARCHAR(64)    NOT NULL,
    resource   VARBINARY(512) NOT NULL,
    mode       VARCHAR(16)    NOT NULL,
    INDEX fencelock_protection_of (resource)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- name: forget_records
-- Records that outlive the marks are void: their tables count as orphaned, and protecting one again raises its mark.
DELETE FROM fencelock_protection WHERE NOT EXISTS (SELECT 1 FROM fencelock_mark);

-- name: create_observation
-- What observe mode let pass: a row for each connection and kind, so that writers neither wait for each other nor
-- conflict. Without a table: a lease, not a write, would have been refused.
CREATE TABLE IF NOT EXISTS fencelock_observation (
    connection_id BIGINT UNSIGNED NOT NULL,
    account       VARCHAR(288)    NOT NULL,
    resource      VARBINARY(512)  NOT NULL,
    table_name    VARCHAR(64)     NOT NULL,
    kind          VARCHAR(16)     NOT NULL,
    program       VARCHAR(100)    NOT NULL,
    times         BIGINT UNSIGNED NOT NULL,
    first_at      DATETIME(6)     NOT NULL,
    last_at       DATETIME(6)     NOT NULL,
    PRIMARY KEY (connection_id, account, resource, table_name, kind)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- name: drop_keep_mark
-- Remove the trigger that an interrupted installation may have created.
DROP TRIGGER IF EXISTS fencelock_keep_mark;

-- name: create_keep_mark
-- Let a mark change as a lease may change it (raised under the same lock and source, or closed), and otherwise only by a
-- new audit entry for exactly that change; and stamp it. It gets a source only above the source's floor.
CREATE TRIGGER fencelock_keep_mark BEFORE UPDATE ON fencelock_mark FOR EACH ROW
BEGIN
    DECLARE is_kept BOOLEAN DEFAULT FALSE;
    /*M!100201
    IF NOT @@session.check_constraint_checks THEN
        SIGNAL SQLSTATE 'FL009' SET MESSAGE_TEXT =
            'FL009 a session that has SET check_constraint_checks = 0 writes no mark: SET it to 1';
    END IF; */
    IF NEW.resource <> OLD.resource THEN
        SET is_kept = FALSE;
    ELSEIF NOT (NEW.audit_id <=> OLD.audit_id) THEN
        SET is_kept = NEW.audit_id > COALESCE(OLD.audit_id, 0) AND EXISTS (
            SELECT 1 FROM fencelock_guard_audit AS entry
            WHERE entry.id = NEW.audit_id AND entry.resource = OLD.resource
                AND entry.from_token = COALESCE(OLD.token, 0) AND entry.to_token = COALESCE(NEW.token, 0)
                AND (entry.action = 'rebind' OR OLD.lock_name IS NULL OR NEW.lock_name = OLD.lock_name));
    ELSEIF OLD.lock_name IS NOT NULL AND NOT (NEW.lock_name <=> OLD.lock_name) THEN
        SET is_kept = FALSE;
    ELSEIF OLD.source_id IS NOT NULL AND NOT (NEW.source_id <=> OLD.source_id) THEN
        SET is_kept = FALSE;
    ELSEIF NEW.token <=> OLD.token THEN
        SET is_kept = NEW.digest <=> OLD.digest AND NEW.source_id <=> OLD.source_id AND NEW.history_id <=> OLD.history_id
            AND NEW.is_closed >= OLD.is_closed;
    ELSE
        SET is_kept = NEW.token > COALESCE(OLD.token, 0);
    END IF;
    IF is_kept IS NOT TRUE THEN
        SIGNAL SQLSTATE 'FL009' SET MESSAGE_TEXT =
            'FL009 a mark only goes up, and stays with its lock and source: see fencelock marks --help, fencelock rebind --help';
    END IF;
    IF NOT NEW.source_id <=> OLD.source_id THEN
        CALL fencelock_check_floor(NEW.resource, NEW.source_id, COALESCE(NEW.token, 0), NEW.digest);
    END IF;
    SET NEW.stamp = (
        SELECT SHA2(CONCAT_WS('.', guard.mask_secret, HEX(NEW.resource), NEW.token, NEW.digest), 256)
        FROM fencelock_guard PARTITION (lasting) AS guard WHERE guard.id = 1);
END;

-- name: drop_keep_mark_checked
-- Remove the trigger that an interrupted installation may have created.
DROP TRIGGER IF EXISTS fencelock_keep_mark_checked;

-- name: create_keep_mark_checked
-- MariaDB lets any session switch the CHECKs above off: such a session writes no mark. A new mark is above the floor of its
-- source, and stamped.
CREATE TRIGGER fencelock_keep_mark_checked BEFORE INSERT ON fencelock_mark FOR EACH ROW
BEGIN
    /*M!100201
    IF NOT @@session.check_constraint_checks THEN
        SIGNAL SQLSTATE 'FL009' SET MESSAGE_TEXT =
            'FL009 a session that has SET check_constraint_checks = 0 writes no mark: SET it to 1';
    END IF; */
    IF NEW.source_id IS NOT NULL THEN
        CALL fencelock_check_floor(NEW.resource, NEW.source_id, COALESCE(NEW.token, 0), NEW.digest);
    END IF;
    SET NEW.stamp = (
        SELECT SHA2(CONCAT_WS('.', guard.mask_secret, HEX(NEW.resource), NEW.token, NEW.digest), 256)
        FROM fencelock_guard PARTITION (lasting) AS guard WHERE guard.id = 1);
END;

-- name: drop_keep_mark_forever
-- Remove the trigger that an interrupted installation may have created.
DROP TRIGGER IF EXISTS fencelock_keep_mark_forever;

-- name: create_keep_mark_forever
-- A mark is deleted only where the floor of its source stands for it: an operator has never moved it to another lock or source,
-- no table is protected by it, and it requires no signature. Without either, every old token would be admitted again.
CREATE TRIGGER fencelock_keep_mark_forever BEFORE DELETE ON fencelock_mark FOR EACH ROW
BEGIN
    DECLARE floor BIGINT;
    SELECT MAX(kept.token) INTO floor
    FROM fencelock_floor PARTITION (lasting) AS kept WHERE kept.source_id = OLD.source_id LOCK IN SHARE MODE;
    IF OLD.requires_signature OR COALESCE(OLD.token > floor, TRUE)
        OR EXISTS (SELECT 1 FROM fencelock_protection AS protection WHERE protection.resource = OLD.resource)
        OR EXISTS (
            SELECT 1 FROM fencelock_guard_audit AS entry
            WHERE entry.resource = OLD.resource AND entry.action = 'rebind' AND OLD.audit_id IS NOT NULL) THEN
        SIGNAL SQLSTATE 'FL009' SET MESSAGE_TEXT =
            'FL009 a mark is not deleted without a floor in its place, or old tokens would be admitted: see fencelock purge --help';
    END IF;
END;

-- name: drop_keep_floor
-- Remove the trigger that an interrupted installation may have created.
DROP TRIGGER IF EXISTS fencelock_keep_floor;

-- name: create_keep_floor
-- Let a floor rise, and fall only by a new audit entry for exactly that, whose reason names its source.
CREATE TRIGGER fencelock_keep_floor BEFORE UPDATE ON fencelock_floor FOR EACH ROW
IF NEW.source_id <> OLD.source_id OR (NEW.token < OLD.token AND NOT (
    COALESCE(NEW.audit_id, 0) > COALESCE(OLD.audit_id, 0) AND EXISTS (
        SELECT 1 FROM fencelock_guard_audit AS entry
        WHERE entry.id = NEW.audit_id AND entry.action = 'floor' AND entry.resource = ''
            AND LOCATE(CONCAT('(source ', OLD.source_id, ')'), CAST(entry.reason AS BINARY)) > 0
            AND entry.from_token = OLD.token AND entry.to_token = NEW.token))) THEN
    SIGNAL SQLSTATE 'FL009' SET MESSAGE_TEXT = 'FL009 a floor only goes up, and stays with its source: see fencelock marks --help';
END IF;

-- name: drop_keep_floor_forever
-- Remove the trigger that an interrupted installation may have created.
DROP TRIGGER IF EXISTS fencelock_keep_floor_forever;

-- name: create_keep_floor_forever
-- A floor is never deleted: the tokens of purged marks would be admitted again.
CREATE TRIGGER fencelock_keep_floor_forever BEFORE DELETE ON fencelock_floor FOR EACH ROW
SIGNAL SQLSTATE 'FL009' SET MESSAGE_TEXT = 'FL009 a floor is never deleted: an operator may lower it, see fencelock marks --help';

-- name: drop_keep_audit
-- Remove the trigger that an interrupted installation may have created.
DROP TRIGGER IF EXISTS fencelock_keep_audit;

-- name: create_keep_audit
-- No entry is changed.
CREATE TRIGGER fencelock_keep_audit BEFORE UPDATE ON fencelock_guard_audit FOR EACH ROW
SIGNAL SQLSTATE 'FL009' SET MESSAGE_TEXT = 'FL009 audit entries are only ever added';

-- name: drop_keep_audit_forever
-- Remove the trigger that an interrupted installation may have created.
DROP TRIGGER IF EXISTS fencelock_keep_audit_forever;

-- name: create_keep_audit_forever
-- No entry is deleted.
CREATE TRIGGER fencelock_keep_audit_forever BEFORE DELETE ON fencelock_guard_audit FOR EACH ROW
SIGNAL SQLSTATE 'FL009' SET MESSAGE_TEXT = 'FL009 audit entries are only ever added';

-- name: drop_keep_effect
-- Remove the trigger that an interrupted installation may have created.
DROP TRIGGER IF EXISTS fencelock_keep_effect;

-- name: create_keep_effect
-- An intent is deleted inside a guarded transaction only, and a result after its token is no longer the mark: its holder may
-- ask for it again, after a commit whose reply was lost.
CREATE TRIGGER fencelock_keep_effect BEFORE DELETE ON fencelock_effect FOR EACH ROW
BEGIN
    IF OLD.result IS NULL THEN
        IF COALESCE(LOCATE(CONCAT(',', HEX(OLD.resource), '.'), @fencelock_presented), 0) = 0 THEN
            SIGNAL SQLSTATE 'FL009' SET MESSAGE_TEXT =
                'FL009 this key was begun, and its result is not recorded: find out, then dispatch(..., may_repeat=True)';
        END IF;
    ELSEIF EXISTS (
        SELECT 1 FROM fencelock_mark PARTITION (lasting) AS mark
            WHERE mark.resource = OLD.resource AND mark.token = OLD.token
        LOCK IN SHARE MODE) THEN
        SIGNAL SQLSTATE 'FL009' SET MESSAGE_TEXT =
            'FL009 this key was done under the token that is the mark: run fencelock purge --done, which leaves such keys';
    END IF;
END;
