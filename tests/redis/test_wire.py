"""Requests and replies that are lost, late or doubled between a guard and Redis, on a real connection."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError as LostError

import fencelock
from fencelock import OutcomeUnknownError, SourceUnavailableError, StaleTokenError
from fencelock_lab.proxy import Proxy
from tests.redis.fix_redis import Corner
from tests.redis.guarded import Scene, watch
from tests.support.guarded_keys import Loss
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.helpers import meanwhile


@pytest.fixture
def proxy(redis: Corner) -> Iterator[Proxy]:
    with Proxy(redis.servers.servers[0].port) as proxy:
        yield proxy


@pytest.fixture
def proxied(redis: Corner, proxy: Proxy) -> Scene:
    """A scene whose guard goes through the proxy, and knows the commands of the tests."""
    scene = Scene(redis, url=f"redis://127.0.0.1:{proxy.port}/0/{redis.prefix}")
    scene.write(("INCR", scene.key("n")))
    return scene


def test_a_block_whose_reply_is_lost_was_sent_once(proxied: Scene, proxy: Proxy) -> None:
    """redis-py's own clients would have sent it again, and counted twice."""
    scene = proxied

    def count() -> None:
        with scene.block() as txn:
            txn.execute("INCR", scene.key("n"))
            proxy.drop_next("replies")

    with pytest.raises(OutcomeUnknownError, match="whether it did what was asked is unknown") as caught:
        count()
    assert not caught.value.definite
    assert scene.value("n") == "2"
    scene.write(("INCR", scene.key("n")))
    assert scene.value("n") == "3"


def test_a_read_whose_reply_is_lost_was_certainly_nothing(proxied: Scene, proxy: Proxy) -> None:
    scene = proxied

    def read() -> None:
        proxy.drop_next("replies")
        with scene.block():
            pass

    with pytest.raises(SourceUnavailableError, match="only reads"):
        read()


def test_a_request_that_arrives_after_the_successors_seal_is_refused(redis: Corner) -> None:
    """The block's script is held back until a successor has sealed and written: then it comes, and once more."""
    scene = Scene(redis)
    scene.write(("SET", scene.key("a"), "first"))
    held: list[Any] = []

    class HeldBack(Loss):
        def __call__(self, call: Any, error: Exception) -> Any:
            self.seen += 1
            if self.seen - 1 != self.number:
                return call()
            held.append(call)
            raise error

    watch(scene.guard, HeldBack(1, is_done=False), LostError("lost on purpose"))
    block = scene.block()
    txn = block.__enter__()
    txn.execute("SET", scene.key("a"), "late")
    with pytest.raises(OutcomeUnknownError):
        block.__exit__(None, None, None)
    successor = fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK)

    def succeed() -> None:
        with successor.transaction(HandmadeLease(6)) as other:
            other.execute("SET", scene.key("a"), "second")

    meanwhile(succeed)
    for _ in range(2):
        (answer,) = held[0]()
        assert answer == [b"changed", 1]
    assert scene.value("a") == "second"
    with pytest.raises(StaleTokenError):
        scene.write(("SET", scene.key("a"), "late"))


def test_a_seal_that_arrives_after_the_successors_is_refused(redis: Corner) -> None:
    """Also when the mark was lost meanwhile: the value that was read never comes again."""
    scene = Scene(redis)
    sent: list[Any] = []

    class Recorded(Loss):
        def __call__(self, call: Any, error: Exception) -> Any:
            sent.append(call)
            return call()

    watch(scene.guard, Recorded(-1, is_done=True), LostError("lost on purpose"))
    scene.guard.seal(scene.lease)
    send_again = sent[-1]
    fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK).seal(HandmadeLease(6))
    (answer,) = send_again()
    assert answer == [b"changed", 1]
    assert scene.guard.mark().token == 6
    scene.direct("DEL", scene.mark_key())
    (answer,) = send_again()
    assert answer == [b"changed", 1]
    assert scene.direct.get(scene.mark_key()) is None
