-- The guard's routines, first file: what refuses a lease, a role, a signature or a token, and the masks under which
-- secrets travel in statements that other sessions of the account may see.

-- name: fencelock_refuse
-- Raise the reason why a lease is not admitted to a resource with another mark. Never returns.
CREATE PROCEDURE fencelock_refuse(
    p_resource VARBINARY(512), p_lock VARBINARY(512), p_token BIGINT, p_digest VARBINARY(64), p_source_id VARBINARY(64),
    p_history_id VARBINARY(64))
READS SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE m_lock VARBINARY(512);
    DECLARE m_token BIGINT;
    DECLARE m_source_id, m_history_id, m_digest VARBINARY(64);
    DECLARE message VARCHAR(1024) CHARACTER SET utf8mb4;
    SELECT lock_name, token, source_id, history_id, digest INTO m_lock, m_token, m_source_id, m_history_id, m_digest
    FROM fencelock_mark PARTITION (lasting) WHERE resource = p_resource LOCK IN SHARE MODE;
    SET message = CONCAT('token ', p_token, ' at mark ', COALESCE(m_token, 0), ' of resource ',
        LEFT(CONVERT(p_resource USING utf8mb4), 30), ': ');
    IF m_lock <> p_lock THEN
        SET message = LEFT(CONCAT('FL004 ', message, 'it is bound to another lock: see fencelock rebind'), 128);
        SIGNAL SQLSTATE 'FL004' SET MESSAGE_TEXT = message;
    ELSEIF m_source_id <> p_source_id THEN
        SET message = LEFT(CONCAT('FL004 ', message, 'it is bound to another source: see fencelock rebind'), 128);
        SIGNAL SQLSTATE 'FL004' SET MESSAGE_TEXT = message;
    ELSEIF m_token IS NULL OR m_token < p_token THEN
        SET message = LEFT(CONCAT('FL005 ', message, 'this token has not sealed it, or its seal was lost'), 128);
        SIGNAL SQLSTATE 'FL005' SET MESSAGE_TEXT = message;
    ELSEIF m_token > p_token THEN
        SET message = LEFT(CONCAT('FL002 ', message, 'a newer holder has sealed it. Stop'), 128);
        SIGNAL SQLSTATE 'FL002' SET MESSAGE_TEXT = message;
    ELSEIF m_digest IS NULL THEN
        SET message = LEFT(CONCAT('FL002 ', message, 'an operator has raised it. Stop'), 128);
        SIGNAL SQLSTATE 'FL002' SET MESSAGE_TEXT = message;
    ELSEIF m_digest <> p_digest OR m_history_id <> p_history_id THEN
        SET message = LEFT(CONCAT('FL003 ', message, 'another lease has sealed it with this token'), 128);
        SIGNAL SQLSTATE 'FL003' SET MESSAGE_TEXT = message;
    END IF;
    SET message = LEFT(CONCAT('FL002 ', message, 'its own holder closed it'), 128);
    SIGNAL SQLSTATE 'FL002' SET MESSAGE_TEXT = message;
END;

-- name: fencelock_check_tables
-- Refuse to present a lease if a table that one of these resources protects exists under its name, and its rows do not meet
-- all triggers: it was rebuilt, and any writer gets in (G16). The server shows triggers slowly, so a session looks once a
-- second at most: @fencelock_whole has the second and the resources. (A session that sets it by hand fools only itself.)
CREATE PROCEDURE fencelock_check_tables(p_resources LONGTEXT CHARACTER SET ascii)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE rest LONGTEXT CHARACTER SET ascii DEFAULT p_resources;
    DECLARE wanted VARBINARY(512);
    DECLARE v_id INT UNSIGNED;
    DECLARE v_table, v_here VARCHAR(64) CHARACTER SET utf8mb4;
    DECLARE v_is_bare, v_is_at_end BOOLEAN;
    DECLARE message VARCHAR(1024) CHARACTER SET utf8mb4;
    DECLARE known CURSOR FOR
        SELECT id, table_name FROM fencelock_protection WHERE resource = wanted AND mode = 'enforce';
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_is_at_end = TRUE;
    SET v_here = DATABASE();
    WHILE rest <> '' DO
        SET wanted = UNHEX(SUBSTRING_INDEX(rest, ',', 1)),
            rest = SUBSTRING(rest, LENGTH(SUBSTRING_INDEX(rest, ',', 1)) + 2),
            v_is_at_end = FALSE;
        OPEN known;
        FETCH known INTO v_id, v_table;
        WHILE NOT v_is_at_end DO
            CALL fencelock_find_bare(v_here, v_table, v_id, v_is_bare);
            IF v_is_bare THEN
                -- A table that is being renamed has its triggers a moment later than its name.
                DO SLEEP(0.1);
                CALL fencelock_find_bare(v_here, v_table, v_id, v_is_bare);
            END IF;
            IF v_is_bare THEN
                CALL fencelock_unbind();
                SET message = LEFT(CONCAT('FL018 table ', LEFT(v_table, 30), ' was rebuilt, and its rows meet no trigger: run '
                    'fencelock protect. Resource: ', CONVERT(wanted USING utf8mb4)), 128);
                SIGNAL SQLSTATE 'FL018' SET MESSAGE_TEXT = message;
            END IF;
            FETCH known INTO v_id, v_table;
        END WHILE;
        CLOSE known;
    END WHILE;
    SET @fencelock_whole = CONCAT(UNIX_TIMESTAMP(SYSDATE()), ',', p_resources);
