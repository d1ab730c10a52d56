"""Whatever interrupts a request, nothing of it is left behind: the lease can be released, and the next request goes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, cast

import aiohttp
import httpx
import pytest

import fencelock.http
from fencelock.testing.conformance.interrupts import INTERRUPTS, CancelledAt, interrupted_at
from tests.http.clients.callers import NO_TRUST
from tests.http.clients.scripted import ScriptedService
from tests.support.guards import HandmadeLease

OURS = ("/fencelock/http/clients/", "/fencelock/_remote/")


def answer(_: httpx.Request) -> httpx.Response:
    """Answer as a guard that has admitted token 7."""
    return httpx.Response(200, headers={"fencing-mark": '"7";seal="9f3ab2c1d4e5f607"'}, content=b"7")


def put(holder: HandmadeLease) -> int:
    """Send the first request of a lease."""
    with httpx.Client(
        verify=NO_TRUST, base_url="https://reports.example", transport=httpx.MockTransport(answer)
    ) as inner:
        return fencelock.http.client(holder, inner).put("/report").status_code


def test_an_interrupted_request_is_counted_out_and_lets_the_next_one_go() -> None:
    put(HandmadeLease(7))  # The first request of a process goes through more places.
    with interrupted_at(None, *OURS) as places:
        put(HandmadeLease(7))
    assert places.places > 50
    for place in range(places.places):
        holder = HandmadeLease(7)
        with suppress(*INTERRUPTS), interrupted_at(place, *OURS) as interruption:
            put(holder)
        assert interruption.has_come
        assert holder.open_transactions == 0, place
        assert put(holder) == 200


@asynccontextmanager
async def clients(library: str, holder: HandmadeLease, service: ScriptedService) -> AsyncIterator[Any]:
    """A client of the lease by one of the asynchronous libraries."""
    if library == "aiohttp":
        async with fencelock.http.client(holder, aiohttp.ClientSession(f"{service.url}/")) as session:
            yield session
    else:
        async with httpx.AsyncClient(verify=NO_TRUST, base_url=service.url) as inner:
            yield fencelock.http.client(holder, inner)


@pytest.mark.asyncio
@pytest.mark.parametrize("library", ["httpx", "aiohttp"])
async def test_a_cancelled_request_is_counted_out_and_lets_the_next_one_go(
    library: str, service: ScriptedService
) -> None:
    for wait in count():
        holder = HandmadeLease(7)
        async with clients(library, holder, service) as client:
            request = client.put("report")
            cancelled = CancelledAt(request, wait)
            with suppress(asyncio.CancelledError):
                await cancelled
            (task := cast("asyncio.Task[None]", asyncio.current_task())).uncancel()
            assert not task.cancelling()
            assert holder.open_transactions == 0
            await client.put("report")
        if not cancelled.has_come:
            break
    assert wait > 1
