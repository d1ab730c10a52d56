"""Several statements in one round trip: sent together, answered together, over psycopg's own connection.

Promise: the statements run one after the other in the connection's transaction, and after the first error none of the
rest; that error is raised as psycopg raises it. Parameters travel beside the text, never in it, so that a claim stands
in no server's log; nothing is prepared, so that a pooler may stand between. Never: a value of the user's adapted here.
"""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from psycopg import errors, generators, pq, waiting

Row = tuple[Any, ...]


class Statement(NamedTuple):
    """A statement, and the values of its numbered parameters."""

    text: str
    parameters: Sequence[Any] = ()


class Answer(NamedTuple):
    """What the server said to one statement: rows, and its own word for what it did."""

    rows: list[Row]
    tag: str


def exchange(
    connection: pq.abc.PGconn, statements: Sequence[Statement], encoding: str
) -> Generator[waiting.Wait, waiting.Ready, list[Answer]]:
    """Send the statements in one go, and return their answers; for `wait` of psycopg's connections."""
    connection.enter_pipeline_mode()
    for text, parameters in statements:
        connection.send_query_params(text.encode(encoding), [_sent(value, encoding) for value in parameters])
    connection.pipeline_sync()
    yield from _flushed(connection)
    results = yield from _results(connection)
    connection.exit_pipeline_mode()
    for result in results:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result, encoding)
    return [_answer(result, encoding) for result in results]


def _flushed(connection: pq.abc.PGconn) -> Generator[waiting.Wait, waiting.Ready, None]:
    while connection.flush():
        if (yield waiting.Wait.RW) & waiting.Ready.R:
            connection.consume_input()


def _results(connection: pq.abc.PGconn) -> Generator[waiting.Wait, waiting.Ready, list[pq.abc.PGresult]]:
    """Return one result for each statement; those after an error say that they were left out."""
    results: list[pq.abc.PGresult] = []
    while True:
        result = yield from generators.fetch(connection)
        if result is None:
            if connection.status != pq.ConnStatus.OK:
                return results
            continue
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)


def _answer(result: pq.abc.PGresult, encoding: str) -> Answer:
    columns = [_READERS.get(result.ftype(column), _text) for column in range(result.nfields)]
    rows = []
    for row in range(result.ntuples):
        values = (result.get_value(row, column) for column in range(len(columns)))
        rows.append(
            tuple(None if value is None else read(value, encoding) for read, value in zip(columns, values, strict=True))
        )
    return Answer(rows, (result.command_status or b"").decode(encoding))


def _sent(value: Any, encoding: str) -> bytes | None:
    """Return a value as libpq's text format has it."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, (str, int)):
        return str(value).encode(encoding)
    return ("{" + ",".join(map(_element, value)) + "}").encode(encoding)


def _element(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _text(value: bytes, encoding: str) -> str:
    return value.decode(encoding)


def _number(value: bytes, _: str) -> int:
    return int(value)


def _boolean(value: bytes, _: str) -> bool:
    return value == b"t"


def _bytes(value: bytes, _: str) -> bytes:
    return bytes.fromhex(value[2:].decode())


def _numbers(value: bytes, _: str) -> list[int]:
    return [int(number) for number in value[1:-1].split(b",") if number]


_READERS = {16: _boolean, 17: _bytes, 20: _number, 23: _number, 26: _number, 1007: _numbers}
"""How a column's text is read, by the server's number for its type; any other is text."""
