"""Encodes the requests to a MySQL guard about purging marks and about floors, and decodes rows of floors.

Promise: as for `codec.py`, whose codec of the guard's own connection derives from this one.
"""

from collections.abc import Sequence
from typing import ClassVar

from fencelock.model import Mark
from fencelock.protocol import guard_requests as ask
from fencelock.stores.mysql.connection.wire import Rows, decode_text
from fencelock.stores.mysql.guard.answers import marks_in
from fencelock.stores.mysql.guard.rights import SQL, MySQLRightsCodec
from fencelock.stores.mysql.guard.trips import Trips


class MySQLPurgingCodec(MySQLRightsCodec):
    """The requests about old marks and floors."""

    def _find_old_marks(self, request: ask.FindOldMarks) -> Trips:
        yield SQL.look_without_locks
        answers = yield self.fill(SQL.find_old_marks, **request._asdict())
        yield SQL.rollback
        return tuple(marks_in(answers).values())

    def _purge_marks(self, request: ask.PurgeMarks) -> Trips:
        yield from self._begin_now()
        answers = yield self.fill(SQL.purge_marks, marks=_listed(request.marks), **request.floor._asdict())
        count = int(answers[0][0][0])
        if count:
            yield self.fill(SQL.write_audit, **request.entry._asdict())
        return count

    def _set_floor(self, request: ask.SetFloor) -> Trips:
        yield from self._begin_now()
        yield self.fill(SQL.write_audit, **request.entry._asdict())
        yield self.fill(SQL.set_floor, from_token=request.entry.from_token, **request.floor._asdict())

    ENCODERS: ClassVar = {
        **MySQLRightsCodec.ENCODERS,
        ask.FindOldMarks: _find_old_marks,
        ask.PurgeMarks: _purge_marks,
        ask.SetFloor: _set_floor,
    }


def _listed(marks: Sequence[Mark]) -> str:
    """Return marks as `fencelock_purge_marks` compares them, in the order in which every connection locks them."""
    return ",".join(_written(mark) for mark in sorted(marks, key=lambda mark: mark.resource.encode()))


def _written(mark: Mark) -> str:
    resource, lock, history_id, digest = (
        (text or "").encode().hex().upper() for text in (mark.resource, mark.lock, mark.history_id, mark.digest)
    )
    return f"{resource}.{lock}.{mark.token}.{history_id}.{digest}.{int(mark.is_closed)}"


def floors_in(rows: Rows) -> tuple[ask.Floor, ...]:
    """Return the floors of rows."""
    return tuple(ask.Floor(decode_text(source_id), int(token)) for source_id, token in rows)
