"""G12: who reads what a worker may read of PostgreSQL finds nothing with which it writes or releases for another."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

import fencelock
from fencelock import Sequencer
from fencelock.model import digest_of_claim, one_way
from tests.sql.clients import SqlClient
from tests.sql.guarded import Guarded, write
from tests.support.guards import LOCK, RESOURCE

pytestmark = pytest.mark.server_wide
HEXADECIMAL = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


@pytest.fixture
def worker(guarded: Guarded) -> Iterator[str]:
    """A role with the rights of every worker: it may take locks, seal the resource and write the table."""
    role, database = f"worker_{guarded.database.name}", guarded.database
    fencelock.connect(database.url()).install()
    database.rows(
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA fencelock TO {role}; GRANT ALL ON reports TO {role}"
    )
    guarded.guard().grant(role)
    yield role
    database.rows(f"DROP OWNED BY {role}; DROP ROLE {role}")


def everything_shown(native: psycopg.Connection[Any]) -> str:
    """Return all that this session may read: fencelock's tables, views and functions, the activity, settings, locks."""
    tables = native.execute(
        "SELECT format('fencelock.%I', relname) FROM pg_class WHERE relnamespace = 'fencelock'::regnamespace"
        " AND relkind IN ('r', 'v') AND has_any_column_privilege(oid, 'SELECT') ORDER BY 1"
    ).fetchall()
    statements = [f"SELECT * FROM {table}" for (table,) in tables if table != "fencelock.guard"]
    statements += [
        "SELECT id, schema FROM fencelock.guard",
        "SELECT * FROM pg_stat_activity",
        "SELECT * FROM pg_prepared_statements",
        "SELECT * FROM pg_settings",
        "SELECT * FROM pg_locks",
        "SELECT * FROM fencelock.show_marks(NULL)",
        "SELECT * FROM fencelock.read_marks(ARRAY['reports'], NULL, 'shared', NULL)",
        "SELECT * FROM fencelock.show_observations(NULL)",
        "SELECT * FROM fencelock.inspect(NULL, '', 100)",
        "SELECT * FROM fencelock.describe()",
    ]
    return "\n".join(str(native.execute(one.encode()).fetchall()) for one in statements)


def refused(native: psycopg.Connection[Any], call: str, *parameters: object) -> str | None:
    with pytest.raises(psycopg.Error) as caught:
        native.execute(f"SELECT fencelock.{call}".encode(), parameters)
    return caught.value.sqlstate


def test_g12_a_frozen_holder_finds_nothing_that_lets_it_write_or_release(guarded: Guarded, worker: str) -> None:
    """It wakes while its successor is in a block, and another worker waits for the lock."""
    database = guarded.database
    url = database.url(user=worker)
    source, guard = fencelock.connect(url), guarded.guard(user=worker)
    waiting = SqlClient(url)
    with database.connect(user=worker) as frozen, source.lock(LOCK).acquire() as lease:
        waiting.acquire(LOCK, "0" * 32, may_wait=True)
        with guard.transaction(lease) as native:
            write(native, "by the successor")
            shown = everything_shown(frozen)
            own: Sequencer = lease.sequencer
            assert lease.claim not in shown
            assert own.proof not in shown
            assert digest_of_claim(lease.claim) in shown, "the mark is read"
            for found in set(HEXADECIMAL.findall(shown)) | {own.digest}:
                assert found not in (own.proof, lease.claim, one_way("0" * 32))
                stolen = str(replace(own, proof=found, key_id="0", signature=""))
                assert refused(frozen, "present(%s, 'reports')", stolen) == "FL003"
                frozen.execute("SELECT fencelock.release(%s, %s, 1)", (LOCK.encode(), found))
        for found in HEXADECIMAL.findall(shown):
            frozen.execute("SELECT fencelock.close_marks(%s, 'reports')", (found,))
        # The proof, which others are shown, neither closes nor releases.
        frozen.execute("SELECT fencelock.close_marks(%s, 'reports')", (own.proof,))
        assert frozen.execute(
            "SELECT was_held FROM fencelock.release(%s, %s, 1)", (LOCK.encode(), own.proof)
        ).fetchone() == (False,)
        with guard.transaction(lease) as native:
            write(native, "still the holder")
        assert source.info(LOCK).is_held
    waiting.close()
    source.close()
    assert guarded.value() == "still the holder"


def test_g12_a_dump_of_the_database_has_no_claim_and_no_proof(guarded: Guarded, worker: str) -> None:
    """What the owner's tables keep: with a lease held, one ended, one broken, and a waiter."""
    database = guarded.database
    client = SqlClient(database.url())
    claims = [f"{number:032x}" for number in range(1, 4)]
    client.acquire("lock", claims[0])
    client.acquire("lock", claims[1], may_wait=True)
    client.acquire("other", claims[2])
    client.release("other", claims[2])
    source = fencelock.connect(database.url())
    with source.lock(LOCK).acquire() as lease:
        guarded.guard().seal(lease)
        claims.append(lease.claim)
        broken = source.break_lock("lock", reason="a test")
        tables = database.rows(
            "SELECT relname FROM pg_class WHERE relnamespace = 'fencelock'::regnamespace AND relkind = 'r'"
        )
        kept = "\n".join(str(database.rows(f"SELECT * FROM fencelock.{table}")) for (table,) in tables)
    for claim in claims:
        assert claim not in kept
        assert one_way(claim) not in kept
        assert digest_of_claim(claim) in kept
    assert broken.sequencer.proof not in kept
    assert RESOURCE in kept
    client.close()
    source.close()


def test_check_tells_the_holder_of_a_proof_and_no_other(guarded: Guarded, worker: str) -> None:
    source = fencelock.connect(guarded.database.url(user=worker))
    with source.lock(LOCK, ttl=20.0).acquire() as lease:
        seen = source.check(lease.sequencer)
        assert 0 < seen.remaining <= 20
        for other in (
            replace(lease.sequencer, proof=lease.sequencer.digest),
            replace(lease.sequencer, proof=lease.claim),
            replace(lease.sequencer, history_id="another"),
            replace(lease.sequencer, lock="another"),
        ):
            assert source.check(other).remaining == 0
    assert source.check(lease.sequencer).remaining == 0
    source.close()
