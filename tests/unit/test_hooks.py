"""Hooks and logging: the events and their fields; a failing hook does no harm; no event holds a secret."""

import asyncio
import io
import logging
import os
import sqlite3
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import Event, Hooks, Sequencer, aio
from fencelock.hooks import NO_HOOKS, describe, emit, is_observed
from fencelock.protocol import source_requests as ask
from tests.support.helpers import DEADLINE_S, wait_until
from tests.support.sources import Client, rows


def recording(into: list[Event]) -> Hooks:
    """Return hooks that note every event."""
    note = into.append
    return Hooks(note, note, note, note, note, note, note)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db"


# --- telling ---
@pytest.mark.reduced
def test_event_is_one_line_without_the_fields_that_do_not_apply() -> None:
    event = Event("acquired", "a lock", token=7, holder="me")
    assert describe(event) == "acquired lock='a lock' token=7 holder='me'"
    assert describe(Event("waited", "l", duration=0.5)) == "waited lock='l' duration=0.5"


@pytest.mark.parametrize("name", ["acquired", "waited", "renewed", "lost", "released", "sealed", "refused"])
def test_each_event_reaches_its_own_hook_and_the_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []
    event = Event(name, "lock", token=7)
    with caplog.at_level(logging.DEBUG, logger="fencelock"):
        emit(Hooks(**{f"on_{name}": heard.append}), event)
        emit(NO_HOOKS, event)
    assert heard == [event]
    # The keeper may log what earlier tests have left.
    (record, _) = [one for one in caplog.records if getattr(one, "fencelock_event", None) is event]
    assert record.message == describe(event)
    assert record.fencelock_event is event  # type: ignore[attr-defined]
    assert record.levelno == (logging.WARNING if name in ("lost", "refused") else logging.DEBUG)


@pytest.mark.reduced
def test_hook_that_raises_is_logged_and_harms_nobody(url: str, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Event) -> None:
        raise ValueError("from the hook")

    with fencelock.connect(url, hooks=Hooks(broken, broken, broken, broken, broken)) as source:
        with source.lock("lock") as lease:
            assert lease.is_valid
        assert not source.info("lock").is_held
    assert [record.message for record in caplog.records if record.message.startswith("the hook ")] == [
        "the hook on_acquired raised; fencelock goes on without it",
        "the hook on_released raised; fencelock goes on without it",
    ]


def test_hook_may_end_the_program_and_leaves_no_lease_behind(url: str) -> None:
    def interrupt(_: Event) -> None:
        raise KeyboardInterrupt

    with fencelock.connect(url, hooks=Hooks(on_acquired=interrupt)) as source:
        with pytest.raises(KeyboardInterrupt):
            source.lock("lock").acquire()
        wait_until(lambda: not source.info("lock").is_held)


def test_nobody_is_told_when_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("fencelock")
    logger.setLevel(logging.CRITICAL)
    try:
        assert not is_observed(NO_HOOKS, "lost")
        assert is_observed(Hooks(), "renewed")  # A hook may be there.
        emit(NO_HOOKS, Event("lost", "lock"))
        # Other libraries may log what earlier tests have left.
        assert [record for record in caplog.records if record.name == "fencelock"] == []
        logger.setLevel(logging.WARNING)
        assert is_observed(NO_HOOKS, "lost")
        assert not is_observed(NO_HOOKS, "acquired")
    finally:
        logger.setLevel(logging.NOTSET)


# --- what happens to a lease is told ---
@pytest.mark.usefixtures("early_beats")
def test_a_leases_life_is_told_with_its_fields(url: str, tmp_path: Path) -> None:
    heard: list[Event] = []
    other = Client(tmp_path / "locks.db")
    claim = "5" * 32
    with fencelock.connect(url, hooks=recording(heard)) as source:
        first = other.token("lock", claim)  # To be waited for.
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(source.lock("lock", ttl=30.0, holder="me").acquire)
            wait_until(lambda: other.ask(ask.Inspect("lock")).waiters)
            other.release("lock", claim)
            lease = waiting.result(DEADLINE_S)
        assert lease is not None
        wait_until(lambda: "renewed" in {event.name for event in heard})
        lease.release()
    told = {event.name: event for event in heard}
    assert list(dict.fromkeys(event.name for event in heard)) == ["waited", "acquired", "renewed", "released"]
    for event in told.values():
        assert (event.lock, event.token, event.holder) == ("lock", first + 1, "me")
    assert told["waited"].duration is not None
    assert told["waited"].duration > 0
    assert told["released"].reason is None


