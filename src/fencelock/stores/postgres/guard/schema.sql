-- The guard's tables, in the database that it protects. The statements run in this order, in one transaction, after the
-- schema `fencelock` was created. Only the owner may read the secret and the keys, or write a row: all others use the
-- functions of functions_*.sql. No table has a claim or a proof, only digests, with which nobody can write (G12).

-- name: create_guard
-- The number of this schema; any other number is refused. Only the functions know the secret.
CREATE TABLE fencelock.guard (
    id     integer PRIMARY KEY CHECK (id = 1),
    schema integer NOT NULL,
    secret text    NOT NULL
);

-- name: create_guard_row
-- Records the number of the schema, and draws the secret.
INSERT INTO fencelock.guard (id, schema, secret) VALUES (1, 3, concat(gen_random_uuid(), gen_random_uuid()))
ON CONFLICT (id) DO NOTHING;

-- name: create_guard_audit
-- What operators did to resources, when, and why. Rows are only ever added.
CREATE TABLE fencelock.guard_audit (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    role       text        NOT NULL DEFAULT session_user,
    who        text        NOT NULL,
    action     text        NOT NULL,
    resource   text        NOT NULL COLLATE "C",
    from_token bigint      NOT NULL CHECK (from_token >= 0),
    to_token   bigint      NOT NULL CHECK (to_token >= 0),
    reason     text        NOT NULL CHECK (btrim(reason) <> '')
);

