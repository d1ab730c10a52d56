"""Functions that run with their owner's rights run no code of their caller, for any search path; nor does their
installer run code of another role.
"""

from contextlib import suppress
from typing import Any

import psycopg
import pytest

from fencelock.model import digest_of_claim
from fencelock.stores.postgres.connection import install
from fencelock.stores.postgres.connection.client import open_connection
from fencelock.stores.postgres.source.store import PostgresSource
from fencelock.stores.registry import guard_store
from tests.sql.guarded import Guarded
from tests.sql.postgres.fix_postgres import Database
from tests.support.guards import LOCK, sequencer

TYPES = (
    *("bool", "bytea", "char", "inet", "int2", "int4", "int8", "interval", "json", "jsonb", "name", "numeric", "oid"),
    *("regclass", "regrole", "text", "timestamptz", "varchar", "xid", "xid8", "_bytea", "_int2", "_int4", "_text"),
)
"""Those of PostgreSQL's own that fencelock's functions may meet."""
OPERATORS = """
    SELECT own.oid, own.oprname, pg_catalog.format('$1 OPERATOR(pg_catalog.%%s) $2', own.oprname),
        ARRAY[one.typname::text, other.typname], made.typname
    FROM pg_operator AS own JOIN pg_type AS one ON one.oid = own.oprleft
    JOIN pg_type AS other ON other.oid = own.oprright JOIN pg_type AS made ON made.oid = own.oprresult
    WHERE ARRAY[one.typname::text, other.typname, made.typname] <@ %s
"""
FUNCTIONS = """
    SELECT own.proname, pg_catalog.format('pg_catalog.%%I(%%s)', own.proname, (
            SELECT string_agg('$' || number, ', ') FROM generate_series(1, own.pronargs) AS number)),
        wanted.types, made.typname
    FROM pg_proc AS own JOIN pg_type AS made ON made.oid = own.prorettype CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(type.typname::text ORDER BY number), '{}') AS types
        FROM unnest(own.proargtypes) WITH ORDINALITY AS wanted (oid, number)
        JOIN pg_type AS type ON type.oid = wanted.oid
    ) AS wanted
    WHERE own.pronamespace = 'pg_catalog'::regnamespace AND own.prokind = 'f' AND NOT own.proretset
        AND wanted.types || made.typname::text <@ %s AND own.proname IN (
            SELECT (regexp_matches(prosrc, '([a-z0-9_]+)[(]', 'g'))[1] FROM pg_proc
            WHERE pronamespace = 'fencelock'::regnamespace)
"""
"""What is called in the text of a function of fencelock's."""
MAKE_ROLE = """
    CREATE ROLE {role} LOGIN;
    GRANT USAGE ON SCHEMA fencelock TO {role};
    CREATE SCHEMA trap AUTHORIZATION {role};
    SET ROLE {role};
    CREATE FUNCTION trap.spring(anyelement) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN RAISE NOTICE 'sprung as %', current_user; RETURN true; END $$;
    {traps}
    RESET ROLE;
"""


def sprung_by(name: str, types: list[str], result: str, expression: str) -> str:
    """Return what makes a function that tells as whom it runs, and does the same as PostgreSQL's own."""
    parameters = ", ".join(f'pg_catalog."{type_}"' for type_ in types)
    return f"""
        CREATE FUNCTION trap."{name}"({parameters}) RETURNS pg_catalog."{result}" LANGUAGE plpgsql AS
        $$ BEGIN RAISE NOTICE 'sprung as %', current_user; RETURN {expression}; END $$;
    """


def traps_for(database: Database) -> str:
    """Return what makes, in another schema, an operator for each of PostgreSQL's own, a function, and a type."""
    made = []
    for oid, name, expression, [left, right], result in database.rows(OPERATORS, list(TYPES)):
        sides = f'leftarg = pg_catalog."{left}", rightarg = pg_catalog."{right}"'
        made.append(sprung_by(f"operator_{oid}", [left, right], result, expression))
        made.append(f"CREATE OPERATOR trap.{name} ({sides}, function = trap.operator_{oid});")
    made += [
        sprung_by(name, types, result, expression)
        for name, expression, types, result in database.rows(FUNCTIONS, list(TYPES))
    ]
    made += [
        f'CREATE DOMAIN trap."{name}" AS pg_catalog."{name}" CHECK (trap.spring(VALUE));'
        for name in TYPES
        if not name.startswith("_")
    ]
    return "".join(made)


