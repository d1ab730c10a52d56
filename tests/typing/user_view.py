"""fenceline as a user's type checker sees it: checked by mypy --strict and by pyright, never run."""

import sqlite3
from collections.abc import Iterator
from typing import Any, assert_type

import fenceline
import fenceline.aio


def with_a_lock() -> None:
    with fenceline.connect("sqlite:///locks.db") as source:
        assert_type(source, fenceline.Source)
        lock = source.lock("nightly-report", ttl=10.0, timeout=None, on_lost=print, holder="me")
        assert_type(lock, fenceline.Lock)
        with lock as lease:
            assert_type(lease, fenceline.Lease)
            assert_type(lease.token, int)
            assert_type(lease.remaining(), float)
            assert_type(lease.is_valid, bool)
            assert_type(lease.lost.is_set(), bool)
            assert_type(lease.lost.wait(1.0), bool)
            assert_type(lease.sequencer, fenceline.Sequencer)
            lease.release_soon()
        assert_type(lock.acquire(blocking=False), fenceline.Lease | None)
        assert_type(lock.acquire(timeout=5), fenceline.Lease | None)
        assert_type(lock.current, fenceline.Lease | None)
        assert_type(lock.locked(), bool)
        assert_type(lock.release(), None)


def with_a_reentrant_lock(source: fenceline.Source) -> None:
    lock = source.rlock("nested")
    assert_type(lock, fenceline.RLock)
    with lock as outer, lock as inner:
        assert_type(outer, fenceline.Lease)
        assert inner is outer


def look(source: fenceline.Source) -> None:
    assert_type(source.locks(), Iterator[fenceline.LockInfo])
    info = source.info("nightly-report")
    assert_type(info.token, int | None)
    assert_type(info.waiters, tuple[str, ...])
    assert_type(source.describe(), fenceline.SourceInfo)
    assert_type(source.purge(), int)
    assert_type(source.break_lock("stuck", reason="it hangs"), fenceline.BrokenLock)
    assert_type(source.raise_epoch(reason="restored"), fenceline.SourceInfo)
    assert_type(source.examine(), list[fenceline.Finding])


def guarded(lease: fenceline.Lease, connection: sqlite3.Connection) -> None:
    guard = fenceline.guard("sqlite:///app.db", resource="reports", lock="nightly-report")
    assert_type(guard, fenceline.Guard)
    guard.protect("report", "line", mode="observe")
    with guard.transaction(lease) as native:
        assert_type(native, Any)  # The store's own connection: the URL decides its type.
    with guard.transaction(fenceline.Sequencer.from_env()):
        pass
    guard.seal(lease)
    with guard.check(lease, connection=connection):
        connection.execute("UPDATE report SET total = 0")
    assert_type(guard.mark(), fenceline.Mark)
    guard.close(lease)
    guard.unprotect(reason="no longer shared")


def errors() -> None:
    try:
        look(fenceline.connect())
    except fenceline.StaleTokenError as error:
        assert_type((error.token, error.mark, error.resource), tuple[int, int, str])
    except fenceline.LeaseLostError as error:
        assert_type(error.reason, str)
    except fenceline.FencelineError as error:
        assert_type(error.definite, bool)


def hooks() -> fenceline.Source:
    def count(event: fenceline.Event) -> None:
        assert_type(event.token, int | None)

    return fenceline.connect("sqlite:///locks.db", hooks=fenceline.Hooks(on_acquired=count, on_lost=print))


async def asynchronous() -> None:
    async with fenceline.aio.connect("sqlite:///locks.db") as source:
        assert_type(source, fenceline.aio.AsyncSource)
        async with source.lock("nightly-report", ttl=10.0) as lease:
            assert_type(lease, fenceline.aio.AsyncLease)
            lease.cancel_on_lost()
            guard = fenceline.aio.guard("sqlite:///app.db", resource="reports", lock="nightly-report")
            assert_type(guard, fenceline.aio.AsyncGuard)
            async with guard.transaction(lease) as connection:
                connection.execute("UPDATE report SET total = 1")
            assert_type(await lease.lost.wait(0.1), bool)
        lock = source.rlock("nested", timeout=1)
        assert_type(await lock.acquire(), fenceline.aio.AsyncLease | None)
        await lock.release()
        async for info in source.locks():
            assert_type(info, fenceline.LockInfo)
