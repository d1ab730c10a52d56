"""How the stores that hold tables differ: the spelling of a few words.

Promise: a statement has `{counters}` and `{list}` for a resource's two tables, and `{}` for each parameter; a parameter
never becomes part of a statement's text.
"""

from contextlib import closing
from dataclasses import dataclass
from typing import Any

COUNTERS, LIST = "counters", "list"
"""What the names of a resource's two tables end with."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of store. A resource's tables have names that begin with its `stem`.

    `refusal` is a part of what the store says to a write that presents no token, SQLSTATE included; `finds` asks for a
    table by its name.
    """

    parameter: str
    serial: str
    refusal: str
    finds: str

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
        """Return whether one of a resource's two tables is there."""
        return any(self.rows(connection, self.finds, stem, table) for table in self.tables(stem))


_SQLITE = Dialect(
    parameter="?",
    serial="INTEGER PRIMARY KEY AUTOINCREMENT",
    refusal="fencelock:",
    finds="SELECT 1 FROM sqlite_master WHERE name = {}",
)
_POSTGRES = Dialect(
    parameter="%s",
    serial="bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    refusal="FL001",
    finds="SELECT 1 WHERE to_regclass({}::text) IS NOT NULL",
)
_MYSQL = Dialect(
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
    """Return the dialect of the store at the URL, which holds tables."""
    return DIALECTS[url.partition("://")[0].lower()]
