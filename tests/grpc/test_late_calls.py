"""A call that stands still in its server, behind all checks in front of its handler, until the next holder has read."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

import fencelock
from fencelock.grpc import sequencer
from fencelock.grpc.statuses import decode_details
from tests.grpc.services import Handlers, Service, bodies, path_of, served, served_async, two_holders
from tests.support.helpers import DEADLINE_S, wait_until


class Replaced(Handlers):
    """A service whose method `Put` replaces what is there; A's call stands still before its handler begins."""

    def put(self, request: bytes, context: Any) -> bytes:
        self.seen.append(("Put", request))
        if request == b"A":
            assert self.may_end.wait(DEADLINE_S)
        self.replace(request.decode(), context)
        return b"done"

    def replace(self, body: str, _context: Any) -> None:
        with self.guard.transaction(sequencer()) as connection:
            connection.execute("DELETE FROM reports")
            connection.execute("INSERT INTO reports VALUES (?)", (body,))


class Compared(Replaced):
    """The negative control: a gate compares the token, and then the handler runs. Never copy this one."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}")
        self._path = path
        self._highest = 0

    def put(self, request: bytes, context: Any) -> bytes:
        token = fencelock.Sequencer.parse(dict(context.invocation_metadata())["fencing-token"].strip('"')).token
        if token < self._highest:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "stale")
        self._highest = token
        return super().put(request, context)

    def replace(self, body: str, _context: Any) -> None:
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute("DELETE FROM reports")
            connection.execute("INSERT INTO reports VALUES (?)", (body,))


def call_late(service: Service, source: fencelock.Source, data: Path) -> tuple[grpc.Call, list[str]]:
    """Have A's call stand still until B has read, and B write what it computed; return A's call, and what is left."""
    old, new = two_holders(source)
    with grpc.insecure_channel(service.target) as channel, ThreadPoolExecutor(1) as pool:

        def put(holder: fencelock.Sequencer, body: bytes) -> Any:
            token = ("fencing-token", f'"{holder}"')
            call = channel.unary_unary(path_of("Put")).with_call
            try:
                return call(body, metadata=[token], timeout=DEADLINE_S)[1]
            except grpc.RpcError as error:
                return error

        late = pool.submit(put, old, b"A")
        wait_until(lambda: service.handlers.seen)
        put(new, b"B")
        service.handlers.may_end.set()
        told = late.result()
        put(new, b"B again")
        return told, bodies(data)


@pytest.mark.parametrize("serve", [served, served_async])
def test_a_call_that_comes_to_its_guard_behind_the_next_holder_is_refused(
    serve: Any, source: fencelock.Source, data: Path
):
    with serve(Replaced(f"sqlite:///{data}")) as service:
        told, left = call_late(service, source, data)
    info = decode_details(told.trailing_metadata())
    assert info is not None
    assert (told.code(), info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "STALE_TOKEN")
    assert left == ["B again"]


def test_a_gate_that_compares_and_then_runs_the_handler_loses_what_it_has_acknowledged(
    source: fencelock.Source, data: Path
):
    with served(Compared(data), interceptors=()) as service:
        told, left = call_late(service, source, data)
    assert (told.code(), left) == (grpc.StatusCode.OK, ["B again"]), "A was told that its write is there"
