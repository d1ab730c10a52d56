"""One statement over a connection of a MySQL client, and the rows of each of its results: a routine may have several.

Promise: every result is read to its end, so that the connection is ready for the next statement; an exception leaves it
in doubt, unless the server itself said that the statement failed. The connection's own query is used, not a cursor:
whatever kind of cursor its user wants, rows come as tuples.
"""

from typing import Any

from fencelock.stores.mysql.connection.client import AsyncMySQLConnection, MySQLConnection

Row = tuple[Any, ...]
Rows = list[Row]


def results(native: MySQLConnection, statement: str) -> list[Rows]:
    """Run a statement, and return the rows of each result that has any columns."""
    found: list[Rows] = []
    native.query(statement)
    while _take(native, found):
        native.next_result()
    return found


async def results_async(native: AsyncMySQLConnection, statement: str) -> list[Rows]:
    """The same for an event loop."""
    found: list[Rows] = []
    await native.query(statement)
    while _take(native, found):
        await native.next_result()
    return found


def _take(native: Any, found: list[Rows]) -> bool:
    """Add the rows of the result that was read; tell whether there is another."""
    result = native._result  # noqa: SLF001 - neither client shows it in another way
    if result is not None and result.field_count:
        found.append([tuple(row) for row in result.rows])
    return result is not None and bool(result.has_next)


def row_of(fields: Any) -> Row:
    """Return a row as a tuple, whichever kind of cursor read it."""
    return tuple(fields.values()) if isinstance(fields, dict) else tuple(fields)
