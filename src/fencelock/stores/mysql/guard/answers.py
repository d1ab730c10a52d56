"""Decodes the rows with which a MySQL guard's routines answer: marks, observations, and resources not admitted.

Promise: pure; any client's types are understood, as `decode_text` does.
"""

from collections.abc import Iterable
from typing import Any

import pymysql
from pymysql.constants import CR

from fencelock.model import Mark
from fencelock.protocol import guard_requests as ask
from fencelock.stores.mysql.connection.wire import Row, Rows, decode_text


def other_reply_error() -> pymysql.OperationalError:
    """Return the error for a reply that is not this request's.

    A driver that was interrupted before a reply takes it for the reply to its next statement.
    """
    return pymysql.OperationalError(
        CR.CR_COMMANDS_OUT_OF_SYNC,
        "the connection gave the reply to an earlier statement, which was interrupted: use another one",
    )


def other_resources(answers: list[Rows]) -> tuple[str, ...]:
    """Return the resources that were not admitted, if there are any."""
    text = decode_text(answers[0][0][0]) if answers else ""
    return tuple(bytes.fromhex(one).decode() for one in text.split(",") if one)


def marks_in(results: Iterable[Rows]) -> dict[str, Mark]:
    """Return marks by their resources; a row without a lock is not a mark yet."""
    marks = {}
    for rows in results:
        for resource, lock, token, source_id, history_id, digest, is_closed in rows:
            if lock is not None:
                source, history, text = map(text_or_none, (source_id, history_id, digest))
                name = decode_text(resource)
                marks[name] = Mark(name, decode_text(lock), int(token), source, history, text, bool(is_closed))
    return marks


def decode_observation(row: Row) -> ask.Observation:
    """Return what observe mode has counted, from a row."""
    resource, table, kind, times, first_at, last_at, account, program = row
    user, _, host = decode_text(account).rpartition("@")
    return ask.Observation(
        decode_text(resource),
        decode_text(table),
        decode_text(kind),
        int(times),
        decode_text(first_at),
        decode_text(last_at),
        user,
        decode_text(program),
        host,
    )


def text_or_none(value: Any) -> str | None:
    """Return a text; None for NULL."""
    return None if value is None else decode_text(value)