@pytest.mark.usefixtures("early_beats")
def test_a_loss_is_told_with_the_reason(url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []
    with fencelock.connect(url, hooks=recording(heard)) as source:
        lease = source.lock("lock", ttl=30.0).acquire()
        assert lease is not None
        Client(tmp_path / "locks.db").raise_epoch("the disk was restored")
        lost = wait_until(lambda: [event for event in heard if event.name == "lost"])
    assert [(event.lock, event.token) for event in lost] == [("lock", lease.token)]
    assert lost[0].reason == "the source's epoch was raised: the disk was restored"
    # The keeper may log what earlier tests have left.
    logged = [record for record in caplog.records if getattr(record, "fencelock_event", None) is lost[0]]
    assert [record.levelname for record in logged if record.message.startswith("lost ")] == ["WARNING"]


def test_a_release_that_the_source_did_not_hear_is_told_with_the_reason(url: str, tmp_path: Path) -> None:
    heard: list[Event] = []
    with fencelock.connect(url, hooks=recording(heard)) as source:
        lease = source.lock("lock").acquire()
        assert lease is not None
        rows(tmp_path / "locks.db", "drop table fencelock_lock")
        lease.release()
        (released,) = [event for event in heard if event.name == "released"]
        assert released.reason is not None
        assert "no such table: fencelock_lock" in released.reason


@pytest.mark.parametrize("way", ["release_soon", "dropped"])
def test_a_release_in_the_background_is_told(url: str, way: str) -> None:
    heard: list[Event] = []
    with fencelock.connect(url, hooks=recording(heard)) as source:
        lease = source.lock("lock").acquire()
        assert lease is not None
        token = lease.token
        if way == "release_soon":
            lease.release_soon()
        del lease
        (told,) = wait_until(lambda: [event for event in heard if event.name == "released"])
        assert (told.lock, told.token, told.reason) == ("lock", token, None)
        assert told.duration is not None


def test_a_release_in_the_background_that_the_source_did_not_hear_is_told_once(url: str, tmp_path: Path) -> None:
    heard: list[Event] = []
    with fencelock.connect(url, hooks=recording(heard)) as source:
        lease = source.lock("lock", ttl=30.0).acquire()
        assert lease is not None
        rows(tmp_path / "locks.db", "alter table fencelock_lock rename to hidden")
        lease.release_soon()
        (told,) = wait_until(lambda: [event for event in heard if event.name == "released"])
        assert told.reason is not None
        assert "no such table: fencelock_lock" in told.reason
        rows(tmp_path / "locks.db", "alter table hidden rename to fencelock_lock")
        with source.lock("lock").acquire() as later:  # The keeper has repeated the release.
            assert later.token > told.token
    assert [event.token for event in heard if event.name == "released"] == [told.token, later.token]


# --- secrets ---
class Drawn:
    """The claims that were drawn, as the tester saw them pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: set[str] = set()
        draw = os.urandom

        def noting(size: int) -> bytes:
            drawn = draw(size)
            if size == 16:
                self.texts.add(drawn.hex())
            return drawn

        monkeypatch.setattr(os, "urandom", noting)


@contextmanager
def everything_shown() -> Iterator[Callable[[], str]]:
    """Turn all logging on, and yield a function that returns everything logged and printed so far."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        logging.Formatter("%(name)s %(message)s %(fencelock_event)r", defaults={"fencelock_event": ""})
    )
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield stream.getvalue
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def shown(*values: object) -> str:
    """Return the values as a person or a log may see them; an error with its whole traceback."""
    parts = []
    for value in values:
        parts.append(repr(value))
        if isinstance(value, BaseException):
            parts.extend(traceback.format_exception(value))
        elif not isinstance(value, Sequencer):
            parts.append(str(value))
    return "\n".join(parts)


def of(action: Callable[[], object]) -> BaseException:
    """Return the error that the action raises."""
    try:
        action()
    except fencelock.FencelockError as error:
        return error
    raise AssertionError("no error was raised")


