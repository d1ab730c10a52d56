"""What tests of both SQL servers know of a server: how it is reached, and how it spells what the tests need.

Promise: a test body that asks a dialect runs unchanged on PostgreSQL and on MySQL. Each server's own dialect is in the
folder of its name.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from fencelock import Sequencer
from fencelock.stores.registry import source_store
from tests.support.helpers import wait_until

MakeRole = Callable[..., str]


def empty(_: Any) -> None:
    """Fill a database with nothing."""


def install(url: str) -> str:
    """Install a source at an address, and return the address."""
    source_store(url).install()
    return url


def run(native: Any, statement: str, *params: object) -> list[tuple[Any, ...]]:
    """Run a statement and return the rows of its first result."""
    with native.cursor() as cursor:
        cursor.execute(statement, params or None)
        return list(cursor.fetchall()) if cursor.description else []


async def run_async(native: Any, statement: str, *params: object) -> list[tuple[Any, ...]]:
    """Run a statement on an asyncio connection and return the rows of its first result."""
    async with native.cursor() as cursor:
        await cursor.execute(statement, params or None)
        return list(await cursor.fetchall()) if cursor.description else []


class SqlDialect(ABC):
    """One SQL server of one version. A database is anything with `url`, `connect`, `rows`, `value` and `server`."""

    name: ClassVar[str]
    prefix: ClassVar[str]
    """The beginning of the names of fencelock's tables and routines."""
    call: ClassVar[str]
    """Calls a routine: followed by the routine's name and its parameters."""
    client_error: ClassVar[type[Exception]]
    """Whatever the client library raises for a statement."""
    lost_connection: ClassVar[type[Exception]]
    """What the client library raises for a connection that is gone."""
    invalid_parameter: ClassVar[type[Exception]]
    check_violation: ClassVar[type[Exception]]
    duplicate_key: ClassVar[type[Exception]]
    proxy_type: ClassVar[type[Any]]
    idle_limit: ClassVar[str]
    """Selects for how many seconds the open transaction may be idle."""
    write_after_loss: ClassVar[type[Exception]]
    """What a write in a guarded block raises after the server has ended the connection."""
    async_connection: ClassVar[type[Any]]
    """The client library's connection for asyncio."""
    async_ends: ClassVar[list[Callable[[Any], Awaitable[Any]]]]
    """The ways by which an asyncio connection ends a transaction."""
    unfenced: ClassVar[str]
    """The error text for a write that presents no token."""
    refused_resource: ClassVar[str]
    """How a refusal of a role names the resource `{}`."""
    implausible: ClassVar[str]
    """The error text for a token above the ceiling."""
    names_in_full: ClassVar[bool]
    """Whether a refusal names a resource of any length."""
    withdraw: ClassVar[str]
    """Takes back what was presented."""
    no_sequencer: ClassVar[str]
    """The code of a refusal of what is not a sequencer."""
    odd_setting: ClassVar[str]
    """Gives a session a setting that changes how the server computes."""
    lock_column: ClassVar[str]
    also_forbidden: ClassVar[dict[str, str]]
    """More statements by which an owner cannot change marks and audit."""
    keeps_itself: ClassVar[tuple[str, ...]]
    """The codes of a refusal to change marks and audit."""
    is_by_admin: ClassVar[str]
    """Whether an entry of the audit names the account of the tests."""
    wait_briefly: ClassVar[str]
    """Makes the session wait for locks as briefly as the server can."""
    commit_presented: ClassVar[str]
    """Commits a transaction that has presented."""
    now_us: ClassVar[str]
    """Reads the server's clock, in microseconds since 1970."""
    acquire_tail: ClassVar[str]
    """What the routine `acquire` is given after the mode, by a client that knows nothing of the source."""
    schema_column: ClassVar[str]
    clock_s: ClassVar[str]
    """Reads the server's clock, in seconds since 1970."""
    upsert: ClassVar[str]
    """Writes a key and its value to the table `{}`, whether the key is there or not."""
    append: ClassVar[str]
    """Writes something behind the value of every report."""
    audited: ClassVar[str]
    """Reads the tokens above one of all locks that operators have broken."""
    unreachable_url: ClassVar[str]
    too_many_clients: ClassVar[str]
    denied: ClassVar[str]
    operators_statements: ClassVar[tuple[str, ...]]
    """Statements that an account with a holder's rights may not make."""
    tables: ClassVar[str]
    """Lists what a schema of fencelock consists of, in a database that holds nothing else."""
    objects: ClassVar[tuple[str, ...]]
    """Lists all objects of a database: schemas, tables, routines, triggers."""
    need_table: ClassVar[str]
    """Creates `own_need`, without which one of fencelock's tables cannot be dropped; {} is that one's name."""
    forgo_table: ClassVar[str]
    """Drops `own_need`."""

    @property
    def hold_lock(self) -> str:
        """Holds the row of the lock called `lock`."""
        return f"SELECT 1 FROM {self.prefix}lock WHERE name = 'lock' FOR UPDATE"

    @property
    def hold_source(self) -> str:
        """Holds the row of the source."""
        return f"SELECT 1 FROM {self.prefix}source FOR UPDATE"

    # Servers and databases

    @abstractmethod
    def shared(self) -> Any:
        """Return the running server that the tests of this session share."""

    @abstractmethod
    def new_server(self) -> Any:
        """Return a server of the test's own, not started yet."""

    @abstractmethod
    def new_database(self, server: Any, name: str) -> Any:
        """Create an empty database."""

    @abstractmethod
    def fresh_database(
        self, fill: Callable[[Any], None] = empty, *, has_source: bool = False
    ) -> AbstractContextManager[Any]:
        """Have a new database on the shared server, filled by this function, and maybe with a source.

        Or a copy of a database that was filled by it.
        """

    @contextmanager
    def own_database(self) -> Iterator[Any]:
        """Have a database on a running server of the test's own."""
        with self.new_server() as server:
            yield self.new_database(server, "shop")

    @abstractmethod
    def flush(self, database: Any) -> None:
        """Have the server flush all that was committed until now."""

    @abstractmethod
    def limited_user(self, database: Any) -> str:
        """Return an account that may take locks, and for which the server keeps no connection in reserve."""

    @abstractmethod
    def accounts(self, database: Any) -> AbstractContextManager[None]:
        """Have the accounts `installer`, who may make a schema in the database, and `worker`, who may not."""

    @abstractmethod
    def roles(self, database: Any) -> AbstractContextManager[MakeRole]:
        """Yield what makes roles that may call fencelock and write the table `reports`, and have no right (G12)."""

    @abstractmethod
    def permit_worker(self, database: Any) -> None:
        """Give the account `worker` the rights of a holder, as the installer does."""

    @abstractmethod
    def permit_to_connect(self, database: Any, account: str) -> None:
        """Let an account use a database, with no right to create anything."""

    # Sessions

    @abstractmethod
    def session(self, url: str) -> AbstractContextManager[Any]:
        """Open a connection with the settings that the source has, in autocommit mode."""

    @abstractmethod
    def client(self, database: Any, level: str, **params: Any) -> AbstractContextManager[Any]:
        """Open a connection with an isolation level, in autocommit mode."""

    @abstractmethod
    def number_of(self, native: Any) -> int:
        """Return the number by which the server knows a connection."""

    @abstractmethod
    def sessions(self, database: Any) -> set[int]:
        """Return the numbers of the connections to a database, but for the one that asks."""

    @abstractmethod
    def session_ports(self, database: Any) -> dict[int, int]:
        """Return the port that each connection to a database comes from, by its number."""

    @abstractmethod
    def end_session(self, database: Any, number: int) -> None:
        """Have the server end a connection."""

    def kill(self, database: Any, native: Any) -> None:
        """Have the server end a connection, and return once it has."""
        number = self.number_of(native)
        self.end_session(database, number)
        self.wait_for_end(database, number)

    def idle_limit_s(self, native: Any) -> float:
        """Return for how long the open transaction may be idle."""
        return float(run(native, self.idle_limit)[0][0])

    def wait_for_end(self, database: Any, number: int) -> None:
        """Return once the server has ended a connection."""
        wait_until(lambda: number not in self.sessions(database))

    # Who waits inside the server

    @abstractmethod
    def blocked(self, database: Any) -> int:
        """Return how many statements wait inside the server for what another transaction holds."""

    @abstractmethod
    def is_blocked(self, database: Any, native: Any = None) -> bool:
        """Return whether a connection, or any, waits for what another transaction holds."""

    # The source

    @abstractmethod
    def acquire_late(self, native: Any, seen: Any, parameters: tuple[Any, ...], mode: str) -> str:
        """Send an acquire by hand, and return its outcome."""

    @abstractmethod
    def impatient(self, url: str) -> Any:
        """Return a client that gives up on a statement at which the server goes on."""

    @abstractmethod
    def limit_statements(self, client: Any) -> None:
        """Have the server give up a client's statements after a moment."""

    @abstractmethod
    def arrivals(self, database: Any, proxy: Any) -> int:
        """Return a number that grows when a request has come through the proxy and was done."""

    @abstractmethod
    def wait_for_abandoned(self, database: Any, number: int) -> None:
        """Return once the server has ended a connection whose client gave up on a request that has arrived since."""

    @abstractmethod
    def rows_touched(self, native: Any, database: Any) -> int:
        """Return how many rows a connection has read or written until now."""

    # The guard

    def present(self, native: Any, presented: Sequencer, *resources: str) -> None:
        """Present a token as any client does."""
        for resource in resources:
            run(native, f"{self.call}present(%s, %s)", str(presented), resource)

    @abstractmethod
    def seal_in_steps(self, native: Any, token: int) -> None:
        """Do what a seal does, and stop before its commit."""

    @abstractmethod
    def overtaken(self, level: str) -> str:
        """Return the code of a refusal to present after a wait during which a newer holder has sealed."""

    @abstractmethod
    def after_error(self, native: Any) -> None:
        """Have a transaction go on in which a statement has failed, or another one in its place."""

    @abstractmethod
    def schema_of(self, database: Any) -> str:
        """Return the schema that tables are in by default."""

    @abstractmethod
    def has_ended(self, native: Any, error: Any) -> bool:
        """Return whether an error says that the session is over, and not that a statement was refused."""

    @abstractmethod
    def code_of(self, error: BaseException) -> str:
        """Return the code of a refusal of fencelock's own: FL001."""

    @abstractmethod
    def change_rows(self, native: Any) -> None:
        """Have a connection return rows of another kind, as a user of the client library may."""

    @abstractmethod
    def guard_params(self, level: str) -> dict[str, str]:
        """Return the parameters of a URL that give a guard's transactions an isolation level."""

    @abstractmethod
    def server_level(self, level: str) -> AbstractContextManager[None]:
        """Have this level for guards where a URL cannot say it: as the server's default."""

    @abstractmethod
    def level_of(self, native: Any) -> str:
        """Return the isolation level of a transaction."""

    @abstractmethod
    def protected_tables(self, database: Any) -> list[Any]:
        """Return what of a database is protected."""