END;

-- name: fencelock_find_bare
-- Whether a table exists, and some kind of write meets no trigger of this number. The values are variables: then the server
-- reads the triggers of one table, not of all.
CREATE PROCEDURE fencelock_find_bare(
    p_here VARCHAR(64) CHARACTER SET utf8mb4, p_table VARCHAR(64) CHARACTER SET utf8mb4, p_id INT UNSIGNED,
    OUT p_is_bare BOOLEAN)
READS SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE v_kinds, v_tables INT DEFAULT 0;
    SELECT COUNT(DISTINCT EVENT_MANIPULATION) INTO v_kinds FROM information_schema.TRIGGERS
    WHERE EVENT_OBJECT_SCHEMA = p_here AND EVENT_OBJECT_TABLE = p_table
        AND TRIGGER_NAME LIKE CONCAT('fencelock\_', p_id, '\_%');
    IF v_kinds < 3 THEN
        SELECT COUNT(*) INTO v_tables FROM information_schema.TABLES
        WHERE TABLE_SCHEMA = p_here AND TABLE_NAME = p_table AND TABLE_TYPE <> 'VIEW';
    END IF;
    SET p_is_bare = v_tables > 0;
END;

-- name: fencelock_draw_mask
-- Draw a mask: a ticket, by which the server finds the key, and the key. The server shows the text of each statement to
-- other sessions of the account, and in a routine with the values of its variables: so a key is in a result only, and what
-- it masks is good for the session of one number. NULL if the client's number is another one, as behind a proxy.
CREATE PROCEDURE fencelock_draw_mask(p_number BIGINT)
READS SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE v_ticket VARBINARY(32) DEFAULT IF(
        CONNECTION_ID() = p_number, LEFT(SHA2(CONCAT_WS('.', UUID(), CONNECTION_ID(), SYSDATE(6)), 256), 32), NULL);
    SELECT v_ticket, SHA2(CONCAT(mask_secret, v_ticket), 256)
    FROM fencelock_guard PARTITION (lasting) WHERE id = 1 LOCK IN SHARE MODE;
END;

-- name: fencelock_unmask
-- Replace a masked claim or proof by the claim or the proof; leave one that is not masked. Afterwards it may be used in SET
-- and IF only: other statements, and the parameters of CALL, are shown to other sessions.
CREATE PROCEDURE fencelock_unmask(INOUT p_secret VARBINARY(96))
READS SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE v_secret, v_key, v_masked, v_pad, v_revealed VARBINARY(64);
    IF LENGTH(p_secret) = 96 THEN
        SELECT mask_secret INTO v_secret FROM fencelock_guard PARTITION (lasting) WHERE id = 1 LOCK IN SHARE MODE;
        SET v_key = SHA2(CONCAT(SHA2(CONCAT(v_secret, LEFT(p_secret, 32)), 256), CONNECTION_ID()), 256),
            v_masked = SUBSTRING(p_secret, 33);
        SET v_pad = MASK_PAD(v_masked, v_key);
        SET v_revealed = REVEAL(v_masked, v_pad);
        IF IS_UNREADABLE(v_masked, v_revealed, v_key) THEN
            SIGNAL SQLSTATE 'FL011' SET MESSAGE_TEXT =
                'FL011 the proof is masked for another session of the server, or by another database: connect again';
        END IF;
        SET p_secret = v_revealed;
    END IF;