PROOFS = ("SELECT 'a'::trap.text", "SELECT 'a' || 'b'::pg_catalog.text", "SELECT lower('A')")
PRESENT = f"SELECT fencelock.present('{sequencer(5)}', 'reports')"
_CALLS = {
    "acquire": "SELECT fencelock.acquire('a', 'claim', 'me', 1000, 1, 'wait', 'told', 1000, 10)",
    "acquire again": "SELECT fencelock.acquire('a', 'other', 'me', 1000, 1, 'wait', 'told', 1000, 10)",
    "renew": "SELECT fencelock.renew('{a}', '{claim}')",
    "release": "SELECT fencelock.release('a', 'claim', 1)",
    "inspect": "SELECT fencelock.inspect('a', NULL, 1)",
    "describe": "SELECT fencelock.describe()",
    "reserve": "SELECT fencelock.reserve('me')",
    "present": PRESENT,
    "offer": f"SELECT fencelock.offer('{{reports}}', '{LOCK}', 5, '{sequencer(5).proof}', 'source', 'history', 1000)",
    "raise": f"SELECT fencelock.raise_marks('{sequencer(5)}', 'reports')",
    "close": "SELECT fencelock.close_marks('claim', 'reports')",
    "check": "SELECT fencelock.check_proof('a', 'history', 'proof')",
    "seal": f"SELECT fencelock.seal('{sequencer(5)}', 'reports')",
    "confirm": "SELECT fencelock.confirm('reports')",
    "withdraw": "SELECT fencelock.withdraw('reports')",
    "write": "INSERT INTO public.reports VALUES (7, 'x')",
    "presented write": f"{PRESENT}; INSERT INTO public.reports VALUES (8, 'x')",
    "effect": f"{PRESENT}; SELECT fencelock.begin_effect('reports', 'key', 'me', '')",
    "observed write": "INSERT INTO public.seen VALUES (7)",
}


def test_no_trap_of_the_callers_is_sprung_with_the_owners_rights(guarded: Guarded, database: Database) -> None:
    role = f"caller_of_{database.name}"
    PostgresSource(database.url()).install()
    sprung: list[str] = []
    with database.connect() as owner:
        owner.execute("CREATE TABLE seen (id int)")
        guarded.guard().protect("seen", mode="observe")
        owner.execute(MAKE_ROLE.format(role=role, traps=traps_for(database)).encode())
        guarded.guard().grant(role, resource="r*")
        owner.execute(f"GRANT INSERT ON reports, seen TO {role}".encode())
        guarded.sealed(5)
        for call in (*PROOFS, *_CALLS.values()):
            # A session of its own: what one has compiled, it keeps for any search_path.
            with database.connect(user=role) as native:
                native.add_notice_handler(lambda notice: sprung.append(str(notice.message_primary)))
                native.execute("SET search_path = trap, pg_catalog, public")
                # Some are refused, by the guard's own words; what is asked here is who refused.
                with suppress(psycopg.Error):
                    native.execute(call.encode())
            assert sprung or call not in PROOFS, "the trap itself works"
            assert [notice for notice in sprung if not notice.endswith(role)] == [], call
            sprung.clear()
        owner.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())


TEMPORARY_TRAP = """
    CREATE FUNCTION pg_temp.spring(pg_catalog.text) RETURNS pg_catalog.bool LANGUAGE plpgsql AS
    $$ BEGIN RAISE NOTICE 'sprung as %', current_user; RETURN true; END $$;
    CREATE DOMAIN pg_temp.checked AS pg_catalog.text CHECK (pg_temp.spring(VALUE));
    CREATE TYPE pg_temp.record AS (name pg_temp.checked, relation pg_catalog.regclass, parts pg_catalog.text[]);
"""
"""A type that PostgreSQL finds before its own `record`, whose assignment runs its maker's function."""


