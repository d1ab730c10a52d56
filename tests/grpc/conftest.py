"""Fixtures of gRPC's tests: a lock, a guarded file, a service of each API and callers of each API."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import fencelock
from tests.grpc.callers import CALLERS, Caller
from tests.grpc.services import LOCK, SERVERS, Service


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a SQLite file with a table."""
    path = tmp_path / "data.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE reports (body TEXT)")
    return path


@pytest.fixture
def source(tmp_path: Path) -> Iterator[fencelock.Source]:
    """Yield a source of locks in a file of its own."""
    with fencelock.connect(f"sqlite:///{tmp_path / 'locks.db'}") as opened:
        opened.install()
        yield opened


@pytest.fixture
def lease(source: fencelock.Source) -> fencelock.Lease:
    """Return a lease on the resource's lock."""
    lease = source.lock(LOCK).acquire()
    assert lease is not None
    return lease


@pytest.fixture(params=["server", "async-server"])
def service(request: pytest.FixtureRequest, data: Path) -> Iterator[Service]:
    """Yield the service, on a server of each API; a test that needs them asks for SERVERS' further kinds."""
    with SERVERS[request.param](f"sqlite:///{data}") as running:
        yield running


@pytest.fixture
def blocking_service(data: Path) -> Iterator[Service]:
    """Yield the service on the server of blocking code."""
    with SERVERS["server"](f"sqlite:///{data}") as running:
        yield running


@pytest.fixture(params=CALLERS)
def caller_kind(request: pytest.FixtureRequest) -> type[Caller]:
    """Return a caller of each API."""
    return CALLERS[request.param]


@pytest.fixture
def caller_of(caller_kind: type[Caller]) -> Iterator[Callable[..., Caller]]:
    """Yield what opens a channel of a lease to a target."""
    with ExitStack() as opened:

        def open_caller(lease: Any, target: str, **more: Any) -> Caller:
            caller = caller_kind(lease, target, **more)
            opened.callback(caller.close)
            return caller

        yield open_caller


@pytest.fixture
def caller(caller_of: Callable[..., Caller], lease: fencelock.Lease, service: Service) -> Caller:
    """Return a channel to the service, of a sequencer alone: nothing but a mark refuses it."""
    return caller_of(lease.sequencer, service.target)
