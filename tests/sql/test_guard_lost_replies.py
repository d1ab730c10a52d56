"""Exactly one request, or exactly one reply, of a guard's flow is lost: each in turn, of every flow, sync and async.

Whatever was lost: what is reported as not done was not done, what is reported as done was, and the next holder can seal
and write at once. Only the end of a user's block, and what an operator asked for, may be unknown.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import AlreadyDoneError, FencelockError, OutcomeUnknownError, SourceError
from tests.sql.dialect import run, run_async
from tests.sql.guarded import Guarded
from tests.sql.marks import one_version
from tests.support.guards import LOCK, RESOURCE, Blocking, HandmadeLease

pytestmark = one_version

KEYS = itertools.count(1)
MAX_LOST = 40
"""More requests than any flow has."""


class Scene:
    """A guard whose requests may be lost."""

    def __init__(self, guarded: Guarded, proxy: Any, runner: asyncio.Runner | None) -> None:
        self.guarded = guarded
        self.proxy = proxy
        self.runner = runner
        self.lease = HandmadeLease(5)
        self.guard = self.opened()

    def opened(self) -> Any:
        url = self.proxy.url(self.guarded.database.url())
        if self.runner is None:
            return fencelock.guard(url, resource=RESOURCE, lock=LOCK)
        return Blocking(fencelock.aio.guard(url, resource=RESOURCE, lock=LOCK), self.runner.run)

    def execute(self, native: Any, statement: str) -> None:
        if self.runner is None:
            run(native, statement)
        else:
            self.runner.run(run_async(native, statement))

    def is_protected(self) -> bool:
        return bool(self.guarded.sql.protected_tables(self.guarded.database))

    @property
    def token(self) -> int:
        return self.guarded.guard().mark().token


Flow = Callable[[Scene], Iterator[bool]]
"""Prepares, yields, acts while something is lost, and then yields whether it was done."""


def seal(scene: Scene) -> Iterator[bool]:
    yield False
    scene.guard.seal(scene.lease)
    yield scene.token == 5


def seal_over_an_older_one(scene: Scene) -> Iterator[bool]:
    scene.guarded.sealed(3)
    scene.guard.mark()
    yield False
    scene.guard.seal(scene.lease)
    yield scene.token == 5


def first_block(scene: Scene) -> Iterator[bool]:
    yield False
    with scene.guard.transaction(scene.lease) as native:
        scene.execute(native, "UPDATE reports SET value = 'done'")
    yield scene.guarded.value() == "done"


def later_block(scene: Scene) -> Iterator[bool]:
    scene.guard.seal(scene.lease)
    yield False
    with scene.guard.transaction(scene.lease) as native:
        scene.execute(native, "UPDATE reports SET value = 'done'")
    yield scene.guarded.value() == "done"


def close(scene: Scene) -> Iterator[bool]:
    scene.guard.seal(scene.lease)
    yield False
    scene.guard.close(scene.lease)
    yield scene.guarded.guard().mark().is_closed


def raise_to(scene: Scene) -> Iterator[bool]:
    yield False
    scene.guard.raise_to(9, reason="a test")
    yield scene.token == 9


def unprotect(scene: Scene) -> Iterator[bool]:
    yield False
    scene.guard.unprotect(reason="a test")
    yield not scene.is_protected()


def protect(scene: Scene) -> Iterator[bool]:
    scene.guard.unprotect(reason="a test")
    yield False
    scene.guard.protect("reports")
    yield scene.is_protected()


def once_block(scene: Scene) -> Iterator[bool]:
    """G14: a block that is tried again, whatever was lost, is done once."""
    key = f"key {next(KEYS)}"
    yield False
    for _ in range(3):
        try:
            with scene.guard.transaction(scene.lease, once=key) as native:
                scene.execute(native, "UPDATE reports SET value = concat(value, ' done')")
        except AlreadyDoneError:
            break
        except (SourceError, scene.guarded.sql.lost_connection):
            continue
    yield scene.guarded.value() == "first done"


FLOWS = [seal, seal_over_an_older_one, first_block, later_block, close, raise_to, unprotect, protect, once_block]
UNPROTECTING = {unprotect, protect}
REPEATED = {seal, seal_over_an_older_one, close}
"""Flows that ask again by themselves when their commit is not confirmed: their outcome is never unknown."""


IS_DONE: dict[Flow, Callable[[Scene], bool]] = {
    seal: lambda scene: scene.token == 5,
    seal_over_an_older_one: lambda scene: scene.token == 5,
    first_block: lambda scene: scene.guarded.value() == "done",
    close: lambda scene: scene.guarded.guard().mark().is_closed,
}
"""Flows that ask again by themselves, or contain a seal, and whether what each asks for was done."""


@pytest.fixture(params=["sync", "async"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    if request.param == "sync":
        yield None
        return
    with asyncio.Runner() as the_runner:
        yield the_runner


@pytest.mark.parametrize("lose", ["drop_request", "drop_reply"], ids=["request", "reply"])
@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.__name__)
def test_one_loss_is_reported_as_it_is_and_blocks_nobody(
    guarded: Guarded, proxy: Any, runner: asyncio.Runner | None, flow: Flow, lose: str
) -> None:
    referee = guarded.guard()
    for nth in range(1, MAX_LOST):
        scene = Scene(guarded, proxy, runner)
        acting = flow(scene)
        next(acting)
        fault = getattr(proxy, lose)(nth)
        error: BaseException | None = None
        try:
            is_done = next(acting)
        except (FencelockError, guarded.sql.lost_connection) as caught:
            error, is_done = caught, False
        if error is None:
            assert is_done, f"the loss of {nth} was reported as done"
        elif not isinstance(error, OutcomeUnknownError):
            assert getattr(error, "definite", True)
            was_done = IS_DONE[flow](scene) if flow in IS_DONE else guarded.value() == "done"
            assert not was_done, f"the loss of {nth} was reported as not done: {error}"
        assert not (flow in REPEATED and isinstance(error, OutcomeUnknownError))
        check_free(guarded, referee, flow)
        if not fault.has_happened:
            assert nth > 1
            return
    raise AssertionError(f"{flow.__name__} has more than {MAX_LOST} requests")


@pytest.mark.parametrize("flow", IS_DONE, ids=lambda flow: flow.__name__)
def test_a_reply_that_was_lost_to_an_outage_leaves_what_it_would_have_told_in_doubt(
    guarded: Guarded, proxy: Any, runner: asyncio.Runner | None, flow: Flow
) -> None:
    """The server goes on, and nobody reaches it any more."""
    referee = guarded.guard()
    for nth in range(1, MAX_LOST):
        scene = Scene(guarded, proxy, runner)
        acting = flow(scene)
        next(acting)
        fault = proxy.hold_reply(nth)
        error = None
        with ThreadPoolExecutor(1) as threads:
            outage = threads.submit(cut_off, proxy, fault)
            try:
                assert next(acting)
            except (FencelockError, guarded.sql.lost_connection) as caught:
                error = caught
            has_happened = fault.has_happened
            fault.strike()  # If no request came to it, the other thread still waits.
            outage.result()
        fault.release()
        proxy.forget_faults()
        proxy.accept()
        if error is not None and getattr(error, "definite", True):
            assert not IS_DONE[flow](scene), f"the loss of {nth} was reported as not done: {error}"
        check_free(guarded, referee, flow)
        if not has_happened:
            assert nth > 1
            return
    raise AssertionError(f"{flow.__name__} has more than {MAX_LOST} requests")


def cut_off(proxy: Any, fault: Any) -> None:
    fault.wait()
    proxy.refuse()
    proxy.cut()


def check_free(guarded: Guarded, guard: fencelock.Guard, flow: Flow) -> None:
    """Assert that the next holder need not wait, and make all as it was."""
    with guard.transaction(HandmadeLease(20)) as native:
        run(native, "UPDATE reports SET value = 'first'")
    guard.lower(1, reason="a test")
    if flow in UNPROTECTING:
        guard.protect("reports")
