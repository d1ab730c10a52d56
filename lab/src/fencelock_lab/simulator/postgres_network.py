"""The traffic between a process and a simulated PostgreSQL source: each statement of the client code is a message.

Promise: the library's `PostgresSourceProtocol`, `SourceIdentity` and `PostgresSourceCodec` choose the statements and
read the answers, in their own process, which may freeze or die between two statements. Each task has a connection; it
gets a new one after an error and after the server changes. Behind a pooler a statement reaches the server that is
present on arrival. The server itself sends the notifications, and they may be lost.
"""

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, NamedTuple

from fencelock.errors import FencelockError
from fencelock.protocol import source_requests as ask
from fencelock.stores.memory.reference_model import ReferenceModel
from fencelock.stores.postgres.source.codec import SQL, PostgresSourceCodec
from fencelock.stores.postgres.source.store import PostgresSource
from fencelock.stores.sql.source import SourceView
from fencelock_lab.simulator.kernel import PENDING, SimulatedProcess, Task
from fencelock_lab.simulator.network import SimulatedNetwork
from fencelock_lab.simulator.postgres_database import CHANNEL

POOLER_ID = 0
"""A process id that no backend has."""
Body = Generator[Any, Any, Any]
_TO_SOURCE = frozenset(ReferenceModel.ANSWERS)


class StatementMessage(NamedTuple):
    """A statement in flight, for a request, over a connection to one server, or to the present server if it is None."""

    statement: str
    parameters: Any
    request: Any
    server: int | None

    @property
    def is_answer(self) -> bool:
        """Whether its rows answer the request, rather than prepare it."""
        return type(self.request) is ask.ReadSource or self.statement not in {SQL.describe, SQL.settle_in}

    def decode(self, rows: Any) -> Any:
        """Decode the rows into a reply, without a client."""
        if type(self.request) is ask.ReadSource:
            return None
        codec = PostgresSourceCodec(SourceView(None, 0, int, int), CHANNEL)
        return codec.encode(self.request).decode(rows)


def store_at(url: str) -> PostgresSource:
    """Return one process's view of the source; all processes listen on one channel."""
    store = PostgresSource(url)
    listener: Any = SimpleNamespace(name=CHANNEL)
    store.listener = listener
    return store


class PostgresClient:
    """The client state of one task: its process's view of the source, and its own connection."""

    def __init__(self, store: PostgresSource, source: Any) -> None:
        self._store = store
        self._source = source
        self._connect()

    def _connect(self) -> None:
        self._protocol = self._store.protocol()
        self._server = self._source.server
        backend_id = POOLER_ID if self._source.is_pooled else self._source.database.native.info.backend_pid
        self._protocol.attach(SimpleNamespace(info=SimpleNamespace(backend_pid=backend_id)))

    def go_on(self, body: Body, request: Any) -> Body:
        """Continue a task's body after it has yielded `request`, and send the statements of its source requests."""
        while True:
            try:
                value = (yield from self.answer(request)) if type(request) in _TO_SOURCE else (yield request)
                step: Any = body.send
            except FencelockError as error:
                step, value = body.throw, error
            try:
                request = step(value)
            except StopIteration:
                return

    def answer(self, request: Any) -> Body:
        """Send the statements of a request, and return the reply."""
        if not self._source.is_pooled and self._server != self._source.server:
            self._connect()  # `is_alive` has found that the server ended the old connection.
        operations = self._protocol.operations(request)
        server = None if self._source.is_pooled else self._server
        try:
            message = next(operations)
            while True:
                rows = yield StatementMessage(*message, request, server)
                message = operations.send(rows)
        except StopIteration as done:
            return done.value
        except FencelockError:
            self._connect()  # The pool closes a connection after an error.
            raise


class PostgresNetwork(SimulatedNetwork):
    """Carries statements instead of requests."""

    source: Any

    def __init__(self, kernel: Any, source: Any) -> None:
        super().__init__(kernel, source)
        self._stores: dict[SimulatedProcess, PostgresSource] = {}

    def answer(self, task: Task, request: Any) -> Any:
        """Return the reply to a local request; send any other request and answer it later."""
        if type(request) is StatementMessage:
            if request.is_answer:
                self._send(
                    task, lambda: self._execute(request), doubled=lambda: self.source.oracle.doubled(request.request)
                )
            else:
                self._deliver_setup(task, request)
            return PENDING
        return super().answer(task, request)

    def _to_source(self, task: Task, request: Any) -> None:
        """Connect a task at its first request to a source: its client code then handles all its requests."""
        self.kernel.trace(task.process.name, "connects, to ask {}", request)
        client = PostgresClient(self._store_of(task.process), self.source)
        task.put_between(client.go_on(task.body, request))

    def _deliver_setup(self, task: Task, message: StatementMessage) -> None:
        """Deliver a statement that changes nothing, perhaps late. Losing these as well would stop nearly all work."""
        ticket = task.ticket
        self.kernel.after(self._delay(), lambda: task.reply(ticket, self._delay(), self._execute(message)))

    def _store_of(self, process: SimulatedProcess) -> PostgresSource:
        if process not in self._stores:
            self._stores[process] = store_at(self.source.database.url)
        return self._stores[process]

    def _execute(self, message: StatementMessage) -> Any:
        answer = self.source.execute(message)
        for digest in self.source.database.take_notified():
            if not self.kernel.chance(self.odds.notification_lost):
                self.kernel.after(self._delay(), self.notify, digest)
        return answer
