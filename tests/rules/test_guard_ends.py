"""The rule G10 on a SQLite file, the events that hooks get, and arguments that are not guards."""

from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import (
    ConfigError,
    Event,
    GuardError,
    Hooks,
    LeaseExpiredError,
    LeaseInheritedError,
    LeaseReleasedError,
    StaleTokenError,
)
from tests.support.guards import (
    LOCK,
    RESOURCE,
    HandmadeLease,
    Opener,
    ask,
    sequencer,
    url_of,
    value_in,
    write,
)

pytestmark = pytest.mark.reduced


# --- G10: release and break do not fence by themselves -------------------------------------------------------------
def test_g10_close_makes_the_leases_own_token_stale(open_guard: Opener, file: Path) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    write(guard, lease, "last")
    guard.close(lease)
    assert guard.mark().is_closed
    with pytest.raises(StaleTokenError, match="its own holder closed it"):
        write(guard, lease, "late thread")
    with pytest.raises(StaleTokenError):
        write(guard, lease.sequencer, "child with the sequencer")
    assert value_in(file) == "last"


def test_g10_close_works_before_the_first_use(open_guard: Opener, file: Path) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.close(lease)
    with pytest.raises(StaleTokenError):
        write(guard, lease)


def test_g10_close_is_idempotent_and_disturbs_no_newer_holder(open_guard: Opener, file: Path) -> None:
    guard, old, new = open_guard(file), HandmadeLease(5), HandmadeLease(6)
    guard.seal(old)
    guard.close(old)
    guard.close(old)
    guard.seal(new)
    guard.close(old)
    assert not guard.mark().is_closed
    write(guard, new)


def test_g10_a_closed_resource_is_open_to_the_next_holder(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.close(HandmadeLease(5))
    write(guard, HandmadeLease(6), "next")
    assert (value_in(file), guard.mark().is_closed) == ("next", False)


@pytest.mark.parametrize("fates", [["happened"], ["lost"]])
def test_g10_a_close_whose_commit_was_not_confirmed_is_made_again(
    open_guard: Opener, file: Path, lost_commits: list[str], fates: list[str]
) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    lost_commits += fates
    guard.close(lease)
    assert guard.mark().is_closed


@pytest.mark.parametrize("problem", [LeaseReleasedError("released"), LeaseExpiredError("expired")])
def test_g10_guards_refuse_a_lease_that_is_over_but_let_it_be_closed(
    open_guard: Opener, file: Path, problem: Exception
) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    lease.problem = problem
    for attempt in (guard.seal, lambda lease: write(guard, lease)):
        with pytest.raises(type(problem)):
            attempt(lease)
    guard.close(lease)
    assert guard.mark().is_closed


def test_g10_a_child_cannot_close_its_parents_lease(open_guard: Opener, file: Path) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    lease.problem = LeaseInheritedError("inherited")
    with pytest.raises(LeaseInheritedError):
        guard.close(lease)
    assert not guard.mark().is_closed


def test_g10_outrank_refuses_the_holder_whose_lock_was_broken(open_guard: Opener, file: Path) -> None:
    guard, broken = open_guard(file), HandmadeLease(5)
    write(guard, broken, "before")
    guard.outrank(sequencer(6), reason="it hangs")
    with pytest.raises(StaleTokenError):
        write(guard, broken, "after")
    with pytest.raises(StaleTokenError):
        write(guard, sequencer(6), "the breaker's token is nobody's lease")
    write(guard, HandmadeLease(7), "next")
    assert ask(file, "SELECT action, from_token, to_token, reason FROM fencelock_audit") == [
        ("break", 5, 6, "it hangs")
    ]


def test_g10_a_lease_counts_its_open_guarded_transactions(open_guard: Opener, file: Path) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    with guard.transaction(lease):
        assert lease.open_transactions == 1
    with pytest.raises(ZeroDivisionError), guard.transaction(lease):
        raise ZeroDivisionError
    guard.seal(HandmadeLease(6))
    with pytest.raises(StaleTokenError), guard.transaction(lease):
        pass
    assert lease.open_transactions == 0


# --- what is told --------------------------------------------------------------------------------------------------
def test_a_refusal_carries_its_reason(open_guard: Opener, file: Path) -> None:
    events: list[Event] = []
    guard = open_guard(file, hooks=Hooks(on_refused=events.append))
    guard.seal(HandmadeLease(6))
    for lease in (HandmadeLease(5), HandmadeLease(6, claim="another")):
        with pytest.raises(GuardError):
            write(guard, lease)
    assert events == [
        Event("refused", LOCK, token=5, resource=RESOURCE, reason="stale"),
        Event("refused", LOCK, token=6, resource=RESOURCE, reason="collision"),
    ]


# --- arguments -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({}, "either resource"),
        ({"resource": "a", "resources": ["b"]}, "either resource"),
        ({"resources": []}, "1 to 64"),
        ({"resources": "abc"}, "list of names"),
        ({"resources": ["a", "a"]}, "twice"),
        ({"resource": ""}, "must not be empty"),
        ({"resource": "a\0b"}, r"U\+0000"),
        ({"resource": "x" * 513}, "512 bytes"),
        ({"resource": "a", "lock": "\ud800"}, "surrogate"),
    ],
)
def test_a_guard_outside_its_contract_is_a_config_error(tmp_path: Path, named: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fencelock.guard(url_of(tmp_path / "app.db"), **({"lock": LOCK} | named))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "nosuch:///x", "app.db", 7])
def test_a_url_that_names_no_place_is_a_config_error(url: Any) -> None:
    with pytest.raises(ConfigError):
        fencelock.guard(url, resource="a", lock=LOCK)


def test_an_argument_that_is_not_a_lease_is_a_config_error(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    for attempt in (guard.seal, guard.close, guard.transaction):
        with pytest.raises(ConfigError, match="needs a lease"):
            attempt("fl1.…")


def test_any_object_with_a_sequencer_is_a_credential(open_guard: Opener, file: Path) -> None:
    class Shown:
        sequencer = sequencer(5)

    write(open_guard(file), Shown(), "shown")
    assert value_in(file) == "shown"


def test_a_guard_of_several_resources_has_no_single_mark(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file, resources=["a", "b"])
    for attempt in (guard.mark, lambda: guard.protect("reports"), lambda: guard.lower(1, reason="x")):
        with pytest.raises(ConfigError, match="about one resource"):
            attempt()


def test_making_a_guard_and_reading_its_mark_changes_nothing(open_guard: Opener, file: Path) -> None:
    before = ask(file, "SELECT * FROM sqlite_schema")
    guard = open_guard(file)
    assert guard.mark().token == 0
    assert repr(guard).endswith(f"resources=['reports'] lock={LOCK!r}>")
    assert ask(file, "SELECT * FROM sqlite_schema") == before


def test_one_file_by_two_urls_is_one_place(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.db").symlink_to(file)
    guards = [
        fencelock.guard(url, resource=RESOURCE, lock=LOCK)
        for url in (url_of(file), "sqlite:///app.db", "sqlite:///./link.db")
    ]
    assert {guard.url for guard in guards} == {url_of(file)}
