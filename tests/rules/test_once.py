"""The rule G14 on a SQLite file: the work of a key is committed once, together with the key."""

import sqlite3
from pathlib import Path

import pytest

import fencelock
from fencelock import AlreadyDoneError, Once, StaleTokenError, purge_effects
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, ask, fail, plain, url_of, value_in, write
from tests.support.once import NIGHT, OnceJobs

pytestmark = pytest.mark.reduced


class TestOnceJobs(OnceJobs):
    @pytest.fixture
    def once_url(self, file: Path) -> str:
        return url_of(file)


def guard_of(file: Path) -> fencelock.Guard:
    return fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)


def kept(file: Path) -> list[tuple[object, ...]]:
    return ask(file, "SELECT key, token, result FROM fencelock_effect")


def test_g14_the_work_is_committed_with_its_key_or_not_at_all(file: Path) -> None:
    guard, once = guard_of(file), Once(NIGHT)
    once.result = "undone"
    with pytest.raises(ZeroDivisionError), guard.transaction(HandmadeLease(5), once=once) as native:
        fail(native.execute("UPDATE reports SET value = 'undone'"))
    assert (value_in(file), kept(file)) == (0, [])
    with guard.transaction(HandmadeLease(5), once=once) as native:
        native.execute("UPDATE reports SET value = 'done'")
        once.result = "done"
    with pytest.raises(AlreadyDoneError), guard.transaction(HandmadeLease(6), once=once) as native:
        native.execute("UPDATE reports SET value = 'twice'")
    assert (value_in(file), kept(file)) == ("done", [(NIGHT, 5, "done")])


def test_g14_in_the_callers_own_transaction(file: Path) -> None:
    """The key is committed with it, or rolled back with it."""
    guard = guard_of(file)
    for is_committed in (False, True):
        with plain(file) as client:
            client.execute("PRAGMA foreign_keys = ON")
            guard.seal(HandmadeLease(5))
            client.execute("BEGIN IMMEDIATE")
            once = Once(NIGHT)
            with guard.check(HandmadeLease(5), connection=client, once=once):
                client.execute("UPDATE reports SET value = value + 1")
                once.result = "done"
            client.execute("COMMIT" if is_committed else "ROLLBACK")
    assert (value_in(file), kept(file)) == (1, [(NIGHT, 5, "done")])
    for token in (5, 4):
        with plain(file) as client:
            client.execute("PRAGMA foreign_keys = ON")
            client.execute("BEGIN IMMEDIATE")
            with pytest.raises(AlreadyDoneError):
                guard.check(HandmadeLease(token), connection=client, once=NIGHT).__enter__()
            client.execute("ROLLBACK")


def test_g14_nobody_skips_a_key_by_hand(file: Path) -> None:
    """Only a transaction that presents the mark writes a key, and a result stays while its token is the mark."""
    guard = guard_of(file)
    with guard.transaction(HandmadeLease(5), once=NIGHT):
        pass
    with plain(file) as client:
        for statement in (
            "INSERT INTO fencelock_effect VALUES ('reports', '2026-11-23', 5, 'me', 'now', '', '')",
            "INSERT OR REPLACE INTO fencelock_effect VALUES ('reports', '2026-11-22', 5, 'me', 'now', '', '')",
            "UPDATE fencelock_effect SET key = '2026-11-23'",
            "DELETE FROM fencelock_effect",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="fencelock: "):
                client.execute(statement)
        guard.seal(HandmadeLease(6))
        client.execute("DELETE FROM fencelock_effect")
    assert kept(file) == []


def test_g14_observe_mode_lets_no_stale_holder_begin(file: Path) -> None:
    """It could not keep the key."""
    guard = guard_of(file)
    guard.protect("reports", mode="observe")
    guard.seal(HandmadeLease(6))
    write(guard, HandmadeLease(5))
    with pytest.raises(StaleTokenError), guard.transaction(HandmadeLease(5), once=NIGHT):
        raise AssertionError("not reached")
    with guard.transaction(HandmadeLease(6), once=NIGHT):
        pass
    with pytest.raises(AlreadyDoneError), guard.transaction(HandmadeLease(5), once=NIGHT):
        raise AssertionError("not reached")


def test_a_purge_of_a_file_that_no_guard_has_used_finds_nothing(file: Path) -> None:
    assert purge_effects(url_of(file), older_than=0) == 0


@pytest.mark.parametrize("moment", ["begin_effect", "unpresent"])
def test_g14_a_signal_inside_the_guard_commits_neither_work_nor_key(
    file: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or both."""
    from fencelock.stores.sqlite.guard.marks import SQLiteMarks

    guard = guard_of(file)
    guard.seal(HandmadeLease(5))
    real = getattr(SQLiteMarks, moment)

    def interrupted(*arguments: object) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SQLiteMarks, moment, interrupted)
        with pytest.raises(KeyboardInterrupt), guard.transaction(HandmadeLease(5), once=NIGHT) as native:
            native.execute("UPDATE reports SET value = 'undone'")
    assert (value_in(file), kept(file)) == (0, [])
    write(guard, HandmadeLease(5), "later")
