"""The adapters as a user's type checker sees them: checked by mypy --strict, never run."""

from typing import Any, assert_type

import aiohttp
import httpx
import httpx2
import requests
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

import fencelock
import fencelock.aio
import fencelock.http
from fencelock.integrations.celery import one_at_a_time
from fencelock.integrations.sqlalchemy import fenced
from fencelock.messages import from_headers, to_headers


def with_sqlalchemy(
    lease: fencelock.Lease, session: Session, connection: Connection, registry: scoped_session[Session]
) -> None:
    with fenced(session, lease, resource="reports") as entered:
        assert_type(entered, Session)
    with fenced(connection, lease.sequencer, resources=["reports", "totals"]) as lent:
        assert_type(lent, Connection)
    guard = fencelock.guard("sqlite:///app.db", resource="reports", lock="nightly-report")
    with fenced(registry, lease, guard=guard, bind_arguments={"mapper": object}) as scoped:
        assert_type(scoped, Session)


async def with_asynchronous_sqlalchemy(
    lease: fencelock.aio.AsyncLease,
    session: AsyncSession,
    connection: AsyncConnection,
    registry: async_scoped_session[AsyncSession],
) -> None:
    async with fenced(session, lease, resource="reports") as entered:
        assert_type(entered, AsyncSession)
    async with fenced(connection, lease, resource="reports") as lent:
        _ = assert_type(lent, AsyncConnection)
    async with fenced(registry, lease, resource="reports") as scoped:
        assert_type(scoped, AsyncSession)


def with_wrong_arguments(session: Session, lease: fencelock.Lease) -> None:
    fenced("sqlite:///app.db", lease, resource="reports")  # type: ignore[call-overload]
    fenced(session, lease, resource=1)  # type: ignore[call-overload]


def with_messages(lease: fencelock.Lease, other: fencelock.aio.AsyncLease, guard: fencelock.Guard) -> None:
    assert_type(to_headers(lease), dict[str, str])
    to_headers(other)
    pairs: list[tuple[str, bytes]] = []
    for sequencer in (from_headers({"Fencing-Token": "fl2"}), from_headers(pairs), from_headers(None)):
        assert_type(sequencer.token, int)
        with guard.transaction(sequencer):
            pass


def with_celery(source: fencelock.Source) -> None:
    @one_at_a_time(source, lambda number: f"order/{number}", ttl=30.0)
    def ship(task: Any, lease: fencelock.Lease, number: int) -> int:
        return lease.token + number

    ship(object(), 7)
    ship(object())  # type: ignore[call-arg]


def with_http_clients(lease: fencelock.Lease, client: httpx.Client, session: requests.Session) -> None:
    with fencelock.http.client(lease, client) as api:
        assert_type(api, httpx.Client)
        assert_type(api.put("/report"), httpx.Response)
    assert_type(fencelock.http.client(lease.sequencer, session, origins=["https://reports.example"]), requests.Session)
    fencelock.http.client(lease, "https://reports.example")  # type: ignore[type-var]


async def with_asynchronous_http_clients(
    lease: fencelock.aio.AsyncLease, client: httpx2.AsyncClient, session: aiohttp.ClientSession
) -> None:
    async with fencelock.http.client(lease, client, independent=True) as api:
        assert_type(await api.get("/report"), httpx2.Response)
    async with fencelock.http.client(lease, session) as fenced_session:
        assert_type(fenced_session, aiohttp.ClientSession)