END;

-- name: fencelock_check_right
-- Refuse a session whose account may not seal, present or close the resource. The account is the one that logged in. Call
-- it after the mark is locked: a session that waited for the lock is refused if its right was taken meanwhile. Before a
-- mark is written, the read locks: it sees past an old snapshot.
CREATE PROCEDURE fencelock_check_right(p_resource VARBINARY(512), p_is_to_write BOOLEAN)
READS SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE v_host VARCHAR(255) CHARACTER SET utf8mb4 DEFAULT SUBSTRING_INDEX(USER(), '@', -1);
    DECLARE v_name VARCHAR(288) CHARACTER SET utf8mb4 DEFAULT LEFT(USER(), CHAR_LENGTH(USER()) - CHAR_LENGTH(v_host) - 1);
    DECLARE v_rights INT DEFAULT 0;
    DECLARE message VARCHAR(1024) CHARACTER SET utf8mb4;
    IF NOT IS_ACCOUNT(CURRENT_USER(), v_name, v_host) THEN
        IF p_is_to_write THEN
            SELECT COUNT(*) INTO v_rights FROM fencelock_right PARTITION (lasting) AS held
            WHERE IS_ACCOUNT(held.account, v_name, v_host) AND (held.resource = p_resource OR (
                RIGHT(held.resource, 1) = '*'
                AND LEFT(p_resource, LENGTH(held.resource) - 1) = LEFT(held.resource, LENGTH(held.resource) - 1)))
            LOCK IN SHARE MODE;
        ELSE
            SELECT COUNT(*) INTO v_rights FROM fencelock_right PARTITION (lasting) AS held
            WHERE held.resource = p_resource AND IS_ACCOUNT(held.account, v_name, v_host);
        END IF;
        IF v_rights = 0 AND NOT p_is_to_write THEN
            SELECT COUNT(*) INTO v_rights FROM fencelock_right PARTITION (lasting) AS held
            WHERE RIGHT(held.resource, 1) = '*' AND IS_ACCOUNT(held.account, v_name, v_host)
                AND LEFT(p_resource, LENGTH(held.resource) - 1) = LEFT(held.resource, LENGTH(held.resource) - 1);
        END IF;
        IF v_rights = 0 THEN
            SET message = LEFT(CONCAT('FL014 account ', LEFT(USER(), 50), ' has no right to resource ',
                CONVERT(p_resource USING utf8mb4)), 128);
            SIGNAL SQLSTATE 'FL014' SET MESSAGE_TEXT = message;
        END IF;
    END IF;
END;

-- name: fencelock_parse
-- Split a sequencer: fl2.<key-id>.<source-id>.<history-id>.<mode>.<token>.<proof>.<lock, base64url>.<signature>. The
-- error does not show it, since it contains the proof.
CREATE PROCEDURE fencelock_parse(
    p_sequencer LONGTEXT CHARACTER SET utf8mb4, OUT p_lock VARBINARY(512), OUT p_token BIGINT, OUT p_proof VARBINARY(96),
    OUT p_source_id VARBINARY(64), OUT p_history_id VARBINARY(64))
