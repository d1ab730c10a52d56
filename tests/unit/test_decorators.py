"""Locks as decorators, sync and async: what the function gets, when the lock is free again, and what is refused."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock.errors import AcquireTimeoutError, ConfigError, StaleTokenError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE note (text TEXT)")
    return tmp_path / "app.db"


def notes(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM note")]


@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_a_call_holds_the_lock_while_the_body_runs_and_returns_what_it_returns(kind: str) -> None:
    with fencelock.connect("memory://d") as source:
        lock = getattr(source, kind)("a")

        @lock
        def add(one: int, *, other: int) -> int:
            """Add two numbers."""
            assert lock.locked()
            return one + other

        assert (add(1, other=2), add(2, other=3)) == (3, 5)
        assert (add.__name__, add.__doc__) == ("add", "Add two numbers.")
        assert not lock.locked()


@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_leased_hands_over_the_lease_of_each_call(kind: str) -> None:
    with fencelock.connect("memory://d") as source:
        token = getattr(source, kind)("a").leased(lambda lease, factor: lease.token * factor)
        assert token(1) < token(1) * 2
        assert token(2) % 2 == 0


def test_guarded_commits_before_the_call_returns_and_rolls_back_what_raises(file: Path) -> None:
    guard = fencelock.guard(file, resource="notes", lock="a")
    with fencelock.connect(file.with_name("locks.db")) as source:

        @source.lock("a").guarded(guard)
        def write(connection: Any, text: str) -> str:
            connection.execute("INSERT INTO note VALUES (?)", (text,))
            if text == "bad":
                raise KeyError(text)
            return text.upper()

        assert write("good") == "GOOD"
        with pytest.raises(KeyError):
            write("bad")
        assert not source.info("a").is_held
    assert notes(file) == ["good"]


def test_guarded_refuses_a_call_whose_lease_was_overtaken(file: Path) -> None:
    guard = fencelock.guard(file, resource="notes", lock="a")
    with fencelock.connect(file.with_name("locks.db")) as source:
        lock = source.lock("a")

        @lock.leased
        def late(lease: fencelock.Lease) -> None:
            guard.outrank(source.break_lock("a", reason="test"), reason="test")
            guard.seal(lease)

        with pytest.raises(StaleTokenError):
            late()


def test_a_call_that_does_not_get_the_lock_in_time_never_begins() -> None:
    with fencelock.connect("memory://d") as source, source.lock("a"):
        begun: list[int] = []
        with pytest.raises(AcquireTimeoutError):
            source.lock("a", timeout=0)(lambda: begun.append(1))()
        assert begun == []


@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_an_async_call_holds_the_lock_until_the_coroutine_has_ended(kind: str, file: Path) -> None:
    guard = fencelock.aio.guard(file, resource="notes", lock="a")

    async def main() -> None:
        async with fencelock.aio.connect(file.with_name("locks.db")) as source:
            lock = getattr(source, kind)("a")

            @lock
            async def plain(number: int) -> int:
                await asyncio.sleep(0)
                assert await lock.locked()
                return number

            @lock.leased
            async def leased(lease: fencelock.aio.AsyncLease) -> int:
                return lease.token

            @lock.guarded(guard)
            async def write(connection: Any, text: str) -> None:
                connection.execute("INSERT INTO note VALUES (?)", (text,))

            assert await plain(7) == 7
            assert await leased() > 0
            await write("async")
            assert notes(file) == ["async"]
            assert not await lock.locked()

    asyncio.run(main())


async def coroutine() -> None: ...


def generator() -> Any:
    yield


async def async_generator() -> Any:
    yield


@pytest.mark.parametrize("way", [lambda lock: lock, lambda lock: lock.leased, lambda lock: lock.guarded(None)])
@pytest.mark.parametrize("function", [coroutine, generator, async_generator, "text"])
def test_a_function_that_outlives_its_call_is_refused(way: Callable[[Any], Any], function: Any) -> None:
    with fencelock.connect("memory://d") as source, pytest.raises(ConfigError):
        way(source.lock("a"))(function)


@pytest.mark.parametrize("way", [lambda lock: lock, lambda lock: lock.leased, lambda lock: lock.guarded(None)])
@pytest.mark.parametrize("function", [notes, async_generator, "text"])
def test_an_async_lock_decorates_async_functions_alone(way: Callable[[Any], Any], function: Any) -> None:
    with pytest.raises(ConfigError, match="decorates an async function"):
        way(fencelock.aio.connect("memory://d").lock("a"))(function)
