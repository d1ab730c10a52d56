"""Loops of leaders, written once for all stores, sync and async (K1, K3)."""

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock._api import leading
from fencelock_lab.proxy import Proxy
from tests.support.helpers import wait_until

LOCK = "leader"
TTL = 30.0
both = pytest.mark.parametrize("kind", ["sync", "async"])
_PORT = re.compile(r"127\.0\.0\.1:(\d+)")


@pytest.fixture
def brief_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have loops pause for milliseconds."""
    monkeypatch.setattr(leading, "FIRST_PAUSE_S", 0.005)


def lead(kind: str, url: str, body: Callable[[Any], Any], *, hooks: Any = None, **options: Any) -> None:
    """Run a loop to its end; `body` is called with the lease of each term."""
    hooks = hooks or fencelock.Hooks()
    options = {"ttl": TTL} | options
    if kind == "sync":
        with fencelock.connect(url, hooks=hooks) as source:
            for term in source.lead(LOCK, **options):
                with term as lease:
                    body(lease)
        return
    asyncio.run(_lead(url, body, hooks, options))


async def _lead(url: str, body: Callable[[Any], Any], hooks: Any, options: dict[str, Any]) -> None:
    async with fencelock.aio.connect(url, hooks=hooks) as source:
        async for term in source.lead(LOCK, **options):
            async with term as lease:
                body(lease)


class Leader:
    """A loop in a thread of its own, which leads until it is stopped, and says of each term."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self.stop = threading.Event()
        self.go_on = threading.Event()
        self.tokens: list[int] = []
        self.retried: list[Any] = []
        hooks = fencelock.Hooks(on_retried=self.retried.append)
        arguments = (kind, url, self._work)
        named = {"hooks": hooks, "stop": self.stop} | options
        self.thread = threading.Thread(target=lead, args=arguments, kwargs=named, daemon=True)
        self.thread.start()

    def _work(self, lease: Any) -> None:
        self.tokens.append(lease.token)
        while not (self.stop.is_set() or self.go_on.is_set() or lease.lost.is_set()):
            threading.Event().wait(0.005)

    def end(self) -> None:
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.mark.usefixtures("brief_pauses")
class Leaders:
    """The tests. A subclass has the fixture `installed_url`: a source of the test's own, ready for use."""

    @both
    def test_k1_a_leader_whose_lock_was_broken_leads_again(self, installed_url: str, kind: str) -> None:
        leader = Leader(kind, installed_url)
        with fencelock.connect(installed_url) as source:
            wait_until(lambda: leader.tokens)
            source.break_lock(LOCK, reason="a test")
            leader.go_on.set()  # Its body ends well: the loss shows at the release.
            wait_until(lambda: len(leader.tokens) > 1)
            leader.end()
            assert leader.tokens == sorted(set(leader.tokens))
            assert [event.token for event in leader.retried] == leader.tokens[:1]
            assert "LeaseLostError" in leader.retried[0].reason
            assert not source.info(LOCK).is_held

    @both
    def test_k3_a_loop_that_is_stopped_while_it_waits_leaves_the_queue(self, installed_url: str, kind: str) -> None:
        with fencelock.connect(installed_url) as source, source.lock(LOCK, ttl=TTL) as lease:
            leader = Leader(kind, installed_url)
            wait_until(lambda: source.info(LOCK).waiters)
            leader.end()
            assert leader.tokens == []
            info = source.info(LOCK)
            assert (info.waiters, info.token, info.is_held) == ((), lease.token, True)

    @both
    def test_k1_a_leader_whose_source_is_cut_off_leads_when_it_is_back(self, installed_url: str, kind: str) -> None:
        """While it waits, and while it leads: its own end is the next it hears of."""
        found = _PORT.search(installed_url)
        if found is None:
            return  # A file, or the process's own memory.
        with Proxy(int(found[1])) as proxy, fencelock.connect(installed_url) as direct:
            proxy.refuse()
            leader = Leader(kind, installed_url.replace(found[0], f"127.0.0.1:{proxy.port}"), ttl=3.0)
            wait_until(lambda: leader.retried)
            proxy.accept()
            wait_until(lambda: leader.tokens)
            direct.break_lock(LOCK, reason="a test")
            proxy.cut()
            wait_until(lambda: len(leader.tokens) > 1)
            leader.end()
            wait_until(lambda: not direct.info(LOCK).is_held)
