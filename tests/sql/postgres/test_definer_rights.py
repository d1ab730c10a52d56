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
from tests.support.guards import sequencer

TRAPS = """
    CREATE ROLE {role} LOGIN;
    GRANT USAGE ON SCHEMA fencelock TO {role};
    CREATE SCHEMA trap AUTHORIZATION {role};
    SET ROLE {role};
    CREATE FUNCTION trap.spring(anyelement) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN RAISE NOTICE 'sprung as %', current_user; RETURN true; END $$;
    CREATE FUNCTION trap.equal(pg_catalog.text, pg_catalog.text) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN RAISE NOTICE 'sprung as %', current_user; RETURN true; END $$;
    CREATE OPERATOR trap.= (leftarg = pg_catalog.text, rightarg = pg_catalog.text, function = trap.equal);
    CREATE FUNCTION trap.lower(pg_catalog.text) RETURNS pg_catalog.text LANGUAGE plpgsql AS
    $$ BEGIN RAISE NOTICE 'sprung as %', current_user; RETURN 'x'; END $$;
    CREATE DOMAIN trap.text AS pg_catalog.text CHECK (trap.spring(VALUE));
    CREATE DOMAIN trap.boolean AS pg_catalog.bool CHECK (trap.spring(VALUE));
    CREATE DOMAIN trap.int8 AS pg_catalog.int8 CHECK (trap.spring(VALUE));
    RESET ROLE;
"""
_CALLS = {
    "acquire": "SELECT fencelock.acquire('a', 'claim', 'me', 1000, 1, 'wait', 'told', 1000, 10)",
    "acquire again": "SELECT fencelock.acquire('a', 'other', 'me', 1000, 1, 'wait', 'told', 1000, 10)",
    "renew": "SELECT fencelock.renew(ARRAY['a'::bytea], ARRAY['claim'])",
    "release": "SELECT fencelock.release('a', 'claim', 1)",
    "inspect": "SELECT fencelock.inspect('a', NULL, 1)",
    "describe": "SELECT fencelock.describe()",
    "reserve": "SELECT fencelock.reserve('me')",
    "present": f"SELECT fencelock.present('{sequencer(5)}', 'reports')",
    "offer": "SELECT fencelock.offer(ARRAY['reports'], 'reports-lock'::bytea, 5, 'proof', 'source', 'history', 1000)",
    "raise": f"SELECT fencelock.raise_marks('{sequencer(5)}', 'reports')",
    "close": "SELECT fencelock.close_marks('claim', 'reports')",
    "check": "SELECT fencelock.check_proof('a', 'history', 'proof')",
    "seal": f"SELECT fencelock.seal('{sequencer(5)}', 'reports')",
    "confirm": "SELECT fencelock.confirm('reports')",
    "withdraw": "SELECT fencelock.withdraw('reports')",
    "write": "INSERT INTO public.reports VALUES (7, 'x')",
    "observed write": "INSERT INTO public.seen VALUES (7)",
}


@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS.keys())
def test_no_trap_of_the_callers_is_sprung_with_the_owners_rights(
    guarded: Guarded, database: Database, call: str
) -> None:
    role = f"caller_of_{database.name}"
    PostgresSource(database.url()).install()
    with database.connect() as owner:
        owner.execute("CREATE TABLE seen (id int)")
        guarded.guard().protect("seen", mode="observe")
        owner.execute(TRAPS.format(role=role).encode())
        guarded.guard().grant(role, resource="r*")
        owner.execute(f"GRANT INSERT ON reports, seen TO {role}".encode())
    sprung: list[str] = []
    with database.connect(user=role) as native:
        native.add_notice_handler(lambda notice: sprung.append(str(notice.message_primary)))
        native.execute("SELECT trap.spring('a'::trap.text)")
        assert sprung, "the trap itself works"
        sprung.clear()
        native.execute("SET search_path = trap, pg_catalog, public")
        # Some are refused, by the guard's own words; what is asked here is who refused.
        with suppress(psycopg.Error):
            native.execute(call.encode())
    with database.connect() as owner:
        owner.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())
    assert [notice for notice in sprung if not notice.endswith(role)] == []


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
