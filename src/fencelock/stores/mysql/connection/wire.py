"""Statements to MySQL and their results: values as literals, and the rows of each result of a routine.

Promise: every result is read to its end, so that the connection is ready for the next statement; an exception leaves it
in doubt, unless the server itself reported that the statement failed. `results` uses the client library's own query, so
rows are tuples whichever cursor class the user has set, and what a block's connection refuses its user is not refused.
A literal contains only digits: texts are hexadecimal, so no mode, character set or client can misread a quote, a
backslash or a percent sign.
"""

import re
from collections.abc import Mapping
from typing import Any

import aiomysql
import pymysql

from fencelock.stores.mysql.connection.client import AsyncMySQLConnection, MySQLConnection

Row = tuple[Any, ...]
Rows = list[Row]
Value = str | bytes | int | None
_ENDS = re.compile(
    r"\s*(?:(commit|begin(?!\s+not)|start\s+transaction|rollback(?!(?:\s+work)?\s+to)|xa)|set\b.*\b(autocommit))\b",
    re.IGNORECASE | re.DOTALL,
)


def results(native: MySQLConnection, statement: str) -> list[Rows]:
    """Run a statement, and return the rows of each result that has columns."""
    found: list[Rows] = []
    pymysql.Connection.query(native, statement)
    while _take_result(native, found):
        native.next_result()
    return found


async def results_async(native: AsyncMySQLConnection, statement: str) -> list[Rows]:
    """Run a statement on the running loop, and return the rows of each result that has columns."""
    found: list[Rows] = []
    await aiomysql.Connection.query(native, statement)
    while _take_result(native, found):
        await native.next_result()
    return found


def _take_result(native: MySQLConnection | AsyncMySQLConnection, found: list[Rows]) -> bool:
    """Add the rows of the current result; return whether another one follows."""
    result = native._result  # noqa: SLF001 - neither client has a public attribute for it
    if result is not None and result.field_count:
        found.append([tuple(row) for row in result.rows])
    return result is not None and bool(result.has_next)


def row_of(fields: Any) -> Row:
    """Return a row as a tuple, whichever cursor class read it."""
    return tuple(fields.values()) if isinstance(fields, dict) else tuple(fields)


def decode_text(value: Any) -> str:
    """Return a value as text; bytes that are not text, such as an observed program may send, are escaped."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode(errors="backslashreplace")
    return str(value)


def literal(value: Value) -> str:
    """Return one value as a literal: NULL, a number, or hexadecimal digits."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(int(value))
    return f"x'{(value.encode() if isinstance(value, str) else value).hex()}'"


def literals(values: Mapping[str, Value]) -> dict[str, str]:
    """Return each value as a literal."""
    return {name: literal(value) for name, value in values.items()}


def quoted(identifier: str) -> str:
    """Return an identifier in backticks, which every SQL mode accepts."""
    return "`" + identifier.replace("`", "``") + "`"


def ending_word(statement: str | bytes) -> str | None:
    """Return the word by which a statement ends the open transaction, in capitals; None if it ends none."""
    text = statement.decode(errors="replace") if isinstance(statement, (bytes, bytearray)) else str(statement)
    found = _ENDS.match(text)
    return None if found is None else found[found.lastindex or 0].upper()
