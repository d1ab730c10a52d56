"""The fakes for users' own tests: leases that end on demand, and a source in memory."""

import asyncio
import os

import pytest

import fencelock
import fencelock.aio
from fencelock.stores.memory.source import MemorySource
from fencelock.testing.clock import ManualClock
from fencelock.testing.fakes import expire, lose
from tests.support.helpers import wait_until


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    return f"sqlite:///{tmp_path}/locks.db" if request.param == "sqlite" else f"memory://{tmp_path}"


def test_an_expired_lease_is_over_at_once(url):
    with fencelock.connect(url) as source:
        told = []
        lock = source.lock("job", on_lost=told.append)
        lease = lock.acquire()
        expire(lease)
        assert not lease.is_valid
        assert lease.lost.is_set()
        assert lease.remaining() == 0.0
        with pytest.raises(fencelock.LeaseExpiredError):
            lease.check_valid()
        assert wait_until(lambda: told) == ["its deadline passed without word from the source"]
        assert not lease.release()


def test_a_lost_lease_tells_its_reason(url):
    with fencelock.connect(url) as source:
        told = []
        lock = source.lock("job", on_lost=told.append)
        with pytest.raises(fencelock.LeaseLostError, match="the operator broke it"), lock as lease:
            _lose_and_look(lease)
        assert wait_until(lambda: told) == ["the operator broke it"]


@pytest.mark.parametrize("end", [expire, lose])
def test_the_source_lets_the_next_one_have_the_lock(url, end):
    with fencelock.connect(url) as source:
        lease = source.lock("job").acquire()
        end(lease)
        successor = source.lock("job").acquire(timeout=30)
        assert successor.token > lease.token
        successor.release()


@pytest.mark.parametrize("end", [expire, lose])
def test_an_async_block_is_cancelled_when_asked_for(url, end):
    async def work():
        async with fencelock.aio.connect(url) as source, source.lock("job") as lease:
            lease.cancel_on_lost()
            end(lease)
            await asyncio.sleep(30)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work())


def test_a_lease_ends_once(url):
    with fencelock.connect(url) as source:
        lease = source.lock("job").acquire()
        lease.release()
        for end in (expire, lose):
            with pytest.raises(fencelock.LeaseReleasedError):
                end(lease)
        with pytest.raises(fencelock.ConfigError, match="not str"):
            expire("lease")


def test_sources_in_memory_are_one_by_name(tmp_path):
    with (
        fencelock.connect(f"memory://{tmp_path}") as one,
        fencelock.connect(f"memory://{tmp_path}") as same,
        fencelock.connect(f"memory://{tmp_path}-2") as other,
    ):
        with one.lock("job") as lease:
            assert same.lock("job").acquire(blocking=False) is None
            other.lock("job").acquire(blocking=False).release()
            assert one.describe() == same.describe()
            assert one.describe().source_id != other.describe().source_id
        assert same.lock("job").acquire(blocking=False).token > lease.token


def test_a_waiter_in_memory_is_woken(tmp_path):
    """H7: the ttl is long, so only the notification can wake it in time."""
    with fencelock.connect(f"memory://{tmp_path}") as source:
        lease = source.lock("job", ttl=3600).acquire()

        async def wait():
            async with fencelock.aio.connect(f"memory://{tmp_path}") as other:
                waiting = asyncio.create_task(other.lock("job", ttl=3600).acquire())
                while not source.info("job").waiters:  # noqa: ASYNC110 - another thread than the loop queues it.
                    await asyncio.sleep(0)
                lease.release()
                await (await waiting).release()

        asyncio.run(wait())


def test_a_source_in_memory_forgets_its_parents_counter(tmp_path):
    """A forked child would issue the parent's tokens once more: it gets another source id instead."""
    with fencelock.connect(f"memory://{tmp_path}") as source:
        before = source.describe().source_id
        child = os.fork()
        if child == 0:
            os._exit(0 if source.describe().source_id != before else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert source.describe().source_id == before


@pytest.mark.parametrize("bad", ["memory://", "memory:name"])
def test_a_source_in_memory_has_a_name(bad):
    with pytest.raises(fencelock.ConfigError):
        fencelock.connect(bad)


class TestGuardsOfDurableStores:
    """A mark outlives the process; the tokens of a source in memory do not."""

    @pytest.fixture
    def guard(self, tmp_path):
        (tmp_path / "app.db").touch()
        return fencelock.guard(f"sqlite:///{tmp_path}/app.db", resource="reports", lock="job")

    def test_refuse_a_source_in_memory(self, guard, tmp_path):
        with fencelock.connect(f"memory://{tmp_path}") as source, source.lock("job") as lease:
            for use in (guard.seal, guard.close, lambda lease: guard.transaction(lease).__enter__()):
                with pytest.raises(fencelock.WrongLockError, match=r"memory of one process.*sqlite:///"):
                    use(lease)
            with pytest.raises(fencelock.WrongLockError, match="memory of one process"):
                guard.seal(lease.sequencer)
        assert guard.mark().token == 0

    def test_refuse_to_be_bound_to_one(self, guard, tmp_path):
        with fencelock.connect(f"memory://{tmp_path}") as source:
            for use in (
                lambda: guard.raise_to(source, reason="test"),
                lambda: guard.rebind("other", source=source, reason="test"),
                lambda: guard.protect("t", source=source),
            ):
                with pytest.raises(fencelock.WrongLockError, match="memory of one process"):
                    use()
        assert guard.mark().source_id is None


def test_a_manual_clock_goes_forward_only():
    clock = ManualClock()
    before_us = clock.now_us()
    clock.advance(1.5)
    assert clock.now_us() == before_us + 1_500_000
    assert clock.now_ms() == clock.now_us() // 1000
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)


def test_a_source_in_memory_takes_a_manual_clock(tmp_path):
    clock = ManualClock()
    store = MemorySource(f"memory://{tmp_path}", now_us=clock.now_us)
    assert [finding.code for finding in store.examine()] == ["memory-source"]


def _lose_and_look(lease):
    lose(lease, "the operator broke it")
    assert not lease.is_valid