def test_no_temporary_type_of_the_callers_is_taken_for_a_record(guarded: Guarded, role: str) -> None:
    """The trap needs a mark that the caller may present, and a protected table: then its tables are looked up."""
    guarded.guard().grant(role)
    guarded.sealed(5)
    own, sprung = sequencer(5), list[str]()
    with guarded.database.connect(user=role) as native:
        native.add_notice_handler(lambda notice: sprung.append(str(notice.message_primary)))
        native.execute(TEMPORARY_TRAP)
        native.execute("DO $$ DECLARE known record; BEGIN SELECT 'reports', NULL, NULL INTO known; END $$")
        assert sprung == [f"sprung as {role}"], "the trap itself works"
        sprung.clear()
        offered = native.execute(
            "SELECT fencelock.offer(ARRAY['reports'], %s::bytea, 5, %s, %s, %s, NULL)",
            (own.lock.encode(), own.proof, own.source_id, own.history_id),
        ).fetchone()
    assert (offered, sprung) == (([],), [])


PUBLIC_TRAPS = """
    CREATE FUNCTION public.joined(pg_catalog.text, pg_catalog.regclass) RETURNS pg_catalog.text LANGUAGE plpgsql AS
    $$ BEGIN RAISE NOTICE 'sprung'; RETURN pg_catalog.concat($1, $2); END $$;
    CREATE OPERATOR public.|| (leftarg = pg_catalog.text, rightarg = pg_catalog.regclass, function = public.joined);
    CREATE FUNCTION public.equal(pg_catalog.oid, pg_catalog.regnamespace) RETURNS pg_catalog.bool LANGUAGE plpgsql AS
    $$ BEGIN RAISE NOTICE 'sprung'; RETURN pg_catalog.oideq($1, $2); END $$;
    CREATE OPERATOR public.= (leftarg = pg_catalog.oid, rightarg = pg_catalog.regnamespace, function = public.equal);
"""
"""Better matches than PostgreSQL's own, which anybody may leave where everybody may create, as in `public` until 14."""


def test_no_trap_is_sprung_by_the_installer(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    sprung: list[str] = []

    def listening(*terms: Any) -> Any:
        connection = open_connection(*terms)
        connection.add_notice_handler(lambda notice: sprung.append(str(notice.message_primary)))
        return connection

    monkeypatch.setattr(install, "open_connection", listening)
    with database.connect() as native:
        native.add_notice_handler(lambda notice: sprung.append(str(notice.message_primary)))
        native.execute(PUBLIC_TRAPS)
        native.execute("SELECT text 'a' || regclass 'pg_class'")
        assert sprung, "the trap itself works"
        sprung.clear()
    PostgresSource(database.url()).install()
    guard_store(database.url()).install()
    assert "sprung" not in sprung


def test_no_plan_that_a_session_may_see_holds_anothers_claim(database: Database) -> None:
    role = f"looker_of_{database.name}"
    PostgresSource(database.url()).install()
    database.rows(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA fencelock TO {role}")
    acquire = "SELECT fencelock.acquire('a', %s, 'me', 60000, fencelock.now_us(), 'wait', 'told', 1000, 10)"
    seen: list[str] = []
    with database.connect() as owner, database.connect(user=role) as native:
        native.add_notice_handler(lambda notice: seen.append(f"{notice.message_primary} {notice.message_detail}"))
        native.execute("SET client_min_messages = log; SET debug_print_plan = on")
        own, another = digest_of_claim("own-claim"), digest_of_claim("claim-of-another")
        native.execute(acquire, (own,))
        owner.execute(acquire, (another,))
        native.execute("SELECT fencelock.release('a', 'own-claim', 1)")
        assert owner.execute(acquire, (another,)).fetchone()
        native.execute(acquire, (digest_of_claim("own-second-claim"),))
        owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert seen
    # A plan shows the bytes of a constant as numbers, and breaks its lines within them.
    shown = "".join("".join(seen).split())
    assert "".join(map(str, own.encode())) in shown
    assert "".join(map(str, another.encode())) not in shown