READS SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE encoded VARCHAR(1024) CHARACTER SET ascii;
    DECLARE message VARCHAR(1024) CHARACTER SET utf8mb4;
    -- `$` matches before a line's end, too.
    IF p_sequencer IS NULL OR LENGTH(p_sequencer) > 1000 + 64 OR LOCATE(CHAR(10), p_sequencer)
        OR p_sequencer COLLATE utf8mb4_bin NOT REGEXP
        '^fl2([.][A-Za-z0-9_-]{1,64}){3}[.]x[.][1-9][0-9]{0,18}[.][0-9a-f]{32}([0-9a-f]{64})?[.][A-Za-z0-9_-]+[.]([A-Za-z0-9_-]{22})?$'
        OR CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(p_sequencer, '.', 6), '.', -1) AS UNSIGNED) > 9223372036854775807
        OR LENGTH(SUBSTRING_INDEX(SUBSTRING_INDEX(p_sequencer, '.', -2), '.', 1)) % 4 = 1
        OR (p_sequencer LIKE 'fl2.0.%') <> (p_sequencer LIKE '%.') THEN
        SET message = CONCAT('FL011 not a sequencer: ', CASE
            WHEN p_sequencer REGEXP '^fl[0-9]{1,3}[.]' AND p_sequencer NOT LIKE 'fl2.%'
                THEN CONCAT('it has the format ', SUBSTRING_INDEX(p_sequencer, '.', 1))
            WHEN p_sequencer LIKE 'fl2.%' AND (
                LENGTH(p_sequencer) - LENGTH(REPLACE(p_sequencer, '.', '')) < 8
                OR LENGTH(SUBSTRING_INDEX(p_sequencer, '.', -1)) BETWEEN 1 AND 21) THEN 'it was cut off'
            ELSE 'fl2.<key id>.<source id>.<history id>.<mode>.<token>.<proof>.<lock, base64url>.<signature>' END);
        SIGNAL SQLSTATE 'FL011' SET MESSAGE_TEXT = message;
    END IF;
    SET p_source_id = SUBSTRING_INDEX(SUBSTRING_INDEX(p_sequencer, '.', 3), '.', -1);
    SET p_history_id = SUBSTRING_INDEX(SUBSTRING_INDEX(p_sequencer, '.', 4), '.', -1);
    SET p_token = SUBSTRING_INDEX(SUBSTRING_INDEX(p_sequencer, '.', 6), '.', -1);
    SET p_proof = SUBSTRING_INDEX(SUBSTRING_INDEX(p_sequencer, '.', 7), '.', -1);
    CALL fencelock_unmask(p_proof);
    SET encoded = SUBSTRING_INDEX(SUBSTRING_INDEX(p_sequencer, '.', -2), '.', 1);
    SET p_lock = FROM_BASE64(REPLACE(REPLACE(RPAD(encoded, (LENGTH(encoded) + 3) DIV 4 * 4, '='), '-', '+'), '_', '/'));
    IF BINARY BASE64URL(p_lock) <> BINARY encoded THEN
        SIGNAL SQLSTATE 'FL011' SET MESSAGE_TEXT =
            'FL011 not a sequencer: its lock is not written as base64url writes it';
    END IF;
END;

-- name: fencelock_check_signature
-- Refuse a sequencer that is not signed with a key of this guard, if the mark requires that. The key is read each time: one
-- that was retired a moment ago, perhaps while this session was open, signs nothing; and one that was ever retired, by no
-- clock. Locking reads see past an old snapshot.
CREATE PROCEDURE fencelock_check_signature(p_resource VARBINARY(512), p_sequencer LONGTEXT CHARACTER SET utf8mb4)
READS SQL DATA SQL SECURITY DEFINER
checking: BEGIN
    DECLARE v_lock VARBINARY(512);
    DECLARE v_token BIGINT;
    DECLARE v_proof, v_source_id, v_history_id, v_key_id, v_found VARBINARY(64);
    DECLARE v_inner_pad, v_outer_pad BINARY(64);
    DECLARE v_retired_s BIGINT;
    DECLARE v_is_required BOOLEAN DEFAULT FALSE;
    DECLARE message, reason VARCHAR(1024) CHARACTER SET utf8mb4;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT requires_signature INTO v_is_required
    FROM fencelock_mark PARTITION (lasting) WHERE resource = p_resource LOCK IN SHARE MODE;
    IF NOT v_is_required THEN
        LEAVE checking;
    END IF;
    CALL fencelock_parse(p_sequencer, v_lock, v_token, v_proof, v_source_id, v_history_id);
    SET v_key_id = SUBSTRING_INDEX(SUBSTRING_INDEX(p_sequencer, '.', 2), '.', -1);
    SELECT key_id, inner_pad, outer_pad, retired_s INTO v_found, v_inner_pad, v_outer_pad, v_retired_s
    FROM fencelock_guard_key PARTITION (lasting) WHERE key_id = v_key_id LOCK IN SHARE MODE;
    IF v_key_id = '0' THEN
        SET reason = 'it has none';
    ELSEIF v_found IS NULL THEN
        SET reason = CONCAT('this guard does not know its key ', v_key_id);
    ELSEIF v_retired_s IS NOT NULL THEN
        SET reason = CONCAT('its key ', v_key_id, ' is retired');
    ELSEIF BINARY SIGNATURE(v_inner_pad, v_outer_pad, CONCAT_WS('.', 'fl2', v_key_id, v_source_id, v_history_id, 'x',
            v_token, ONE_WAY(v_proof), SUBSTRING_INDEX(SUBSTRING_INDEX(p_sequencer, '.', -2), '.', 1)))
        <> BINARY SUBSTRING_INDEX(p_sequencer, '.', -1) THEN
        SET reason = CONCAT('it is not the one that key ', v_key_id, ' gives');
    END IF;
    IF reason IS NOT NULL THEN
        SET message = LEFT(CONCAT('FL013 token ', v_token, ' needs a signature at resource ',
            LEFT(CONVERT(p_resource USING utf8mb4), 30), ', and ', reason), 128);
        SIGNAL SQLSTATE 'FL013' SET MESSAGE_TEXT = message;
    END IF;
