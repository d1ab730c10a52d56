"""`threading.Condition` over the locks: what the reference says of them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import fencelock
from fencelock._api.own_leases import OwnLeases
from tests.support.helpers import wait_until

pytestmark = pytest.mark.reduced

TTL = 30.0


@pytest.mark.parametrize("is_block", [True, False])
def test_a_condition_over_a_lock_hands_over_and_back(source: fencelock.Source, is_block: bool) -> None:
    lock = source.lock("a", ttl=TTL)
    condition = threading.Condition(lock)
    items: list[int] = []
    tokens: list[int] = []

    def consume() -> None:
        while not items:
            assert condition.wait(30)
        assert lock.current is not None
        assert lock.current.is_valid
        tokens.append(lock.current.token)

    def produce() -> None:
        with condition as lease:
            tokens.append(lease.token)
            items.append(1)
            condition.notify()

    with ThreadPoolExecutor(1) as executor:
        if is_block:
            with condition as first:
                producing = executor.submit(produce)
                consume()
        else:
            condition.acquire()
            first = lock.current
            producing = executor.submit(produce)
            consume()
            condition.release()
        producing.result(30)
    assert first is not None
    assert tokens == [first.token + 1, first.token + 2]
    assert not source.info("a").is_held
    assert lock.current is None


def test_a_wait_that_times_out_has_the_lock_again(source: fencelock.Source) -> None:
    lock = source.lock("a", ttl=TTL)
    condition = threading.Condition(lock)
    with condition as before:
        assert condition.wait(0.01) is False
        assert not before.is_valid
        assert lock.current is not None
        assert lock.current.is_valid
        assert lock.locked()
    assert not lock.locked()


def test_a_wait_under_a_lost_lease_raises(source: fencelock.Source) -> None:
    condition = threading.Condition(source.lock("a", ttl=TTL))

    def work() -> None:
        with condition:
            source.break_lock("a", reason="test")
            condition.wait(30)

    with pytest.raises(RuntimeError, match="un-acquired") as raised:
        work()
    assert "was lost" in raised.value.__notes__[0]
    assert not source.info("a").is_held


def test_a_block_does_not_go_on_under_another_lease_after_a_loss(source: fencelock.Source) -> None:
    """The lock is broken at the moment at which `wait` releases it."""
    lock = source.lock("a", ttl=TTL)

    def work() -> None:
        with lock:
            source.break_lock("a", reason="test")
            assert lock.release() is False
            lock.acquire()

    with pytest.raises(fencelock.LeaseLostError):
        work()
    assert not source.info("a").is_held
    with pytest.raises(fencelock.NotHeldError):
        lock.release()


def test_a_block_whose_wait_is_interrupted_ends_by_that_exception(
    source: fencelock.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler raises when `wait` has just acquired the lock again."""
    lock = source.lock("a", ttl=TTL)
    acquire = OwnLeases.acquire

    def interrupted(own: OwnLeases[fencelock.Lease], lease: fencelock.Lease) -> None:
        acquire(own, lease)
        raise KeyboardInterrupt

    def work() -> None:
        with lock:
            lock.release()
            monkeypatch.setattr(OwnLeases, "acquire", interrupted)
            lock.acquire()

    with pytest.raises(KeyboardInterrupt):
        work()
    wait_until(lambda: not source.info("a").is_held)


def test_a_condition_over_an_rlock_refuses_to_wait(source: fencelock.Source) -> None:
    lock = source.rlock("a", ttl=TTL)
    condition = threading.Condition(lock)
    with condition as lease:
        with pytest.raises(RuntimeError, match="un-acquired"):
            condition.wait(0.01)
        assert lease.is_valid
    assert not source.info("a").is_held
