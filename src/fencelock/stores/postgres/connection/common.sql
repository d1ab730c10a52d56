-- Functions that the source and the guard share. The part that is installed first creates them. All are pure; they are
-- declared STABLE, as convert_to() is, since otherwise the planner would call them in place of what they contain.

-- name: create_one_way
-- H(text): a claim's hash is its lease's proof, which sequencers show; a proof's hash is the digest, which tables keep.
-- The constant is 'fencelock claim' and a zero byte.
CREATE FUNCTION fencelock.one_way(p_secret text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS
$$
    SELECT pg_catalog.left(pg_catalog.encode(pg_catalog.sha256(
        pg_catalog.decode('66656e63656c6f636b20636c61696d00', 'hex') OPERATOR(pg_catalog.||)
        pg_catalog.convert_to(p_secret, 'UTF8')), 'hex'), 32)
$$;

-- name: create_base64url
-- Base64 with - and _, without padding and line ends.
CREATE FUNCTION fencelock.base64url(p_bytes bytea) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT pg_catalog.translate(pg_catalog.encode(p_bytes, 'base64'), '+/=' OPERATOR(pg_catalog.||) pg_catalog.chr(10), '-_') $$;

-- name: create_signature_of
-- The signature of a sequencer's text up to its last dot, with the digest in the proof's place: half of its HMAC-SHA256,
-- by a key XOR'ed with HMAC's two constants. The constant here is 'fencelock sequencer v2' and a zero byte.
CREATE FUNCTION fencelock.signature_of(p_inner_pad bytea, p_outer_pad bytea, p_text text) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS
$$
    SELECT fencelock.base64url(pg_catalog.substring(pg_catalog.sha256(
        p_outer_pad OPERATOR(pg_catalog.||) pg_catalog.sha256(
            p_inner_pad OPERATOR(pg_catalog.||)
            pg_catalog.decode('66656e63656c6f636b2073657175656e63657220763200', 'hex') OPERATOR(pg_catalog.||)
            pg_catalog.convert_to(p_text, 'UTF8'))), 1, 16))
$$;
