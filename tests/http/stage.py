"""The stage of the attacks: a list of names at the service, and holders that read it and write what they computed.

A test drives the holders one after the other, and compares what each was told with what is there in the end.
"""

import itertools
import json
import os
import signal
import sqlite3
import textwrap
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Self

import httpx2

import fencelock
import fencelock.http
from fencelock_lab.servers.server import HOST
from tests.http.attacked_servers import HTTPService
from tests.http.http_proxy import HTTPProxy
from tests.process.actors import Actor
from tests.support.guards import ask
from tests.support.helpers import DEADLINE_S, is_stopped, wait_until

LOCK, RESOURCE = "nightly-report", "names"
FENCED, COMPARED = "fenced", "compared"
"""The service's two handlers: the mark in the write's own transaction, and a gate in front of the handler."""
OK = "ok"
_numbers = itertools.count(1)


HOLDER = """
import httpx2, fencelock.http

lock = source.lock("nightly-report", ttl=30.0)
lease = lock.acquire()
plain = httpx2.Client(base_url="{url}", timeout=30.0, headers={{"Connection": "close"}}, trust_env=False)
# The sequencer, as code has it that asks no lease: the service alone judges it.
api = fencelock.http.client(lease.sequencer, plain)

def get():
    return api.get("{path}").json()

def put(*names, **fields):
    try:
        api.put("{path}", json=names, headers=fields)
    except fencelock.FencelockError as error:
        return type(error).__name__
    return "ok"

{script}
"""
"""What a holder that is a process of its own can do; see `tests/process/actors.py`."""


class Holder:
    """The process of one tenure, as the service sees it; its client is the library's."""

    def __init__(self, client: httpx2.Client, path: str, proof: fencelock.Sequencer) -> None:
        self.proof = proof
        self._client = client
        self._path = path
        self.worker = 0
        self.key: str | None = None
        """Of the last write: what a retry sends again."""

    def get(self) -> list[str]:
        """Return the names that are there."""
        answer = self._client.get(self._path)
        self.worker = int(answer.headers["worker"])
        names: list[str] = answer.json()
        return names

    def put(self, *names: str, **fields: str) -> str:
        """Write names, and return what was told: ok, played back, or the error's class."""
        try:
            answer = self._client.put(self._path, json=names, headers=fields)
        except fencelock.OutcomeUnknownError as error:
            self.key = error.idempotency_key
            return type(error).__name__
        except fencelock.FencelockError as error:
            return type(error).__name__
        self.worker = int(answer.headers.get("worker", 0))
        return "played back" if "fencing-replayed" in answer.headers else OK


class Stage:
    """One case of the service, with a file and a source of its own. A context manager."""

    def __init__(self, service: HTTPService, handler: str) -> None:
        self.service = service
        case = f"case-{next(_numbers)}"
        self.path = f"/{handler}/{case}"
        self.file = service.folder / f"{case}.db"
        self._make_file(handler)
        self._locks = service.folder / f"{case}-locks.db"
        self._source = fencelock.connect(f"sqlite:///{self._locks}")
        self._open = ExitStack()
        self._threads = self._open.enter_context(ThreadPoolExecutor())

    def _make_file(self, handler: str) -> None:
        with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = wal")
            connection.execute("CREATE TABLE names (names TEXT, writes INTEGER)")
            connection.execute("INSERT INTO names VALUES ('[]', 0)")
        if handler == FENCED:
            fencelock.guard(f"sqlite:///{self.file}", resource=RESOURCE, lock=LOCK).protect("names")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.service.workers():
            os.kill(worker, signal.SIGCONT)
        self._open.close()
        self._source.close()

    # --- who holds the lock -------------------------------------------------------------------------------------------
    def holder(self, proxy: HTTPProxy | None = None) -> Holder:
        """Return the next tenure's holder, who shows its sequencer alone: its lease is over, and it does not know."""
        with self._source.lock(LOCK) as lease:
            port = self.service.port if proxy is None else proxy.port
            return Holder(fencelock.http.client(lease.sequencer, self.plain_client(port)), self.path, lease.sequencer)

    def plain_client(self, port: int) -> httpx2.Client:
        """Return a client that knows nothing of fencing. Each request has a connection: any worker may answer it."""
        made = httpx2.Client(
            base_url=f"http://{HOST}:{port}", timeout=DEADLINE_S, headers={"Connection": "close"}, trust_env=False
        )
        self._open.callback(made.close)
        return made

    def take_over(self) -> Holder:
        """Return the next holder while a process that holds the lock stands still: as if its lease had expired."""
        self._source.break_lock(LOCK, reason="as if it had expired")
        return self.holder()

    def process(self, script: str) -> Actor:
        """Start a process that holds the lock; see HOLDER."""
        url = f"http://{HOST}:{self.service.port}"
        actor = Actor(self._locks, HOLDER.format(url=url, path=self.path, script=textwrap.dedent(script)))
        self._open.callback(actor.close)
        return actor

    # --- what happens -------------------------------------------------------------------------------------------------
    def begin(self, holder: Holder, *names: str, **fields: str) -> "Future[str]":
        """Have a holder write in a thread of its own."""
        return self._threads.submit(holder.put, *names, **fields)

    def begin_reading(self, holder: Holder) -> "Future[list[str]]":
        """Have a holder read in a thread of its own, again and again while it is told that nothing was done."""

        def read() -> list[list[str]]:
            try:
                return [holder.get()]
            except fencelock.SourceUnavailableError:
                return []

        return self._threads.submit(lambda: wait_until(read)[0])

    def frozen(self) -> int:
        """Return the worker that has frozen itself, once it has."""
        return wait_until(lambda: next((pid for pid in self.service.workers() if is_stopped(pid)), 0))

    def proxy(self) -> HTTPProxy:
        """Return a proxy before the service."""
        return self._open.enter_context(HTTPProxy(self.service.port))

    def names(self) -> list[str]:
        """Return what is there."""
        found: list[str] = json.loads(ask(self.file, "SELECT names FROM names")[0][0])
        return found

    def writes(self) -> int:
        """Return how often a write was applied."""
        count: int = ask(self.file, "SELECT writes FROM names")[0][0]
        return count

    @contextmanager
    def failover(self) -> Iterator[None]:
        """At the end of the block the file, its mark included, goes back to what it was at the beginning."""
        with closing(sqlite3.connect(":memory:")) as standby:
            with closing(sqlite3.connect(self.file)) as leader:
                leader.backup(standby)
            yield
            with closing(sqlite3.connect(self.file)) as leader:
                standby.backup(leader)


def thaw(worker: int) -> None:
    """Let a worker go on."""
    os.kill(worker, signal.SIGCONT)