END;

-- name: fencelock_check_plausible
-- Refuse a token that no source can have issued by now: a guard against accidents, such as a timestamp in nanoseconds. A
-- history that an operator begins starts above 2**30 tokens for each second since 2026; 2**50 more are allowed, and 2**50
-- above the mark whatever the clock says.
CREATE PROCEDURE fencelock_check_plausible(p_resource VARBINARY(512), p_token BIGINT)
READS SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE v_mark BIGINT DEFAULT 0;
    DECLARE v_ceiling BIGINT;
    DECLARE message VARCHAR(1024) CHARACTER SET utf8mb4;
    SELECT COALESCE(MAX(token), 0) INTO v_mark FROM fencelock_mark PARTITION (lasting) WHERE resource = p_resource;
    SET v_ceiling = LEAST(TIMESTAMPDIFF(SECOND, '2026-01-01', SYSDATE()), 8000000000) * 1073741824;
    SET v_ceiling = LEAST(GREATEST(v_ceiling, v_mark), 9223372036854775807 - 1125899906842624) + 1125899906842624;
    IF p_token > v_ceiling THEN
        SET message = LEFT(CONCAT('FL012 token ', p_token, ' above ceiling ', v_ceiling, ' of resource ',
            CONVERT(p_resource USING utf8mb4)), 128);
        SIGNAL SQLSTATE 'FL012' SET MESSAGE_TEXT = message;
    END IF;
END;

-- name: fencelock_show_triggers
-- Every table that was protected and not unprotected, with each existing trigger of fencelock, for any account: its
-- table, its name, whether it is intact, and its position among the table's triggers of its kind. Then, without a recorded
-- name, the triggers of which there is no record.
CREATE PROCEDURE fencelock_show_triggers(p_resource VARBINARY(512))
READS SQL DATA SQL SECURITY DEFINER
SELECT protection.id, protection.resource, protection.table_name, made.EVENT_OBJECT_TABLE, made.TRIGGER_NAME,
    LOCATE(CONCAT('x''', HEX(protection.resource), ''''), CONVERT(made.ACTION_STATEMENT USING utf8mb4)) > 0
        AND made.ACTION_TIMING = 'BEFORE'
        AND made.TRIGGER_NAME LIKE CONCAT('%\_', LOWER(made.EVENT_MANIPULATION), '\_%'),
    made.ACTION_ORDER
FROM fencelock_protection AS protection
LEFT JOIN information_schema.TRIGGERS AS made
    ON made.TRIGGER_SCHEMA = DATABASE() AND made.TRIGGER_NAME LIKE CONCAT('fencelock\_', protection.id, '\_%')
WHERE p_resource IS NULL OR protection.resource = p_resource
UNION ALL
SELECT orphan.id, orphan.resource, NULL, orphan.table_name, orphan.trigger_name, orphan.is_sound, orphan.position FROM (
    SELECT CAST(SUBSTRING_INDEX(SUBSTRING(made.TRIGGER_NAME, 11), '_', 1) AS UNSIGNED) AS id,
        UNHEX(SUBSTRING_INDEX(SUBSTRING_INDEX(
            CONVERT(made.ACTION_STATEMENT USING latin1), 'mark.resource = x''', -1), '''', 1)) AS resource,
        made.EVENT_OBJECT_TABLE AS table_name, made.TRIGGER_NAME AS trigger_name,
        made.ACTION_TIMING = 'BEFORE' AS is_sound, made.ACTION_ORDER AS position
    FROM information_schema.TRIGGERS AS made
    WHERE made.TRIGGER_SCHEMA = DATABASE()
        AND made.TRIGGER_NAME REGEXP '^fencelock_[0-9]+_(insert|update|delete)_(enforce|observe)$'
) AS orphan
WHERE (p_resource IS NULL OR orphan.resource = p_resource)
    AND orphan.id NOT IN (SELECT id FROM fencelock_protection)
ORDER BY 1, 5;
