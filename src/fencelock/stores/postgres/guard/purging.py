"""Encodes the requests to a PostgreSQL guard about purging marks and about floors, and decodes rows of marks.

Promise: as for `codec.py`, whose codec of the guard's own connection derives from this one.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, ClassVar

from fencelock.model import Mark
from fencelock.protocol import guard_requests as ask
from fencelock.stores.postgres.connection.wire import Row, Statement
from fencelock.stores.postgres.guard.rights import SQL, PostgresRightsCodec, Trips, entry_row
from fencelock.stores.sql.guard import check_guard_schema

BRIEF_MS = 5_000
"""The idle limit of the guard's own transaction: a process that freezes inside it must not block the marks."""
WHICH_SCHEMA = Statement(SQL.read_schema_number)


class PostgresPurgingCodec(PostgresRightsCodec):
    """The requests about old marks and floors."""

    def _find_old_marks(self, request: ask.FindOldMarks) -> Trips:
        answers = yield (WHICH_SCHEMA, Statement(SQL.find_old_marks, request))
        check_guard_schema(answers[0].rows)
        return tuple(marks_in(answers[-1].rows).values())

    def _purge_marks(self, request: ask.PurgeMarks) -> Trips:
        marks = json.dumps([asdict(mark) for mark in request.marks], ensure_ascii=False)
        return (yield from self._write(SQL.purge_marks, marks, *request.floor, *entry_row(request.entry)))

    def _set_floor(self, request: ask.SetFloor) -> Trips:
        yield from self._write(SQL.set_floor, *request.floor, *entry_row(request.entry))

    def _write(self, statement: str, *parameters: Any) -> Trips:
        """Write in the brief transaction, which locks marks or a floor, and return the first value of the answer."""
        answers = yield self._flush(Statement(SQL.limit_idling, (BRIEF_MS,)), Statement(statement, parameters))
        check_guard_schema(answers[1].rows)
        return answers[-1].rows[0][0]

    ENCODERS: ClassVar = {
        **PostgresRightsCodec.ENCODERS,
        ask.FindOldMarks: _find_old_marks,
        ask.PurgeMarks: _purge_marks,
        ask.SetFloor: _set_floor,
    }


def marks_in(rows: Iterable[Row]) -> dict[str, Mark]:
    """Return marks by their resources."""
    return {
        resource: Mark(resource, bytes(lock).decode(), token, source_id, history_id, digest, is_closed)
        for resource, lock, token, source_id, history_id, digest, is_closed in rows
    }
