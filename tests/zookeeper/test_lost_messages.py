"""Exactly one request or one reply is lost, with its connection: each message in turn, of every flow, sync and
async.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fencelock
from fencelock import aio
from fencelock_lab.proxy import RequestFault
from tests.support.helpers import wait_until
from tests.zookeeper.framing import ZooKeeperProxy

TTL = 5.0
MAX_MESSAGES = 40


class Scene:
    """A source whose messages may be lost, and a referee whose messages are not."""

    def __init__(self, kind: str, url: str, proxy: ZooKeeperProxy) -> None:
        self.proxy = proxy
        self.is_async = kind == "async"
        self.runner = asyncio.Runner()
        self.source: Any = (aio if self.is_async else fencelock).connect(proxy.url(url))
        self.referee = fencelock.connect(url)
        self.tokens: list[int] = []

    def do(self, result: Any) -> Any:
        """Return what came of a call, whichever kind it is."""

        async def awaited() -> Any:
            return await result

        return self.runner.run(awaited()) if self.is_async else result

    def lock(self) -> Any:
        return self.source.lock("lock", ttl=TTL)

    def note(self, token: int) -> None:
        self.tokens.append(token)

    def close(self) -> None:
        self.do(self.source.close())
        self.referee.close()
        self.runner.close()


Flow = Callable[[Scene], Iterator[None]]
"""Prepares, yields, does what may meet the loss, and checks it."""


def acquire(scene: Scene) -> Iterator[None]:
    scene.do(scene.source.info("lock"))
    yield
    lease = scene.do(scene.lock().acquire())
    assert lease is not None
    scene.note(lease.token)
    info = scene.referee.info("lock")
    assert (info.token, info.waiters) == (lease.token, ())
    scene.do(lease.release())


def release(scene: Scene) -> Iterator[None]:
    lease = scene.do(scene.lock().acquire())
    scene.note(lease.token)
    yield
    scene.do(lease.release())


def try_busy(scene: Scene) -> Iterator[None]:
    scene.do(scene.source.info("lock"))
    with scene.referee.lock("lock", ttl=TTL) as held:
        scene.note(held.token)
        yield
        assert scene.do(scene.lock().acquire(blocking=False)) is None
        wait_until(lambda: not scene.referee.info("lock").waiters)
        assert held.is_valid


def give_up_waiting(scene: Scene) -> Iterator[None]:
    scene.do(scene.source.info("lock"))
    with scene.referee.lock("lock", ttl=TTL) as held:
        scene.note(held.token)
        yield
        assert scene.do(scene.lock().acquire(timeout=0.3)) is None
        wait_until(lambda: not scene.referee.info("lock").waiters)
        assert held.is_valid


def inspect(scene: Scene) -> Iterator[None]:
    with scene.referee.lock("lock", ttl=TTL) as held:
        scene.note(held.token)
        scene.do(scene.source.info("lock"))
        yield
        assert scene.do(scene.source.info("lock")).token == held.token


def break_lock(scene: Scene) -> Iterator[None]:
    scene.do(scene.source.info("lock"))
    held = scene.referee.lock("lock", ttl=TTL).acquire()
    assert held is not None
    scene.note(held.token)
    yield
    broken = scene.do(scene.source.break_lock("lock", reason="a test"))
    scene.note(broken.token)
    assert broken.holder == held.holder
    assert not scene.referee.info("lock").is_held
    held.release()


def purge(scene: Scene) -> Iterator[None]:
    for name in ("lock", "other"):
        with scene.referee.lock(name, ttl=TTL) as held:
            scene.note(held.token)
    scene.do(scene.source.info("lock"))
    yield
    assert scene.do(scene.source.purge()) <= 2
    assert scene.referee.purge() == 0


FLOWS: list[Flow] = [acquire, release, try_busy, give_up_waiting, inspect, break_lock, purge]


@pytest.mark.parametrize("kind", ["sync", pytest.param("async", marks=pytest.mark.campaign)])
@pytest.mark.parametrize("lost", ["request", "reply"])
@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.__name__)
def test_h5_any_message_lost_once_is_recovered(
    flow: Flow, lost: str, kind: str, zookeeper_url: str, zookeeper_proxy: ZooKeeperProxy
) -> None:
    for nth in range(1, MAX_MESSAGES):
        scene = Scene(kind, zookeeper_url, zookeeper_proxy)
        try:
            loss = _play(scene, flow, lost, nth)
            if not loss.has_happened:
                assert nth > 1, "nothing was lost at all"
                return
            _check_aftermath(scene)
        finally:
            zookeeper_proxy.forget_faults()
            scene.close()
    raise AssertionError(f"the flow sends more than {MAX_MESSAGES} messages")


def _play(scene: Scene, flow: Flow, lost: str, nth: int) -> RequestFault:
    steps = flow(scene)
    next(steps)
    loss = getattr(scene.proxy, f"drop_{lost}")(nth)
    for _ in steps:
        pass
    return loss


def _check_aftermath(scene: Scene) -> None:
    """Check that nobody holds the lock or waits for it, and that the next token is above all tokens seen."""
    wait_until(lambda: not scene.referee.info("lock").is_held)
    assert scene.referee.info("lock").waiters == ()
    lease = scene.referee.lock("lock", ttl=TTL).acquire(timeout=10)
    assert lease is not None
    assert lease.token > max(scene.tokens)
    lease.release()
