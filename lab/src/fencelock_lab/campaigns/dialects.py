"""How the stores that hold tables differ: their connections, and the spelling of a few words.

Promise: a statement has `{counters}` and `{list}` for a resource's two tables, and `{}` for each parameter; a parameter
never becomes part of a statement's text. The connections here know no guard.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

COUNTERS, LIST = "counters", "list"
"""What the names of a resource's two tables end with."""
REQUEST_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of store. A resource's tables have names that begin with its `stem`.

    `refusal` is a part of what the store says to a write that presents no token; `finds` asks for a table by its name.
    """

    connect: Callable[[str], Any]
    parameter: str
    serial: str
    refusal: str
    finds: str

    @contextmanager
    def plain(self, url: str) -> Iterator[Any]:
        """Open a connection in autocommit mode that presents nothing."""
        with closing(self.connect(url)) as connection:
            yield connection

    def tables(self, stem: str) -> tuple[str, str]:
        """Return the names of a resource's tables: its counters and its list."""
        return f"{stem}_{COUNTERS}", f"{stem}_{LIST}"

    def rows(self, connection: Any, statement: str, stem: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement about a resource's tables, and return its rows."""
        counters, listed = self.tables(stem)
        spelt = statement.replace("{counters}", counters).replace("{list}", listed).replace("{}", self.parameter)
        with closing(connection.cursor()) as cursor:
            cursor.execute(spelt, parameters)
            return list(cursor.fetchall()) if cursor.description else []

    def create(self, connection: Any, stem: str) -> None:
        """Make a resource's two tables."""
        self.rows(connection, "CREATE TABLE {counters} (id INTEGER PRIMARY KEY, value BIGINT NOT NULL)", stem)
        columns = "name VARCHAR(64) NOT NULL, position BIGINT NOT NULL, token BIGINT NOT NULL"
        self.rows(connection, f"CREATE TABLE {{list}} (serial {self.serial}, {columns})", stem)

    def drop(self, connection: Any, stem: str) -> None:
        """Take a resource's two tables away, as far as they were made."""
        self.rows(connection, "DROP TABLE IF EXISTS {counters}", stem)
        self.rows(connection, "DROP TABLE IF EXISTS {list}", stem)

    def has_tables(self, connection: Any, stem: str) -> bool:
        """Tell whether one of a resource's two tables is there."""
        return any(self.rows(connection, self.finds, stem, table) for table in self.tables(stem))


def _sqlite(url: str) -> Any:
    import sqlite3

    from fencelock.stores.sqlite.connection.database import path_of

    return sqlite3.connect(path_of(url), timeout=REQUEST_TIMEOUT_S, isolation_level=None)


def _postgres(url: str) -> Any:
    from fencelock.stores.postgres.connection.client import open_connection
    from fencelock.stores.postgres.connection.url import parse_url

    return open_connection(parse_url(url), REQUEST_TIMEOUT_S)


def _mysql(url: str) -> Any:
    from fencelock.stores.mysql.connection.client import open_connection
    from fencelock.stores.mysql.connection.url import parse_url

    return open_connection(parse_url(url), REQUEST_TIMEOUT_S)


_SQLITE = Dialect(
    connect=_sqlite,
    parameter="?",
    serial="INTEGER PRIMARY KEY AUTOINCREMENT",
    refusal="fencelock:",
    finds="SELECT 1 FROM sqlite_master WHERE name = {}",
)
_POSTGRES = Dialect(
    connect=_postgres,
    parameter="%s",
    serial="bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    refusal="holder of its lock",
    finds="SELECT 1 WHERE to_regclass({}::text) IS NOT NULL",
)
_MYSQL = Dialect(
    connect=_mysql,
    parameter="%s",
    serial="BIGINT AUTO_INCREMENT PRIMARY KEY",
    refusal="FL001",
    finds="SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = {}",
)
DIALECTS: dict[str, Dialect] = {
    "mariadb": _MYSQL,
    "mysql": _MYSQL,
    "postgres": _POSTGRES,
    "postgresql": _POSTGRES,
    "sqlite": _SQLITE,
}


def dialect_of(url: str) -> Dialect:
    """Return how to speak to the store at the URL, which holds tables."""
    return DIALECTS[url.partition("://")[0].lower()]
