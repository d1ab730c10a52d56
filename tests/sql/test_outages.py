"""What goes on around a source on an SQL server: restarts, cuts, freezes, a full server, several loops.

Leases go on when the server does; waiters go on waiting; and what cannot be had is an error that says why.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import OutcomeUnknownError, SourceUnavailableError
from fencelock._drivers import aio as aio_driver
from fencelock._drivers import sync as sync_driver
from fencelock._keeper.lifecycle import keeper
from fencelock.protocol import source_requests as ask
from fencelock.testing.conformance.faults import failing_starts
from tests.sql.clients import PublicSource, SqlClient
from tests.sql.dialect import SqlDialect
from tests.sql.marks import kinds, one_version
from tests.sql.waiters import TTL, Waiter, renewed
from tests.support.helpers import wait_until, wait_until_async

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_stray_threads"), one_version]


# --- the server restarts --------------------------------------------------------------------------
@pytest.mark.usefixtures("early_beats")
@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_lease_and_a_waiter_outlive_a_restart_of_the_server(
    sql: SqlDialect, own_database: Any, own_url: str, how: str
) -> None:
    losses: list[str] = []
    with fencelock.connect(own_url) as source, fencelock.connect(own_url) as other:
        lease = source.lock("lock", ttl=30.0, on_lost=losses.append).acquire()
        assert lease is not None
        waiter = Waiter(other)
        wait_until(waiter.is_asleep)
        sql.flush(own_database)
        getattr(own_database.server, how)()
        renewed(lease)
        assert lease.is_valid
        assert losses == []
        assert waiter.token is None
        assert lease.release()
        waiter.join(30)
        assert waiter.token is not None
        assert waiter.token > lease.token


def test_an_acquire_while_the_server_is_away_fails_at_once_and_leaves_nothing(own_database: Any, own_url: str) -> None:
    with fencelock.connect(own_url) as source:
        lock = source.lock("lock", ttl=TTL)
        lock.acquire()
        own_database.server.stop()
        with pytest.raises(SourceUnavailableError, match=r"cannot be reached: .*refused") as caught:
            source.lock("lock").acquire()
        assert caught.value.definite
        own_database.server.start()
        lock.release()
        with lock:
            pass
        assert not source.info("lock").waiters


# --- the network ----------------------------------------------------------------------------------
@pytest.mark.usefixtures("early_beats")
def test_cut_connections_are_made_anew(url: str, proxy: Any) -> None:
    with fencelock.connect(proxy.url(url)) as source, fencelock.connect(url) as direct:
        lease = direct.lock("lock", ttl=TTL).acquire()
        held = source.lock("held", ttl=30.0).acquire()
        assert lease is not None
        assert held is not None
        waiter = Waiter(source)
        for _ in range(3):
            wait_until(waiter.is_asleep)
            proxy.cut()
            renewed(held)
        lease.release()
        waiter.join(30)
        assert waiter.token is not None
        assert held.is_valid


@kinds
def test_a_connection_that_the_server_ended_is_made_anew(sql: SqlDialect, url: str, database: Any, kind: str) -> None:
    with PublicSource(kind, url) as public:
        for _ in range(3):
            lease = public.do(public.source.lock("lock", ttl=TTL).acquire())
            for number in sql.sessions(database):
                with suppress(sql.lost_connection):
                    sql.end_session(database, number)
            wait_until(lambda: not sql.sessions(database))
            assert public.do(lease.release())


def shorten_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each request of a new source wait 0.3 s for its reply."""
    monkeypatch.setattr(sync_driver, "REQUEST_TIMEOUT_S", 0.3)
    monkeypatch.setattr(aio_driver, "REQUEST_TIMEOUT_S", 0.3)
    monkeypatch.setattr(sync_driver.SyncDriver.__init__, "__kwdefaults__", {
        **sync_driver.SyncDriver.__init__.__kwdefaults__, "request_timeout_s": 0.3,
    })  # fmt: skip


