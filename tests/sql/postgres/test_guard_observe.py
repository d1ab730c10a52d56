"""G6, observe mode on PostgreSQL: who, what and how often, without a writer that waits for another."""

import psycopg
import pytest

import fencelock
from fencelock import GuardError, StaleTokenError, inspect_resources
from tests.sql.guarded import Guarded
from tests.sql.postgres.dialect import REFUSED
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource

pytestmark = pytest.mark.server_wide

LEVELS = ["read committed", "repeatable read", "serializable"]


@pytest.fixture
def observed(guarded: Guarded) -> Guarded:
    guarded.guard().protect("reports", mode="observe")
    return guarded


def counted(observed: Guarded) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in inspect_resources(observed.database.url()).observations:
        found[one.kind] = found.get(one.kind, 0) + one.times
    return found


def test_g6_every_kind_of_write_is_counted_and_let_through(observed: Guarded) -> None:
    with observed.database.connect() as native:
        native.execute("INSERT INTO reports VALUES (2, 'a'), (3, 'b')")
        native.execute("UPDATE reports SET value = 'c'")
        native.execute("DELETE FROM reports WHERE id = 3")
        native.execute("TRUNCATE reports")
    assert counted(observed) == {"insert": 1, "update": 1, "delete": 1, "truncate": 1}


def test_g6_a_holders_writes_are_not_counted(observed: Guarded) -> None:
    with observed.guard().transaction(HandmadeLease(5)) as native:
        native.execute("UPDATE reports SET value = 'held'")
    assert (observed.value(), counted(observed)) == ("held", {})


def test_g6_it_is_recorded_who_it_was(observed: Guarded) -> None:
    with observed.database.connect() as native:
        native.execute("DO $$ BEGIN CREATE ROLE clerk LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        native.execute("GRANT ALL ON reports TO clerk; GRANT USAGE ON SCHEMA fencelock TO clerk")
    with observed.database.connect(user="clerk", application_name="a cron job") as native:
        for _ in range(3):
            native.execute("UPDATE reports SET value = 'x'; SELECT pg_sleep(0.002)")
    [one] = inspect_resources(observed.database.url()).observations
    assert (one.table, one.kind, one.times) == ("public.reports", "update", 3)
    assert (one.role, one.application, one.address) == ("clerk", "a cron job", "127.0.0.1")
    assert one.first_at < one.last_at
    [shown_to_others] = inspect_resources(observed.database.url(user="clerk")).observations
    assert (shown_to_others.times, shown_to_others.role, shown_to_others.address) == (3, None, None)


@pytest.mark.parametrize("level", LEVELS)
def test_g6_observed_writers_neither_wait_nor_conflict(observed: Guarded, level: str) -> None:
    with observed.client(level) as first, observed.client(level) as second:
        for native in (first, second):
            native.execute("SET lock_timeout = '1ms'")
            native.execute("BEGIN")
        for number in range(100):
            first.execute("INSERT INTO reports VALUES (%s, '')", (1000 + number,))
            second.execute("INSERT INTO reports VALUES (%s, '')", (2000 + number,))
        first.execute("COMMIT")
        second.execute("COMMIT")
    assert counted(observed) == {"insert": 200}


def test_g6_what_is_rolled_back_is_not_counted(observed: Guarded) -> None:
    with observed.client() as native:
        native.execute("BEGIN; DELETE FROM reports; ROLLBACK")
    assert counted(observed) == {}


def test_g6_many_observations_take_little_room(observed: Guarded) -> None:
    with observed.database.connect() as native:
        for _ in range(600):
            native.execute("UPDATE reports SET value = 'x'")
    assert counted(observed) == {"update": 600}
    assert observed.database.value("SELECT count(*) FROM fencelock.observation") < 400


def test_g6_stale_leases_are_counted_and_let_through(observed: Guarded) -> None:
    guard, stale = observed.guard(), observed.sealed(5)
    observed.sealed(6)
    with guard.transaction(stale) as native:
        native.execute("UPDATE reports SET value = 'late'")
    with observed.database.connect() as native, native.transaction(), guard.check(stale, connection=native):
        native.execute("UPDATE reports SET value = 'later'")
    assert observed.value() == "later"
    # Once for the first block; for the other when it is checked, and when it is presented.
    assert counted(observed) == {"stale": 3, "update": 2}


def test_g6_going_over_to_enforcing_raises_the_mark(observed: Guarded) -> None:
    guard, holder = observed.guard(), observed.sealed(7)
    with pytest.raises(GuardError, match="say which: source="):
        guard.protect("reports")
    guard.protect("reports", source=HandmadeSource(9))
    assert (guard.mark().token, guard.mark().digest) == (9, None)
    with pytest.raises(StaleTokenError), guard.transaction(holder):
        raise AssertionError("not reached")
    with observed.database.connect() as native, pytest.raises(psycopg.Error, match=REFUSED):
        native.execute("DELETE FROM reports")
    reasons = observed.database.rows(
        "SELECT action, from_token, to_token, reason FROM fencelock.guard_audit ORDER BY id"
    )
    assert reasons[-1] == ("mode", 7, 9, "public.reports: observe to enforce")


def test_g6_a_resource_with_one_enforced_table_refuses(observed: Guarded) -> None:
    with observed.database.connect() as native:
        native.execute("CREATE TABLE lines (id int)")
    guard, stale = fencelock.guard(observed.database.url(), resource=RESOURCE, lock=LOCK), observed.sealed(5)
    guard.protect("lines")
    observed.sealed(6)
    with pytest.raises(StaleTokenError), guard.transaction(stale):
        raise AssertionError("not reached")
