"""fencelock as a user's type checker sees it: checked by mypy --strict and by pyright, never run."""

import asyncio
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, assert_type

import fencelock
import fencelock.aio
import fencelock.testing
from fencelock import protocol


def with_a_lock() -> None:
    with fencelock.connect("sqlite:///locks.db") as source:
        assert_type(source, fencelock.Source)
        lock = source.lock("nightly-report", ttl=10.0, timeout=None, on_lost=print, holder="me")
        assert_type(lock, fencelock.Lock)
        with lock as lease:
            assert_type(lease, fencelock.Lease)
            assert_type(lease.token, int)
            assert_type(lease.remaining(), float)
            assert_type(lease.is_valid, bool)
            assert_type(lease.lost.is_set(), bool)
            assert_type(lease.lost.wait(1.0), bool)
            assert_type(lease.sequencer, fencelock.Sequencer)
            lease.release_soon()
        assert_type(lock.acquire(blocking=False), fencelock.Lease | None)
        assert_type(lock.acquire(timeout=5), fencelock.Lease | None)
        assert_type(lock.current, fencelock.Lease | None)
        assert_type(lock.locked(), bool)
        assert_type(lock.acquire(timeout=None), fencelock.Lease | None)
        assert_type(lock.release(), bool)


def with_a_decorator(source: fencelock.Source, guard: fencelock.Guard) -> None:
    @source.lock("a", ttl=timedelta(seconds=20))
    def plain(number: int) -> str:
        return str(number)

    @source.lock("a").leased
    def leased(lease: fencelock.Lease, number: int) -> int:
        return lease.token + number

    @source.rlock("a").guarded(guard)
    def guarded(connection: sqlite3.Connection, *, text: str) -> str:
        return text

    assert_type(plain(1), str)
    assert_type(leased(1), int)
    assert_type(guarded(text="a"), str)
    plain("1")  # type: ignore[arg-type]
    leased()  # type: ignore[call-arg]


def with_a_reentrant_lock(source: fencelock.Source) -> None:
    lock = source.rlock("nested")
    assert_type(lock, fencelock.RLock)
    with lock as outer, lock as inner:
        assert_type(outer, fencelock.Lease)
        assert inner is outer


def with_wrong_arguments(source: fencelock.Source) -> None:
    """A checker that is strict about unused `ignore` comments holds that each of these is an error."""
    source.lock(1)  # type: ignore[arg-type]
    source.lock("a", 10.0)  # type: ignore[call-arg]
    source.lock("a", expire=10.0)  # type: ignore[call-arg]
    fencelock.connect("sqlite:///locks.db", ttl=10.0)  # type: ignore[call-arg]
    fencelock.testing.Clock()  # type: ignore[attr-defined]
    protocol.Requests()  # type: ignore[attr-defined]
    fencelock.lock("a")  # type: ignore[attr-defined]
    fencelock.aio.lock("a")  # type: ignore[attr-defined]
    fencelock.Lock("a")  # type: ignore[call-arg, arg-type]
    source.lock("a", ttl="10")  # type: ignore[arg-type]
    source.lock("a", on_lost=lambda: None)  # type: ignore[arg-type, misc]
    source.break_lock("a")  # type: ignore[call-arg]
    _ = source.lock("a").token  # type: ignore[attr-defined]
    fencelock.guard("sqlite:///app.db", resource="reports")  # type: ignore[call-arg]
    guard = fencelock.guard("sqlite:///app.db", resource="reports", lock="nightly-report")
    guard.transaction("a lease")  # type: ignore[arg-type]
    guard.raise_to("a source", reason="restored")  # type: ignore[arg-type]
    _ = source.lock("a").acquire().token  # type: ignore[union-attr]


def proofs(lease: fencelock.Lease) -> None:
    text = str(lease.sequencer)
    sequencer = fencelock.Sequencer.parse(text)
    assert_type(sequencer, fencelock.Sequencer)
    assert_type((sequencer.lock, sequencer.token, sequencer.proof), tuple[str, int, str])
    assert_type(fencelock.Sequencer.from_env(), fencelock.Sequencer)
    assert_type((lease.lock, lease.holder, lease.ttl), tuple[str, str, float])
    assert_type((lease.deadline_ms, lease.is_inherited), tuple[int, bool])
    assert_type(lease.release(), bool)
    assert_type(lease.check_valid(), None)


def several_resources(source: fencelock.Source, lease: fencelock.Lease) -> None:
    guard = fencelock.guard("sqlite:///app.db", resources=["reports", "totals"], lock="nightly-report")
    assert_type(guard.marks(), dict[str, fencelock.Mark])
    guard.rebind("another", source=source, reason="renamed")
    guard.raise_to(source, reason="restored")
    late = fencelock.guard("sqlite:///app.db", resource="log", lock="nightly-report", independent=True)
    late.lower(7, reason="poisoned")
    late.outrank(source.break_lock("nightly-report", reason="stuck"), reason="stuck")
    late.raise_to(7, reason="restored")
    late.raise_to(source.describe(), reason="restored")
    late.protect("log", source=source)
    late.seal(lease)