def answered(call: Callable[[], Any]) -> Any:
    """Return the result of a call, which is made again if a busy server needs longer than that."""
    while True:
        with suppress(SourceUnavailableError, OutcomeUnknownError):
            return call()


@kinds
def test_a_frozen_server_is_noticed_within_the_request_timeout(
    own_database: Any, own_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_requests(monkeypatch)
    with PublicSource(kind, own_url) as public:
        lock = public.source.lock("lock", ttl=TTL)
        public.do(answered(lambda: public.do(lock.acquire())).release())
        own_database.server.freeze()
        try:
            with pytest.raises((SourceUnavailableError, OutcomeUnknownError)):
                public.do(lock.acquire())
        finally:
            own_database.server.thaw()
        # What it may have got meanwhile is given back by the keeper.
        lease = answered(lambda: public.do(lock.acquire(timeout=30)))
        assert lease is not None
        public.do(lease.release())


@pytest.mark.campaign
def test_a_frozen_server_costs_no_lease_of_another_source_and_is_told_in_time(
    url: str, proxy: Any, tmp_path: Path
) -> None:
    """H2, H3: the keeper's one thread renews the leases of all sources, and reports every loss within a second."""
    lost: dict[str, float] = {}
    with fencelock.connect(proxy.url(url)) as source, fencelock.connect(f"sqlite:///{tmp_path}/locks.db") as healthy:
        kept = healthy.lock("kept", ttl=2.0, on_lost=lambda _: lost.setdefault("kept", time.monotonic())).acquire()
        lease = source.lock("lock", ttl=1.0, on_lost=lambda _: lost.setdefault("lock", time.monotonic())).acquire()
        assert kept is not None
        assert lease is not None
        proxy.freeze()
        over_s = time.monotonic() + lease.remaining()
        # The claim of the expired lease is released three times in this time, without an answer.
        time.sleep(over_s + 3.0 - time.monotonic())
        assert list(lost) == ["lock"]
        assert lost["lock"] < over_s + 1.0
        assert kept.release()
        proxy.thaw()


@kinds
def test_h10_a_reply_that_drips_costs_no_lease_of_another_source_and_hides_no_loss(
    url: str, proxy: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper's one thread waits for the whole reply, each byte of which comes in time."""
    shorten_requests(monkeypatch)
    told: list[str] = []
    with (
        fencelock.connect("memory://drip") as healthy,
        fencelock.connect(proxy.url(url)) as source,
        PublicSource(kind, proxy.url(url)) as public,
    ):
        kept = healthy.lock("kept", ttl=6.0).acquire()
        waiting = public.source.lock("lock", ttl=TTL)
        assert answered(lambda: public.do(public.source.info("lock"))).is_held is False
        lease = answered(source.lock("lock", ttl=1.0, on_lost=told.append).acquire)
        assert kept is not None
        assert lease is not None
        proxy.drip_s = 0.2
        try:
            wait_until(lambda: told)
            with pytest.raises((SourceUnavailableError, OutcomeUnknownError)):
                public.do(waiting.acquire())
            assert kept.is_valid
        finally:
            proxy.drip_s = 0.0
            proxy.cut()
        assert kept.release()


# --- a full server --------------------------------------------------------------------------------
@kinds
def test_a_server_with_no_connection_left_says_so(sql: SqlDialect, own_database: Any, own_url: str, kind: str) -> None:
    own_database.server.settings["max_connections"] = 12
    own_database.server.restart()
    user = sql.limited_user(own_database)
    with PublicSource(kind, own_database.url(user=user)) as public, ExitStack() as others:
        with suppress(sql.lost_connection):
            for _ in itertools.repeat(None, 20):
                others.enter_context(own_database.connect(user=user))
        with pytest.raises(SourceUnavailableError, match=sql.too_many_clients) as caught:
            public.do(public.source.lock("lock").acquire())
        assert caught.value.definite
        others.close()
        wait_until(lambda: has_room(sql, own_database))
        public.do(public.do(public.source.lock("lock").acquire()).release())


def has_room(sql: SqlDialect, database: Any) -> bool:
    """Return whether a server takes several more connections."""
    with suppress(sql.lost_connection):
        return len(sql.sessions(database)) < 5
    return False


# --- asyncio --------------------------------------------------------------------------------------
@pytest.mark.reduced
def test_several_loops_in_one_process_share_a_source(url: str) -> None:
    source = fencelock.aio.connect(url)
    tokens: list[int] = []
    inside = []

    async def work() -> None:
        for _ in range(5):
            async with source.lock("lock", ttl=30.0) as lease:
                inside.append(lease.token)
                assert len(inside) == 1
                await asyncio.sleep(0)
                tokens.append(inside.pop())

    threads = [threading.Thread(target=lambda: asyncio.run(two_tasks(work))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(tokens) == 30
    assert tokens == sorted(set(tokens))
    asyncio.run(source.close())


async def two_tasks(work: Callable[[], Any]) -> None:
    await asyncio.gather(work(), work())


@pytest.mark.reduced
@pytest.mark.parametrize("is_held", [False, True], ids=["free", "waiting"])
@pytest.mark.parametrize("side", ["request", "reply"])
def test_h5_a_cancelled_acquire_leaves_nothing_behind_whenever_it_is_cancelled(
    url: str, proxy: Any, is_held: bool, side: str
) -> None:
    """With each of its requests on the way to the server, or each reply on the way back, or asleep in the queue."""
    referee = SqlClient(url)

    async def cancel(nth: int) -> None:
        async with fencelock.aio.connect(proxy.url(url)) as source:
            fault = proxy.hold_request(nth) if side == "request" else proxy.hold_reply(nth)
            task = asyncio.create_task(source.lock("lock", ttl=TTL).acquire())
            await wait_until_async(lambda: fault.has_happened or is_settled(task))
            task.cancel()
            await asyncio.wait([task], timeout=20)
            assert task.done(), "a cancelled task ends"
            if not task.cancelled():
                await task.result().release()
            fault.release()

    def is_settled(task: asyncio.Task[Any]) -> bool:
        """Tell whether there is no further request: it is done, or sleeps in the queue."""
        return task.done() or (is_held and bool(referee.ask(ask.Inspect("lock")).waiters) and sleeping(proxy))

    for nth in range(1, 8):
        claim = obtained(referee)
        if not is_held:
            referee.release("lock", claim)
        asyncio.run(cancel(nth))
        wait_until(lambda: not referee.ask(ask.Inspect("lock")).waiters)
        assert referee.release("lock", claim) == is_held
    # Nobody but the keeper can have given it back each time.
    obtained(referee)
    referee.close()


def obtained(client: SqlClient) -> str:
    """Return a claim that has the lock, which may be on its way back."""
    claims: list[str] = []

    def take() -> bool:
        claims.append(fencelock.model.draw_claim())
        return isinstance(client.acquire("lock", claims[-1]), ask.Granted)

    wait_until(take)
    return claims[-1]


def sleeping(proxy: Any) -> bool:
    """Tell whether every request that came has its reply."""
    counts = proxy.counts
    return counts["requests"] == counts["round trips"]


def test_a_host_whose_name_no_thread_resolves_is_a_definite_error_and_the_next_acquire_succeeds(url: str) -> None:
    """A loop resolves names in a thread of its own."""

    async def work() -> bool:
        async with fencelock.aio.connect(url.replace("127.0.0.1", "localhost")) as source:
            lock = source.lock("lock")
            with failing_starts() as faults, pytest.raises(SourceUnavailableError, match="limit on threads"):
                await lock.acquire()
            assert faults.failed == ["asyncio_0"]
            lease = await lock.acquire()
            return lease is not None and await lease.release()

    keeper().start()
    assert asyncio.run(work())
