"""Sessions and connections of all four kinds behind one face, so that a test is written once."""

import asyncio
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencelock.integrations.sqlalchemy import fenced
from tests.integrations.databases import GuardedDatabase
from tests.support.guards import RESOURCE

TARGETS = ("session", "connection", "async session", "async connection")
Body = Callable[[Any], Any]


class Base(DeclarativeBase):
    pass


class Report(Base):
    __tablename__ = RESOURCE
    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[str | None]


class Plain(Base):
    __tablename__ = "plain"
    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[str | None]


def write(value: str, table: str = RESOURCE) -> Body:
    """Return a body that writes a value."""
    statement = text(f"UPDATE {table} SET value = :value WHERE id = 1")
    return lambda target: target.execute(statement, {"value": value})


def read(target: Any) -> Any:
    """Return the value, as this session or connection sees it."""
    return target.execute(text("SELECT value FROM reports WHERE id = 1")).scalar_one()


class Stack:
    """One engine, and one session or connection on it, of one of the four kinds."""

    def __init__(self, target: str, guarded: GuardedDatabase, **options: Any) -> None:
        self.is_async = target.startswith("async")
        self.is_session = target.endswith("session")
        self._runner = asyncio.Runner()
        self.async_engine: AsyncEngine | None = None
        if self.is_async:
            self.async_engine = create_async_engine(guarded.engines[1], **options)
            self.engine: Engine = self.async_engine.sync_engine
        else:
            self.engine = create_engine(guarded.engines[0], **options)
        self.target = self.open()

    def open(self) -> Any:
        """Return a session or connection."""
        if not self.is_async:
            return Session(self.engine) if self.is_session else self.engine.connect()
        assert self.async_engine is not None
        if self.is_session:
            return AsyncSession(self.async_engine)
        return self._runner.run(_started(self.async_engine.connect()))

    def run(self, body: Body, target: Any = None) -> Any:
        """Run synchronous code over the session or connection."""
        target = target or self.target
        return self._runner.run(target.run_sync(body)) if self.is_async else body(target)

    def fenced(self, lease: Any, body: Body, **terms: Any) -> Any:
        """Run synchronous code in a guarded block."""
        if "guard" not in terms and "resources" not in terms:
            terms.setdefault("resource", RESOURCE)
        if self.is_async:
            return self._runner.run(self._fenced(lease, body, terms))
        with fenced(self.target, lease, **terms) as target:
            assert target is self.target
            return body(target)

    async def _fenced(self, lease: Any, body: Body, terms: dict[str, Any]) -> Any:
        async with fenced(self.target, lease, **terms) as target:
            assert target is self.target
            return await target.run_sync(body)

    def alone(self, body: Body) -> None:
        """Run synchronous code in a transaction that presents nothing, on another session of the same pool."""
        other = self.open()

        def committed(target: Any) -> None:
            try:
                body(target)
                target.commit()
            finally:
                target.rollback()

        try:
            self.run(committed, other)
        finally:
            self._close(other)

    def reset(self) -> None:
        self.run(lambda target: target.rollback())

    def free(self) -> None:
        """Give the connection back to the pool, and have another one from it."""
        self._close(self.target)
        self.target = self.open()

    def _close(self, target: Any) -> None:
        if self.is_async:
            self._runner.run(target.close())
        else:
            target.close()

    def close(self) -> None:
        self._close(self.target)
        if self.async_engine is not None:
            self._runner.run(self.async_engine.dispose())
        self.engine.dispose()
        self._runner.close()


async def _started(connection: AsyncConnection) -> AsyncConnection:
    return await connection