-- name: create_mark
-- The highest token that each resource has promised (NULL: none yet), and the lease that it belongs to (without a
-- digest: an operator's), and when it was written last. `audit_id` names the entry of an operator's last change.
-- `requires_signature`: a sequencer raises the mark only if it is signed with a key of `guard_key`.
CREATE TABLE fencelock.mark (
    resource   text    PRIMARY KEY COLLATE "C",
    lock       bytea   NOT NULL,
    token      bigint  CHECK (token >= 1),
    source_id  text,
    history_id text,
    digest     text,
    is_closed  boolean NOT NULL DEFAULT false,
    audit_id   bigint  REFERENCES fencelock.guard_audit (id),
    requires_signature boolean NOT NULL DEFAULT false,
    raised_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: create_floor
-- What purged marks leave behind: of each source the highest token that may be theirs. A resource without a mark is sealed only
-- above it (G15). 0: there is no floor. `audit_id` names the entry of an operator's last change.
CREATE TABLE fencelock.floor (
    source_id text   PRIMARY KEY,
    token     bigint NOT NULL CHECK (token >= 0),
    audit_id  bigint REFERENCES fencelock.guard_audit (id)
);

-- name: create_guard_right
-- Which roles, with their members, may seal, present and close a resource; one that ends in * stands for all with that
-- prefix. A new guard has no row: only the schema's owner may (G12).
CREATE TABLE fencelock.guard_right (
    resource text NOT NULL COLLATE "C",
    role     text NOT NULL,
    PRIMARY KEY (resource, role)
);

-- name: create_guard_right_prefix
-- Finds the rights to prefixes without reading the others.
CREATE INDEX guard_right_prefix ON fencelock.guard_right (resource) WHERE right(resource, 1) = '*';

-- name: create_guard_key
-- The keys with which this guard checks signatures, for its owner alone: each XOR'ed with HMAC's two constants, and when it
-- was retired, in seconds since 1970: from then on it is not accepted, whatever the clock says.
CREATE TABLE fencelock.guard_key (
    key_id    text   PRIMARY KEY,
    inner_pad bytea  NOT NULL CHECK (octet_length(inner_pad) = 64),
    outer_pad bytea  NOT NULL CHECK (octet_length(outer_pad) = 64),
    retired_s bigint
);

-- name: create_effect
-- What is done once per key, in a guarded block (`once=`) or outside of the database (`fencelock.dispatch`): who began it,
-- with which token, its result (NULL: nobody has recorded one), and the digest of the request.
CREATE TABLE fencelock.effect (
    resource text        NOT NULL COLLATE "C",
    key      text        NOT NULL COLLATE "C" CHECK (octet_length(key) BETWEEN 1 AND 512),
    token    bigint      NOT NULL,
    holder   text        NOT NULL,
    began_at timestamptz NOT NULL,
    result   text        CHECK (octet_length(result) <= 4096),
    request_digest text  NOT NULL DEFAULT '' CHECK (octet_length(request_digest) <= 64),
    PRIMARY KEY (resource, key)
);

-- name: create_sequencer
-- A sequencer's parts. `digest` is H(proof); `signed_text` is what the signature is over.
DO $$
BEGIN
    CREATE TYPE fencelock.sequencer AS (
        lock        bytea,
        token       bigint,
        source_id   text,
        history_id  text,
        proof       text,
        digest      text,
        key_id      text,
        signature   text,
        signed_text text
    );
EXCEPTION WHEN duplicate_object THEN
END
$$;

-- name: create_protection
-- Every table that was protected and not unprotected, whether its triggers still exist or not; `name` and `mode` are those
-- at that time. The resource and the mode in force are only in the triggers.
CREATE TABLE fencelock.protection (
    relation regclass PRIMARY KEY,  -- a dump contains it as a name
    name     text     NOT NULL,
    resource text     NOT NULL COLLATE "C",
    mode     text     NOT NULL CHECK (mode IN ('enforce', 'observe'))
);

-- name: create_protection_of
-- Finds the tables of a resource for each of its blocks.
CREATE INDEX protection_of ON fencelock.protection (resource);

-- name: forget_records
-- Records that outlive the marks are void: their tables count as orphaned, and protecting one again raises its mark.
DELETE FROM fencelock.protection WHERE NOT EXISTS (SELECT FROM fencelock.mark);

-- name: create_observation
-- What observe mode let pass: a row for each write, so that writers neither wait for each other nor conflict; now and
-- then many rows are merged into one. Without a table: a lease, not a write, would have been refused.
CREATE TABLE fencelock.observation (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    resource         text        NOT NULL COLLATE "C",
    table_name       text        NOT NULL,
    kind             text        NOT NULL,
    role             text        NOT NULL,
    application_name text        NOT NULL,
    address          inet,
    times            bigint      NOT NULL,
    first_at         timestamptz NOT NULL,
    last_at          timestamptz NOT NULL
);

-- name: create_keep_mark
-- Let a mark change as a lease may change it (raised under the same lock and source, or closed), and otherwise only by a
-- new audit entry for exactly that change. It is deleted only under a floor, and gets a source only above the source's floor.
CREATE FUNCTION fencelock.keep_mark() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    is_kept boolean;
BEGIN
    IF TG_OP <> 'UPDATE' THEN
        IF TG_OP = 'DELETE' AND fencelock.is_purgeable(OLD.resource) AND EXISTS (
            SELECT FROM fencelock.floor AS floor
            WHERE floor.source_id = OLD.source_id AND floor.token >= coalesce(OLD.token, 0)) THEN
            RETURN OLD;
        END IF;
        RAISE 'a mark is not deleted without a floor in its place, because every old token would be admitted again'
            USING ERRCODE = 'FL009', HINT = 'To stop enforcing it, run fencelock unprotect; to forget old ones, fencelock purge '
                '--marks.';
    END IF;
    IF NEW.resource <> OLD.resource THEN
        is_kept := false;
    ELSIF NEW.audit_id IS DISTINCT FROM OLD.audit_id THEN
        is_kept := NEW.audit_id > coalesce(OLD.audit_id, 0) AND EXISTS (
            SELECT FROM fencelock.guard_audit AS entry
            WHERE entry.id = NEW.audit_id AND entry.resource = OLD.resource
                AND entry.from_token = coalesce(OLD.token, 0) AND entry.to_token = coalesce(NEW.token, 0)
                AND (entry.action = 'rebind' OR NEW.lock = OLD.lock));
    ELSIF NEW.lock <> OLD.lock OR (OLD.source_id IS NOT NULL AND NEW.source_id IS DISTINCT FROM OLD.source_id) THEN
        is_kept := false;
    ELSIF NEW.token IS NOT DISTINCT FROM OLD.token THEN
        is_kept := (NEW.digest, NEW.source_id, NEW.history_id) IS NOT DISTINCT FROM (OLD.digest, OLD.source_id, OLD.history_id)
            AND NEW.is_closed >= OLD.is_closed;
    ELSE
        is_kept := NEW.token > coalesce(OLD.token, 0);
    END IF;
    IF is_kept IS NOT TRUE THEN
        RAISE 'mark % of resource %: a mark only goes up, and stays with its lock and source', OLD.token, OLD.resource
            USING ERRCODE = 'FL009', HINT = 'An operator may lower or move it, with a reason: fencelock marks, fencelock rebind.';
    END IF;
    IF NEW.source_id IS DISTINCT FROM OLD.source_id THEN
        PERFORM fencelock.check_floor(NEW.resource, NEW.source_id, coalesce(NEW.token, 0), NEW.digest);
    END IF;
    RETURN NEW;
END
$$;

-- name: create_check_name
-- Refuse a name that a client could not read. (Converting text to its own encoding makes the server check it.)
CREATE FUNCTION fencelock.check_name(p_what text, p_name bytea) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    IF coalesce(octet_length(convert(p_name, 'UTF8', 'UTF8')), 0) NOT BETWEEN 1 AND 512 THEN
        RAISE 'the name of a % must have 1 to 512 bytes of UTF-8, and this one has %', p_what, coalesce(octet_length(p_name), 0)
            USING ERRCODE = '22023';
    END IF;
END
$$;

-- name: create_check_new_mark
-- Refuse a new mark whose names cannot be read, or whose token is not above the floor of its source.
CREATE FUNCTION fencelock.check_new_mark() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    PERFORM fencelock.check_name('resource', convert_to(NEW.resource, 'UTF8'));
    PERFORM fencelock.check_name('lock', NEW.lock);
    IF NEW.source_id IS NOT NULL THEN
        PERFORM fencelock.check_floor(NEW.resource, NEW.source_id, coalesce(NEW.token, 0), NEW.digest);
    END IF;
    RETURN NEW;
END
$$;

-- name: create_check_new_mark_row
-- Whoever makes it.
CREATE TRIGGER check_new_mark BEFORE INSERT ON fencelock.mark
FOR EACH ROW EXECUTE FUNCTION fencelock.check_new_mark();

-- name: create_keep_mark_row
-- Protects marks even from mistakes of their owner.
CREATE TRIGGER keep_mark BEFORE UPDATE OR DELETE ON fencelock.mark
FOR EACH ROW EXECUTE FUNCTION fencelock.keep_mark();

-- name: create_keep_marks
-- TRUNCATE is refused as well.
CREATE TRIGGER keep_marks BEFORE TRUNCATE ON fencelock.mark
FOR EACH STATEMENT EXECUTE FUNCTION fencelock.keep_mark();

-- name: create_keep_floor
-- Let a floor rise, and fall only by a new audit entry for exactly that, whose reason names its source.
CREATE FUNCTION fencelock.keep_floor() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    IF TG_OP <> 'UPDATE' THEN
        RAISE 'a floor is never deleted, because the tokens of purged marks would be admitted again'
            USING ERRCODE = 'FL009', HINT = 'An operator may lower it, with a reason: fencelock marks.';
    END IF;
    IF NEW.source_id <> OLD.source_id OR NEW.token < OLD.token AND (NEW.audit_id > coalesce(OLD.audit_id, 0) AND EXISTS (
        SELECT FROM fencelock.guard_audit AS entry
        WHERE entry.id = NEW.audit_id AND entry.action = 'floor' AND entry.resource = ''
            AND strpos(entry.reason, '(source ' || OLD.source_id || ')') > 0
            AND entry.from_token = OLD.token AND entry.to_token = NEW.token)) IS NOT TRUE THEN
        RAISE 'floor % of source %: a floor only goes up, and stays with its source', OLD.token, OLD.source_id
            USING ERRCODE = 'FL009', HINT = 'An operator may lower it, with a reason: fencelock marks.';
    END IF;
    RETURN NEW;
END
$$;

-- name: create_keep_floor_row
-- Protects floors even from mistakes of their owner.
CREATE TRIGGER keep_floor BEFORE UPDATE OR DELETE ON fencelock.floor
FOR EACH ROW EXECUTE FUNCTION fencelock.keep_floor();

-- name: create_keep_floors
-- TRUNCATE is refused as well.
CREATE TRIGGER keep_floors BEFORE TRUNCATE ON fencelock.floor
FOR EACH STATEMENT EXECUTE FUNCTION fencelock.keep_floor();

-- name: create_keep_audit
-- Audit entries are only ever added.
CREATE FUNCTION fencelock.keep_audit() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$
BEGIN
    RAISE 'audit entries are only ever added' USING ERRCODE = 'FL009';
END
$$;

-- name: create_keep_audit_rows
-- No entry is changed or deleted.
CREATE TRIGGER keep_audit BEFORE UPDATE OR DELETE OR TRUNCATE ON fencelock.guard_audit
FOR EACH STATEMENT EXECUTE FUNCTION fencelock.keep_audit();

-- name: revoke_tables
-- Whatever the database's default privileges are, no other role reads a secret or writes a row.
REVOKE ALL ON fencelock.guard, fencelock.guard_audit, fencelock.mark, fencelock.protection, fencelock.observation,
    fencelock.guard_right, fencelock.guard_key, fencelock.effect, fencelock.floor
FROM PUBLIC;

-- name: grant_tables
-- Which tables are protected is no secret, and a client has to read the number of the schema.
GRANT SELECT (id, schema) ON fencelock.guard TO PUBLIC;

-- name: grant_protection
-- Nor is it secret which tables were protected, who has rights, and what the floors are.
GRANT SELECT ON fencelock.protection, fencelock.guard_right, fencelock.floor TO PUBLIC;