def live_through_everything(url: str, path: Path, heard: list[Event]) -> list[object]:
    """Use a source and a guard in every way, errors included, and return everything that a user sees."""
    seen: list[object] = []
    app = path.with_name("app.db")
    with sqlite3.connect(app) as connection:
        connection.execute("create table reports (id integer primary key)")
    connection.close()
    with fencelock.connect(url, hooks=recording(heard)) as source:
        lock = source.lock("lock", ttl=30.0)
        guard = fencelock.guard(f"sqlite:///{app}", resource="reports", lock="lock", hooks=recording(heard))
        seen += [source, lock, guard, source.rlock("other")]
        with lock as lease, guard.transaction(lease) as native:
            native.execute("insert into reports values (1)")
            seen += [lease, lease.sequencer, lease.lost, source.info("lock"), *source.locks(), *guard.mark().__slots__]
            seen += [guard.mark(), lock.acquire(blocking=False), of(lambda: lock.acquire(timeout=0) or lease.release())]
        seen += [of(lambda: guard.seal(lease)), of(lock.release), of(lease.check_valid), lease]
        stale = lease.sequencer
        lease = lock.acquire()
        assert lease is not None
        guard.seal(lease)
        seen += [of(lambda: guard.seal(stale)), of(lambda: Sequencer.parse(str(stale) + "!")), stale]
        seen.append(source.break_lock("lock", reason="a test"))
        wait_until(lease.lost.is_set)
        seen += [of(lease.check_valid), of(lambda: guard.seal(lease)), lease]
        waiting = source.lock("lock", ttl=0.3, timeout=0.05)
        keeping = lock.acquire()
        seen += [of(waiting.__enter__), keeping, source.purge(), source.raise_epoch(reason="a test")]
        wait_until(lambda: keeping is not None and not keeping.is_valid)
        rows(path, "update fencelock_source set counter = 0")
        seen += [of(lock.acquire), of(lambda: waiting.acquire(timeout=0.01)), source.describe()]
    return seen


async def live_through_it_async(url: str, heard: list[Event]) -> list[object]:
    """Do the same on an event loop, cancellation included."""
    seen: list[object] = []
    async with aio.connect(url, hooks=recording(heard)) as source:
        lock = source.lock("async", ttl=30.0)
        async with lock as lease:
            waiter = asyncio.ensure_future(lock.acquire())
            while not (await source.info("async")).waiters:  # noqa: ASYNC110 - only the source knows
                await asyncio.sleep(0.01)
            seen += [source, lock, lease, lease.sequencer, waiter]
            waiter.cancel()
            await asyncio.wait([waiter])
            seen.append(waiter)
        seen.append(lease)
    return seen


@pytest.mark.usefixtures("early_beats")
def test_no_secret_in_logs_reprs_events_or_errors(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(monkeypatch)
    heard: list[Event] = []
    path = tmp_path / "locks.db"
    with everything_shown() as log, warnings.catch_warnings(record=True) as warned:
        seen = asyncio.run(live_through_it_async(url, heard), debug=True)
        seen += live_through_everything(url, path, heard)
        # A waiter that cannot hear its bell: the folder's name is taken.
        folder = Path(f"{path}-wake")
        for pipe in folder.iterdir():
            pipe.unlink()
        folder.rmdir()
        folder.write_text("")
        seen.append(of(lambda: fencelock.connect(url)._store.listen("lock", "c1a1" * 8)))
        text = "\n".join([log(), shown(*seen, *heard, *warned), describe(heard[0])])
    source_id = rows(path, "select source_id from fencelock_source")[0][0]
    claims = (drawn.texts | {"c1a1" * 8}) - {source_id}
    assert len(claims) > 10
    assert {event.name for event in heard} >= {"acquired", "lost", "released", "sealed", "refused"}
    assert "acquired lock='lock' token=" in text  # What was looked through is the real thing.
    assert [claim for claim in claims if claim in text] == []


def test_the_search_for_secrets_finds_one_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(monkeypatch)
    with everything_shown() as log:
        logging.getLogger("fencelock").debug("taken as %s", os.urandom(16).hex())
    assert [claim for claim in drawn.texts if claim in log()] != []


def test_names_beside_the_file_show_no_claim(url: str, tmp_path: Path) -> None:
    with fencelock.connect(url) as source:
        source.install()
        claim = "c1a1" * 8
        bell: Any = source._store.listen("lock", claim)
        try:
            names = [entry.name for entry in tmp_path.rglob("*")]
            assert len([entry for entry in tmp_path.rglob("*") if entry.is_fifo()]) == 1
            assert not any(claim in name for name in names)
        finally:
            bell.close()
