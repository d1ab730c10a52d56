"""The adapters as a user's type checker sees them: checked by mypy --strict, never run."""

from typing import assert_type

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

import fencelock
import fencelock.aio
from fencelock.integrations.sqlalchemy import fenced


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
