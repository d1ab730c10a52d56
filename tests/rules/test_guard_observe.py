"""G6, observe mode: a SQLite file counts what enforcement would refuse, and the switch from the one to the other."""

import sqlite3
from pathlib import Path

import pytest

import fencelock
from fencelock import Guard, GuardError, StaleTokenError
from tests.support.guards import (
    LOCK,
    RESOURCE,
    HandmadeLease,
    HandmadeSource,
    Opener,
    ask,
    make_file,
    plain,
    url_of,
    value_in,
    write,
)

pytestmark = pytest.mark.reduced

REFUSED = "takes writes only with its newest sealed token"


@pytest.fixture
def observed(file: Path) -> Guard:
    """A guard whose table is only observed."""
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    guard.protect("reports", mode="observe")
    return guard


def counted(file: Path) -> dict[tuple[str, str], int]:
    rows = ask(file, "SELECT table_name, kind, count FROM fencelock_observed WHERE first_at <= last_at")
    return {(table, kind): count for table, kind, count in rows}


@pytest.mark.parametrize("conflict", ["", "OR REPLACE", "OR IGNORE", "OR ROLLBACK"])
def test_g6_observe_counts_what_enforcement_would_refuse(observed: Guard, file: Path, conflict: str) -> None:
    with plain(file) as connection:
        for number in (2, 3):
            connection.execute(f"INSERT {conflict} INTO reports VALUES (?, 0)", (number,))
        connection.execute(f"UPDATE {conflict} reports SET value = 1")
        connection.execute("DELETE FROM reports WHERE id > 1")
    assert value_in(file) == 1
    assert counted(file) == {("reports", "insert"): 2, ("reports", "update"): 3, ("reports", "delete"): 2}


def test_g6_observe_counts_nothing_of_a_holder(observed: Guard, file: Path) -> None:
    write(observed, HandmadeLease(5), "held")
    assert (value_in(file), counted(file)) == ("held", {})


def test_g6_observe_lets_a_stale_lease_go_on_and_counts_it(open_guard: Opener, observed: Guard, file: Path) -> None:
    refused = []
    guard, stale = open_guard(file, hooks=fencelock.Hooks(on_refused=refused.append)), HandmadeLease(5)
    write(guard, stale, "in time")
    guard.seal(HandmadeLease(6))
    write(guard, stale, "late")
    assert value_in(file) == "late"
    assert counted(file) == {("", "stale"): 1, ("reports", "update"): 1}
    never_sealed = HandmadeLease(4)
    guard.seal(never_sealed)
    for value in ("later", "last"):
        write(guard, never_sealed, value)
    assert value_in(file) == "last"
    assert {event.reason for event in refused} == {"stale"}


def test_g6_observe_counts_every_kind_of_refusal(open_guard: Opener, observed: Guard, file: Path) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(6))
    write(guard, HandmadeLease(6, claim="another"), "collision")
    write(guard, HandmadeLease(9, source_id="another"), "wrong source")
    lost = HandmadeLease(6)
    guard.seal(lost)
    guard.lower(3, reason="test")
    write(guard, lost, "seal lost")
    assert {kind for table, kind in counted(file) if not table} == {"collision", "wrong-lock", "seal-lost"}


def test_g6_a_resource_with_one_enforced_table_refuses(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", "reports", "lines")
    guard = open_guard(file)
    guard.protect("reports", mode="observe")
    guard.protect("lines")
    guard.seal(HandmadeLease(6))
    with pytest.raises(StaleTokenError):
        write(guard, HandmadeLease(5))


def test_g6_enforcing_what_was_observed_needs_the_source(observed: Guard, file: Path) -> None:
    with pytest.raises(GuardError, match="say which: source="):
        observed.protect("reports")
    with plain(file) as connection:
        connection.execute("UPDATE reports SET value = 'still observed'")


def test_g6_enforcing_raises_the_mark_over_every_token_issued(observed: Guard, file: Path) -> None:
    holder = HandmadeLease(7)
    write(observed, holder)
    observed.protect("reports", source=HandmadeSource(9))
    mark = observed.mark()
    assert (mark.token, mark.digest) == (9, None)
    for stale in (holder, HandmadeLease(9)):
        with pytest.raises(StaleTokenError):
            write(observed, stale)
    with plain(file) as connection, pytest.raises(sqlite3.IntegrityError, match=REFUSED):
        connection.execute("UPDATE reports SET value = 1")
    write(observed, HandmadeLease(10), "new")
    assert ask(file, "SELECT action, from_token, to_token, reason FROM fencelock_audit") == [
        ("mode", 7, 9, "reports: observe to enforce")
    ]


def test_g6_going_back_to_observe_is_audited(file: Path) -> None:
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    guard.protect("reports")
    guard.seal(HandmadeLease(5))
    guard.protect("reports", mode="observe")
    with plain(file) as connection:
        connection.execute("UPDATE reports SET value = 'observed'")
    assert ask(file, "SELECT action, from_token, to_token, reason FROM fencelock_audit") == [
        ("mode", 5, 5, "reports: enforce to observe")
    ]
