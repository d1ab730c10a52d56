"""A leader whose guarded block loses its connection, by the server or by the network, leads again (K1)."""

import asyncio
import threading
from typing import Any

import pytest

import fencelock
import fencelock.aio
from tests.sql.dialect import run, run_async
from tests.sql.guarded import Guarded
from tests.support.guards import LOCK
from tests.support.helpers import wait_until
from tests.support.leaders import brief_pauses  # noqa: F401 - a fixture

pytestmark = [pytest.mark.server_wide, pytest.mark.usefixtures("brief_pauses")]
TTL = 30.0


@pytest.fixture
def url(guarded: Guarded) -> str:
    url: str = guarded.database.url()
    fencelock.connect(url).install()
    return url


@pytest.mark.parametrize("then", ["a statement", "the end", "an error"])
def test_k1_a_leader_whose_session_was_ended_leads_again(guarded: Guarded, url: str, then: str) -> None:
    stop, tokens, retried = threading.Event(), list[int](), list[Any]()
    guard = guarded.guard()

    def work(lease: Any) -> None:
        with guard.transaction(lease) as native:
            run(native, "UPDATE reports SET value = %s", f"of term {len(tokens)}")
            if len(tokens) == 1:
                guarded.kill(native)
                wait_until(native.is_cut_off)
                if then == "a statement":
                    run(native, "SELECT 1")
                elif then == "an error":
                    raise ZeroDivisionError
        stop.set()

    with fencelock.connect(url, hooks=fencelock.Hooks(on_retried=retried.append)) as source:
        for term in source.lead(LOCK, stop=stop, ttl=TTL):
            with term as lease:
                tokens.append(lease.token)
                work(lease)
    assert guarded.value() == "of term 2"
    assert [event.token for event in retried] == tokens[:1]


def test_k1_a_leader_in_asyncio_whose_session_was_ended_leads_again(guarded: Guarded, url: str) -> None:
    async def follow() -> list[int]:
        tokens = []
        guard = guarded.async_guard()
        async with fencelock.aio.connect(url) as source:
            async for term in source.lead(LOCK, ttl=TTL):
                async with term as lease:
                    tokens.append(lease.token)
                    async with guard.transaction(lease) as native:
                        await run_async(native, "UPDATE reports SET value = %s", f"of term {len(tokens)}")
                        if len(tokens) == 1:
                            await asyncio.to_thread(guarded.kill, native)
                            await run_async(native, "SELECT 1")
                    break
        return tokens

    assert len(asyncio.run(follow())) == 2
    assert guarded.value() == "of term 2"


def test_k1_a_leader_whose_server_restarts_leads_again(sql: Any, own_database: Any, own_url: str) -> None:
    stop, tokens = threading.Event(), list[int]()
    guard = fencelock.guard(own_url, resource="r", lock=LOCK)
    guard._core.store.install()
    with fencelock.connect(own_url) as source:
        for term in source.lead(LOCK, stop=stop, ttl=9.0):
            with term as lease:
                tokens.append(lease.token)
                with guard.transaction(lease) as native:
                    if len(tokens) > 1:
                        stop.set()
                        continue
                    sql.flush(own_database)
                    own_database.server.restart()
                    run(native, "SELECT 1")
    assert len(tokens) == 2
