"""One round trip over psycopg's libpq connection, without a cursor: several statements at once, or a prepared one.

Promise: statements that are sent together run one after the other in the connection's transaction, and the server skips
the rest after the first error. Errors are psycopg's own. Parameters travel apart from the text, so that neither
pg_stat_activity nor the log of a statement that failed shows a claim. A statement that is not prepared leaves nothing
in the session, so that a pooler may stand in between. Never adapts a value of the user's.
"""

import re
from collections.abc import Generator, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from psycopg import errors, generators, pq, waiting

Row = tuple[Any, ...]
Result = TypeVar("Result")
Trip = Generator[waiting.Wait, waiting.Ready, Result]
"""A generator for the `wait` method of psycopg's connections."""
_NO_NAMES: Mapping[str, bytes] = MappingProxyType({})


class Statement(NamedTuple):
    """A statement, and the values of its numbered parameters."""

    text: str
    parameters: Sequence[Any] = ()


class PostgresAnswer(NamedTuple):
    """The server's answer to one statement: its rows, and its command tag (`COMMIT`, `ROLLBACK`, …)."""

    rows: list[Row]
    tag: str


def exchange(
    connection: pq.abc.PGconn, statements: Sequence[Statement], encoding: str, names: Mapping[str, bytes] = _NO_NAMES
) -> Trip[list[PostgresAnswer]]:
    """Send all the statements, the prepared ones by name, and return their answers."""
    # By hand, because psycopg's own pipeline mode takes 0.2 ms more for each trip.
    connection.enter_pipeline_mode()
    for text, parameters in statements:
        values = [_encode(value, encoding) for value in parameters]
        if name := names.get(text):
            connection.send_query_prepared(name, values)
        else:
            connection.send_query_params(text.encode(encoding), values)
    connection.pipeline_sync()
    yield from _flush(connection)
    results = yield from _fetch_results(connection)
    # Before an error is raised: ROLLBACK goes over this connection next.
    connection.exit_pipeline_mode()
    for result in results:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result, encoding)
    return [
        PostgresAnswer(_rows(result, encoding), (result.command_status or b"").decode(encoding)) for result in results
    ]


def prepare(connection: pq.abc.PGconn, text: str, names: dict[str, bytes], encoding: str) -> Trip[bytes]:
    """Prepare a statement under a new name; its parameters are numbered, or written as %s."""
    numbers = count(1)
    numbered = re.sub("%s", lambda _: f"${next(numbers)}", text)
    name = b"fencelock_%d" % len(names)
    connection.send_prepare(name, numbered.encode(encoding))
    yield from _one_result(connection, encoding)
    names[text] = name
    return name


def run_prepared(connection: pq.abc.PGconn, name: bytes, parameters: Sequence[Any], encoding: str) -> Trip[list[Row]]:
    """Run a prepared statement, and return its rows."""
    connection.send_query_prepared(name, [_encode(value, encoding) for value in parameters])
    return _rows((yield from _one_result(connection, encoding)), encoding)


def _one_result(connection: pq.abc.PGconn, encoding: str) -> Trip[pq.abc.PGresult]:
    results: list[pq.abc.PGresult] = yield from generators.execute(connection)
    (result,) = results
    if result.status == pq.ExecStatus.FATAL_ERROR:
        raise errors.error_from_result(result, encoding)
    return result


def _flush(connection: pq.abc.PGconn) -> Trip[None]:
    while connection.flush():
        # The server stops reading once nobody takes its answers, so they are taken in while the rest is sent.
        if (yield waiting.Wait.RW) & waiting.Ready.R:
            connection.consume_input()


def _fetch_results(connection: pq.abc.PGconn) -> Trip[list[pq.abc.PGresult]]:
    """Return one result for each statement; after an error the rest are PIPELINE_ABORTED."""
    results: list[pq.abc.PGresult] = []
    while True:
        result = yield from generators.fetch(connection)
        if result is None:
            # None lies between the results of two statements; on a lost connection nothing else would ever come.
            if connection.status != pq.ConnStatus.OK:
                return results
            continue
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)


def _rows(result: pq.abc.PGresult, encoding: str) -> list[Row]:
    decoders = [_DECODERS.get(result.ftype(column), _text) for column in range(result.nfields)]
    return [
        tuple(
            [
                None if (value := result.get_value(row, column)) is None else decode(value, encoding)
                for column, decode in enumerate(decoders)
            ]
        )
        for row in range(result.ntuples)
    ]


def _encode(value: Any, encoding: str) -> bytes | None:
    """Return a value in libpq's text format."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return _hex(value).encode()
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, (str, int)):
        return str(value).encode(encoding)
    return ("{" + ",".join(map(_element, value)) + "}").encode(encoding)


def _hex(value: bytes) -> str:
    return "\\x" + value.hex()


def _element(value: str | bytes) -> str:
    text = _hex(value) if isinstance(value, bytes) else value
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _text(value: bytes, encoding: str) -> str:
    return value.decode(encoding)


def _number(value: bytes, _: str) -> int:
    return int(value)


def _boolean(value: bytes, _: str) -> bool:
    return value == b"t"


def _bytes(value: bytes, _: str) -> bytes:
    return bytes(pq.Escaping().unescape_bytea(value))  # works for both settings of bytea_output


def _numbers(value: bytes, _: str) -> list[int]:
    return [int(number) for number in value[1:-1].split(b",") if number]


_DECODERS = {16: _boolean, 17: _bytes, 20: _number, 23: _number, 26: _number, 1007: _numbers}
"""How to decode a column, by the OID of its type; any other type is text."""
