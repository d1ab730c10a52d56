"""The rule G13 on a SQLite file: an effect outside of it has an intent before it and a result after it."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

import fencelock
import fencelock.aio
from fencelock import Event, GuardError, Hooks, StaleTokenError
from tests.support.effects import KEY, Effects
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, ask, plain, url_of

pytestmark = pytest.mark.reduced
ROW = "INSERT INTO fencelock_effect VALUES ('reports', 'forged', 5, 'me', 'now', NULL, '')"


class TestEffects(Effects):
    @pytest.fixture
    def effects_url(self, file: Path) -> str:
        return url_of(file)


@pytest.fixture
def source(tmp_path: Path) -> fencelock.Source:
    return fencelock.connect(url_of(tmp_path / "locks.db"))


@pytest.mark.parametrize(
    "statement",
    [
        ROW,
        ROW.replace("INSERT", "INSERT OR REPLACE"),
        f"{ROW} ON CONFLICT DO UPDATE SET result = 'forged'",
        "UPDATE fencelock_effect SET result = 'forged'",
        "UPDATE fencelock_effect SET resource = 'other'",
        "DELETE FROM fencelock_effect WHERE result IS NULL",
    ],
)
def test_g13_who_has_presented_nothing_changes_no_intent(file: Path, source: fencelock.Source, statement: str) -> None:
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    with source.lock(LOCK) as lease:
        fencelock.dispatch(lease, guard, key=KEY, need=1).__enter__()
        with plain(file) as client, pytest.raises(sqlite3.IntegrityError, match="only inside a guarded transaction"):
            client.execute(statement.replace("'forged', 5", f"'{KEY}', {lease.token}"))
    assert ask(file, "SELECT key, result FROM fencelock_effect") == [(KEY, None)]


def test_g13_a_block_keeps_effects_of_its_own_resource_and_token_alone(file: Path) -> None:
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    guard.seal(HandmadeLease(4))
    with guard.transaction(HandmadeLease(5)) as native:
        native.execute(ROW)
        for wrong in (ROW.replace("5", "6"), ROW.replace("'reports'", "'others'")):
            with pytest.raises(sqlite3.IntegrityError, match="only inside a guarded transaction"):
                native.execute(wrong)
        for moved in ("resource = 'others'", "token = 6"):
            with pytest.raises(sqlite3.IntegrityError, match="only inside a guarded transaction"):
                native.execute(f"UPDATE fencelock_effect SET {moved}")
    assert ask(file, "SELECT resource, key, token FROM fencelock_effect") == [(RESOURCE, "forged", 5)]


def test_g13_a_block_takes_no_effect_of_another_resource(file: Path) -> None:
    own, others = (fencelock.guard(url_of(file), resource=name, lock=LOCK) for name in (RESOURCE, "others"))
    with others.transaction(HandmadeLease(5)) as native:
        native.execute(ROW.replace("'reports'", "'others'"))
    with own.transaction(HandmadeLease(5)) as native:
        for change in ("UPDATE fencelock_effect SET resource = 'reports'", "UPDATE fencelock_effect SET result = 'x'"):
            with pytest.raises(sqlite3.IntegrityError, match="only inside a guarded transaction"):
                native.execute(change)
    assert ask(file, "SELECT resource, key, token FROM fencelock_effect") == [("others", "forged", 5)]


def test_a_dispatch_seals_with_an_event_and_its_refusal_has_one(file: Path, source: fencelock.Source) -> None:
    events: list[Event] = []
    hooks = Hooks(on_sealed=events.append, on_refused=events.append)
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK, hooks=hooks)
    with source.lock(LOCK) as lease:
        block = fencelock.dispatch(lease, guard, key=KEY, need=1)
        block.__enter__()
        guard.seal(HandmadeLease(lease.token + 1, source_id=lease.sequencer.source_id))
        with pytest.raises(StaleTokenError):
            block.__exit__(None, None, None)
    assert [event.name for event in events] == ["sealed", "sealed", "refused"]


def test_observe_mode_lets_no_stale_holder_begin(file: Path, source: fencelock.Source) -> None:
    """There is no write that it could count and let pass."""
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    guard.protect("reports", mode="observe")
    with source.lock(LOCK) as lease:
        guard.seal(HandmadeLease(lease.token + 1, source_id=lease.sequencer.source_id))
        with pytest.raises(StaleTokenError):
            fencelock.dispatch(lease, guard, key=KEY, need=1).__enter__()


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_an_intent_is_flushed_whatever_the_file_is_used_with(
    file: Path, source: fencelock.Source, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fencelock.stores.sqlite.guard.block import SQLiteBlockConnection

    with plain(file) as client:
        client.execute(f"PRAGMA journal_mode = {journal}")
    levels: list[str | None] = []
    commit = SQLiteBlockConnection.commit

    def watched(database: SQLiteBlockConnection) -> None:
        levels.append(database._synchronous)
        commit(database)

    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    monkeypatch.setattr(SQLiteBlockConnection, "commit", watched)
    with source.lock(LOCK) as lease:
        with fencelock.dispatch(lease, guard, key=KEY, need=1):
            assert levels == ["EXTRA", "EXTRA"]
        with guard.transaction(lease):
            pass
    assert levels == ["EXTRA", "EXTRA", "EXTRA", "2"]


def test_an_effect_is_not_begun_inside_a_guarded_block_of_its_own(file: Path, source: fencelock.Source) -> None:
    """It would wait for its own write lock."""
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    with source.lock(LOCK) as lease, guard.transaction(lease), pytest.raises(GuardError, match="would wait for itself"):
        fencelock.dispatch(lease, guard, key=KEY, need=1).__enter__()


async def begin_inside_a_block(locks: Path, file: Path) -> None:
    guard = fencelock.aio.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    async with fencelock.aio.connect(url_of(locks)) as source, source.lock(LOCK) as lease:
        async with guard.transaction(lease):
            with pytest.raises(GuardError, match="would wait for itself"):
                await fencelock.aio.dispatch(lease, guard, key=KEY, need=1).__aenter__()
        async with fencelock.aio.dispatch(lease, guard, key=KEY, need=1):
            pass


def test_an_async_effect_is_not_begun_inside_a_guarded_block_of_its_own(file: Path, tmp_path: Path) -> None:
    asyncio.run(begin_inside_a_block(tmp_path / "locks.db", file))
