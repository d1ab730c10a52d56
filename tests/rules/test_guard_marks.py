"""What operators do with marks at a guard on a SQLite file: lower, raise, rebind and outrank, each with a reason."""

from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import ConfigError, GuardError, StaleTokenError, WrongLockError
from tests.support.guards import (
    LOCK,
    RESOURCE,
    HandmadeLease,
    HandmadeSource,
    Opener,
    ask,
    value_in,
    write,
)


def audited(file: Path) -> list[tuple[Any, ...]]:
    return ask(file, "SELECT action, resource, from_token, to_token, reason FROM fencelock_audit ORDER BY id")


@pytest.mark.parametrize("reason", ["", "  ", None, "x" * 2049, "a\0b"])
def test_an_operator_must_give_a_reason(open_guard: Opener, file: Path, reason: Any) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    guard.seal(HandmadeLease(5))
    for attempt in (
        lambda: guard.lower(3, reason=reason),
        lambda: guard.raise_to(7, reason=reason),
        lambda: guard.unprotect("reports", reason=reason),
        lambda: guard.rebind("other", source=HandmadeSource(9), reason=reason),
        lambda: guard.outrank(HandmadeLease(9), reason=reason),
    ):
        with pytest.raises(ConfigError):
            attempt()
    assert (guard.mark().token, audited(file)) == (5, [])


def test_an_action_is_audited_with_user_and_time(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(9))
    guard.lower(3, reason="poisoned by a test")
    ((who,),) = ask(file, "SELECT who FROM fencelock_audit WHERE at GLOB '20*T*:*:*.*Z'")
    assert who == fencelock.model.default_holder()
    assert audited(file) == [("lower", RESOURCE, 9, 3, "poisoned by a test")]


def test_lower_opens_the_resource_to_tokens_above_the_new_mark(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(2**49))
    with pytest.raises(StaleTokenError):
        write(guard, HandmadeLease(5))
    guard.lower(4, reason="poisoned")
    with pytest.raises(StaleTokenError):
        write(guard, HandmadeLease(4))
    write(guard, HandmadeLease(5), "open again")


@pytest.mark.parametrize("token", [5, 6])
def test_lower_refuses_a_token_that_is_not_lower(open_guard: Opener, file: Path, token: int) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(5))
    with pytest.raises(GuardError, match="nothing to lower"):
        guard.lower(token, reason="x")


@pytest.mark.parametrize("token", [0, -1, 2**63, 2.5, "7", None, True])
def test_only_tokens_get_into_the_file(open_guard: Opener, file: Path, token: Any) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(5))
    for attempt in (guard.lower, guard.raise_to):
        with pytest.raises(ConfigError):
            attempt(token, reason="x")
    assert guard.mark().token == 5


def test_raise_to_takes_a_token_or_a_source(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.raise_to(7, reason="by number")
    guard.raise_to(HandmadeSource(8), reason="by source")
    guard.raise_to(HandmadeSource(9).info, reason="by what a source said")
    assert (guard.mark().token, guard.mark().source_id) == (9, "source")
    assert [row[:4] for row in audited(file)] == [
        ("raise-to", RESOURCE, 0, 7),
        ("raise-to", RESOURCE, 7, 8),
        ("raise-to", RESOURCE, 8, 9),
    ]


def test_raise_to_goes_up_and_stays_with_its_source(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(5))
    for to, error, message in (
        (4, GuardError, "use lower"),
        (HandmadeSource(4), GuardError, "epoch --raise"),
        (HandmadeSource(9, source_id="another"), WrongLockError, "rebind"),
    ):
        with pytest.raises(error, match=message):
            guard.raise_to(to, reason="x")
    assert (guard.mark().token, audited(file)) == (5, [])


def test_raise_to_a_source_that_has_issued_nothing_changes_no_mark(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.raise_to(HandmadeSource(0), reason="new source")
    assert guard.mark().token == 0
    write(guard, HandmadeLease(1))


def test_rebind_moves_a_resource_to_another_lock_and_source(open_guard: Opener, file: Path) -> None:
    guard, old = open_guard(file), HandmadeLease(5)
    write(guard, old, "old")
    guard.rebind("other-lock", source=HandmadeSource(7, "another"), reason="moved")
    assert guard.lock == "other-lock"
    with pytest.raises(WrongLockError):
        write(guard, old, "from the old lock")
    with pytest.raises(WrongLockError):
        write(open_guard(file), HandmadeLease(6), "from the old lock, anew")
    with pytest.raises(StaleTokenError):
        write(guard, HandmadeLease(5, lock="other-lock", source_id="another"), "not above the mark")
    write(guard, HandmadeLease(8, lock="other-lock", source_id="another"), "new")
    assert value_in(file) == "new"
    assert audited(file) == [
        ("rebind", RESOURCE, 5, 5, "moved (from lock 'nightly-report' to 'other-lock')"),
    ]


def test_rebind_needs_a_source_whose_counter_is_not_below_the_mark(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(5))
    with pytest.raises(GuardError, match="mark 5, and 4 is below it: run `fencelock epoch --raise`"):
        guard.rebind("other-lock", source=HandmadeSource(4, "another"), reason="moved")
    assert (guard.mark().lock, guard.lock) == (LOCK, LOCK)


def test_an_argument_that_is_not_a_source_is_a_config_error(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    for attempt in (
        lambda: guard.raise_to("sqlite:///locks.db", reason="x"),
        lambda: guard.rebind("l", source=7, reason="x"),
        lambda: guard.protect("reports", source=object()),
    ):
        with pytest.raises(ConfigError, match="source must be a source"):
            attempt()


def test_outrank_leaves_a_newer_holder_alone(open_guard: Opener, file: Path) -> None:
    guard, newer = open_guard(file), HandmadeLease(7)
    guard.seal(newer)
    guard.outrank(HandmadeLease(6), reason="late")
    write(guard, newer)
    with pytest.raises(WrongLockError):
        guard.outrank(HandmadeLease(9, lock="another"), reason="x")
    with pytest.raises(WrongLockError):
        guard.outrank(HandmadeLease(9, source_id="another"), reason="x")