def look(source: fencelock.Source) -> None:
    assert_type(source.locks(), Iterator[fencelock.LockInfo])
    info = source.info("nightly-report")
    assert_type(info.token, int | None)
    assert_type(info.waiters, tuple[str, ...])
    assert_type(source.describe(), fencelock.SourceInfo)
    assert_type(source.purge(), int)
    assert_type(source.break_lock("stuck", reason="it hangs"), fencelock.BrokenLock)
    assert_type(source.raise_epoch(reason="restored"), fencelock.SourceInfo)
    assert_type(source.examine(), list[fencelock.Finding])


def guarded(lease: fencelock.Lease, connection: sqlite3.Connection) -> None:
    guard = fencelock.guard("sqlite:///app.db", resource="reports", lock="nightly-report")
    assert_type(guard, fencelock.Guard)
    guard.protect("report", "line", mode="observe")
    with guard.transaction(lease) as native:
        assert_type(native, Any)  # The store's own connection: the URL decides its type.
    with guard.transaction(fencelock.Sequencer.from_env()):
        pass
    assert_type(guard.seal(lease), None)
    assert_type(guard.seal(lease, connection=connection), None)
    block: fencelock.GuardedTransaction = guard.transaction(lease)
    with block as native:
        native.execute("UPDATE report SET total = 0")
    admission: fencelock.Admission = guard.check(lease, connection=connection)
    with admission as nothing:
        assert_type(nothing, None)
        connection.execute("UPDATE report SET total = 0")
    lost: fencelock.Lost = lease.lost
    assert_type(lost.is_set(), bool)
    assert_type(guard.mark(), fencelock.Mark)
    guard.close(lease)
    guard.unprotect(reason="no longer shared")


def errors() -> None:
    try:
        look(fencelock.connect())
    except fencelock.StaleTokenError as error:
        assert_type((error.token, error.mark, error.resource), tuple[int, int, str])
    except fencelock.LeaseLostError as error:
        assert_type(error.reason, str)
    except fencelock.AcquireTimeoutError as error:
        assert_type(error.definite, bool)
    except TimeoutError:
        raise
    except fencelock.FencelockError as error:
        assert_type(error.definite, bool)


class TallyConnection:
    """A source's connection as its author writes it."""

    def perform(self, request: protocol.SourceRequest) -> protocol.SourceReply:
        if isinstance(request, protocol.ReadSource):
            return fencelock.SourceInfo("source", 1, "history", 0, 0)
        return protocol.Busy()

    def close(self) -> None:
        pass


def write_a_store(connection: TallyConnection) -> protocol.SourceConnection:
    def read() -> protocol.SourceFlow[int]:
        info = yield from protocol.ask(protocol.ReadSource())
        assert_type(info, fencelock.SourceInfo)
        renewed = yield from protocol.ask(protocol.Renew((("lock", "claim"),)))
        assert_type(renewed, protocol.Renewed)
        return info.last_token

    assert_type(protocol.run_generator(read(), connection.perform), int)
    return connection


def hooks() -> fencelock.Source:
    def count(event: fencelock.Event) -> None:
        assert_type(event.token, int | None)

    return fencelock.connect("sqlite:///locks.db", hooks=fencelock.Hooks(on_acquired=count, on_lost=print))


async def with_an_async_decorator(source: fencelock.aio.AsyncSource, guard: fencelock.aio.AsyncGuard) -> None:
    @source.lock("a")
    async def plain(number: int) -> str:
        return str(number)

    @source.lock("a").leased
    async def leased(lease: fencelock.aio.AsyncLease, number: int) -> int:
        return lease.token + number

    @source.rlock("a").guarded(guard)
    async def guarded(connection: Any, *, text: str) -> str:
        return text

    assert_type(await plain(1), str)
    async with asyncio.TaskGroup() as group:  # A task is made of a coroutine only, and not of any awaitable.
        tasks = [group.create_task(plain(1)), group.create_task(guarded(text="a"))]
        assert_type(tasks, list[asyncio.Task[str]])
        number = group.create_task(leased(1))
        assert_type(number.result(), int)
    await plain("1")  # type: ignore[arg-type]


async def asynchronous() -> None:
    async with fencelock.aio.connect("sqlite:///locks.db") as source:
        assert_type(source, fencelock.aio.AsyncSource)
        async with source.lock("nightly-report", ttl=10.0) as lease:
            assert_type(lease, fencelock.aio.AsyncLease)
            lease.cancel_on_lost()
            guard = fencelock.aio.guard("sqlite:///app.db", resource="reports", lock="nightly-report")
            assert_type(guard, fencelock.aio.AsyncGuard)
            block: fencelock.aio.AsyncGuardedTransaction = guard.transaction(lease)
            async with block as connection:
                assert_type(connection, Any)
                connection.execute("UPDATE report SET total = 1")
            admission: fencelock.aio.AsyncAdmission = await guard.check(lease, connection=connection)
            async with admission as nothing:
                assert_type(nothing, None)
            lost: fencelock.aio.AsyncLost = lease.lost
            assert_type(await lost.wait(0.1), bool)
            assert_type(await guard.marks(), dict[str, fencelock.Mark])
            await guard.protect("report", source=source)
            assert_type(await lease.release(), bool)
        lock = source.rlock("nested", timeout=1)
        assert_type(await lock.acquire(), fencelock.aio.AsyncLease | None)
        await lock.release()
        assert_type(await source.examine(), list[fencelock.Finding])
        async for info in source.locks():
            assert_type(info, fencelock.LockInfo)
