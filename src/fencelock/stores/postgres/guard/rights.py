"""Encodes the requests to a PostgreSQL guard about who may write: rights, sessions, keys and signatures.

Promise: as for `codec.py`, whose codec of the guard's own connection derives from this one. Keys travel as parameters.
"""

from collections.abc import Generator, Iterable, Sequence
from typing import Any, ClassVar

from fencelock.errors import SourceUnavailableError
from fencelock.protocol import guard_requests as ask
from fencelock.stores.postgres.connection.wire import PostgresAnswer, Row, Statement
from fencelock.stores.sql.guard import GuardCodecBase
from fencelock.stores.sql.signing import hmac_pads
from fencelock.stores.statements import statements

SQL = statements(__package__, "guard.sql")
MAX_LOOKS = 500
"""How often to look whether sessions that were told to end have ended, each time after 20 ms."""
Trips = Generator[Sequence[Statement], list[PostgresAnswer], Any]


def ordered(resources: Iterable[str]) -> list[str]:
    """Return the resources in the order in which every connection locks them, so that none wait in a circle."""
    return sorted(resources)


def entry_row(entry: ask.AuditEntry) -> Row:
    """Return an audit entry as `write_audit` takes it."""
    return (entry.who, entry.action, entry.resource, entry.from_token, entry.to_token, entry.reason)


class PostgresRightsCodec(GuardCodecBase):
    """Operators' requests, and the statements that wait for the next round trip."""

    def __init__(self) -> None:
        self._unsent: list[Statement] = []

    def _flush(self, *more: Statement) -> tuple[Statement, ...]:
        """Return the unsent statements, followed by these."""
        unsent, self._unsent = self._unsent, []
        return (*unsent, *more)

    def _grant_right(self, request: ask.GrantRight) -> Trips:
        self._unsent += [
            Statement(SQL.grant_right, request.right),
            Statement(SQL.write_audit, entry_row(request.entry)),
        ]
        yield from ()

    def _revoke_rights(self, request: ask.RevokeRights) -> Trips:
        self._unsent += [Statement(SQL.write_audit, entry_row(entry)) for entry in request.entries]
        answers = yield self._flush(Statement(SQL.revoke_rights, (list(request.resources), request.role)))
        return tuple(ask.Right(resource, request.role) for (resource,) in answers[-1].rows)

    def _end_sessions(self, request: ask.EndSessions) -> Trips:
        answers = yield (Statement(SQL.end_sessions, (request.role,)),)
        numbers = [str(number) for number, _ in answers[-1].rows]
        for _ in range(MAX_LOOKS if numbers else 0):
            answers = yield (Statement(SQL.count_sessions, (numbers,)),)
            if answers[-1].rows == [(0,)]:
                return len(numbers)
        if numbers:
            raise SourceUnavailableError(
                f"the sessions of role {request.role} were told to end, and some have not ended: try again"
            )
        return 0

    def _write_keys(self, request: ask.WriteKeys) -> Trips:
        rows = ((key.key_id, *hmac_pads(key.secret), key.retired_s) for key in request.keys)
        self._unsent += [Statement(SQL.forget_keys), *(Statement(SQL.write_key, row) for row in rows)]
        self._unsent.append(Statement(SQL.write_audit, entry_row(request.entry)))
        yield from ()

    def _require_signatures(self, request: ask.RequireSignatures) -> Trips:
        wanted = ordered(request.resources)
        self._unsent += [Statement(SQL.require_signature, (one, request.is_required)) for one in wanted]
        self._unsent += [Statement(SQL.write_audit, entry_row(entry)) for entry in request.entries]
        yield from ()

    ENCODERS: ClassVar = {
        ask.GrantRight: _grant_right,
        ask.RevokeRights: _revoke_rights,
        ask.EndSessions: _end_sessions,
        ask.WriteKeys: _write_keys,
        ask.RequireSignatures: _require_signatures,
    }
