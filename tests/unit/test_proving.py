"""A store that a careless server may serve proves itself once in each process, before anything is sealed or moved."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fencelock
from fencelock import UnsupportedError
from fencelock._api import proving
from fencelock.testing.runners import async_guard, sync_guard
from tests.conformance.optimistic_guard import TARGETS, OptimisticGuard, ProtectedGuard, SpeakingGuard
from tests.support.guards import HandmadeLease, HandmadeSource

LOCK = "nightly-report"
REFUSAL = "its server ignores conditions"


class Proof:
    """How often a store was asked to prove itself, and what it found."""

    def __init__(self) -> None:
        self.times = 0
        self.error: Exception | None = None
        self.inside = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()

    def prove(self) -> None:
        self.times += 1
        self.inside.set()
        assert self.may_end.wait(30)
        if self.error is not None:
            raise self.error


@pytest.fixture
def proof() -> Iterator[Proof]:
    yield Proof()
    proving._PROOFS.clear()
    TARGETS.clear()


def store_of(proof: Proof, kind: type[Any] = OptimisticGuard, name: str = "one") -> Any:
    """Return a new store of the same URL that proves itself."""
    store = kind(f"memory://{name}")
    store.prove = proof.prove
    return store


def guard_of(proof: Proof, kind: type[Any] = OptimisticGuard, name: str = "one") -> fencelock.Guard:
    return sync_guard(store_of(proof, kind, name), ("r",), LOCK)


def write(guard: Any) -> None:
    with guard.transaction(HandmadeLease(5)) as native:
        native.put("red", "k", "value")


async def write_async(guard: Any) -> None:
    async with guard.transaction(HandmadeLease(5)) as native:
        native.put("red", "k", "value")


def values() -> dict[Any, Any]:
    """Return what the store keeps."""
    return {key: value for target in TARGETS.values() for key, value in target.values.items()}


STEPS: list[Callable[[Any], Any]] = [
    lambda guard: guard.seal(HandmadeLease(5)),
    lambda guard: guard.close(HandmadeLease(5)),
    lambda guard: guard.raise_to(HandmadeSource(5).info, reason="a test"),
    lambda guard: guard.rebind(LOCK, source=HandmadeSource(5).info, reason="a test"),
    lambda guard: guard.outrank(HandmadeLease(5), reason="a test"),
]


@pytest.mark.parametrize("step", [*STEPS, write])
def test_a_store_proves_itself_before_anything_is_written(proof: Proof, step: Callable[[Any], Any]) -> None:
    proof.error = UnsupportedError(REFUSAL)
    for times in (1, 2):
        with pytest.raises(UnsupportedError, match=REFUSAL):
            step(guard_of(proof))
        assert (proof.times, values()) == (times, {}), "a failure is not remembered"
    proof.error = None
    step(guard_of(proof))
    assert values()
    step(guard_of(proof, name="one"))
    assert proof.times == 3, "and a success is, for every guard of the URL"


@pytest.mark.parametrize("kind", [OptimisticGuard, SpeakingGuard])
@pytest.mark.parametrize("step", [*STEPS, write_async])
def test_a_store_proves_itself_before_a_task_writes(proof: Proof, kind: type[Any], step: Callable[[Any], Any]) -> None:
    async def play() -> None:
        proof.error = UnsupportedError(REFUSAL)
        for times in (1, 2):
            with pytest.raises(UnsupportedError, match=REFUSAL):
                await step(async_guard(store_of(proof, kind), ("r",), LOCK))
            assert (proof.times, values()) == (times, {})
        proof.error = None
        for _ in range(2):
            await step(async_guard(store_of(proof, kind), ("r",), LOCK))
        assert proof.times == 3

    asyncio.run(play())


def test_creating_a_mark_proves_the_store(proof: Proof) -> None:
    proof.error = UnsupportedError(REFUSAL)
    with pytest.raises(UnsupportedError, match=REFUSAL):
        guard_of(proof, ProtectedGuard).protect()
    assert (proof.times, values()) == (1, {})


def test_an_operators_work_on_the_store_proves_it(proof: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencelock._api.guard.guard_store", lambda _: store_of(proof))
    assert fencelock.inspect_resources("memory://one").marks == ()
    assert proof.times == 0
    fencelock.set_floor("memory://one", "source", 7, reason="a test")
    assert proof.times == 1


def test_looking_at_marks_proves_nothing(proof: Proof) -> None:
    """Whoever only looks may have no right to write, and a proof writes."""
    assert guard_of(proof).mark().token == 0
    assert asyncio.run(async_guard(store_of(proof), ("r",), LOCK).mark()).token == 0
    assert proof.times == 0


def test_each_url_proves_itself(proof: Proof) -> None:
    for name in ("one", "two", "one"):
        write(guard_of(proof, name=name))
    assert proof.times == 2


def test_threads_wait_for_the_one_that_tries(proof: Proof) -> None:
    proof.may_end.clear()
    done: list[int] = []
    threads = [threading.Thread(target=lambda: (write(guard_of(proof)), done.append(1)), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert proof.inside.wait(30)
    assert values() == {}, "nobody has gone on"
    proof.may_end.set()
    for thread in threads:
        thread.join(30)
    assert (len(done), proof.times) == (3, 1)


def test_a_loop_goes_on_while_its_store_proves_itself(proof: Proof) -> None:
    async def play() -> None:
        proof.may_end.clear()
        writing = asyncio.ensure_future(write_async(async_guard(store_of(proof, SpeakingGuard), ("r",), LOCK)))
        assert await asyncio.to_thread(proof.inside.wait, 30)
        proof.may_end.set()
        await writing

    asyncio.run(play())
    assert proof.times == 1


def test_a_signal_handler_may_use_the_guard_meanwhile(proof: Proof) -> None:
    """It interrupts the thread that tries, so waiting would have no end."""
    store = store_of(proof)
    first = proof.prove

    def interrupted() -> None:
        store.prove = first
        write(sync_guard(store, ("r",), LOCK))
        first()

    store.prove = interrupted
    sync_guard(store, ("r",), LOCK).seal(HandmadeLease(5))
    assert proof.times == 2
    assert values()


def test_a_child_proves_the_store_again(proof: Proof) -> None:
    write(guard_of(proof))
    child = os.fork()
    if not child:
        try:
            write(guard_of(proof))
        finally:
            os._exit(proof.times)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_what_is_remembered_has_a_limit(proof: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "MAX_PROVEN", 2)
    for name in ("one", "two", "three"):
        write(guard_of(proof, name=name))
    assert len(proving._PROOFS) == 1
