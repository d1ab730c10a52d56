"""Encodes the requests to a MySQL guard about who may write: rights, sessions, keys and signatures.

Promise: as for `codec.py`, whose codec of the guard's own connection derives from this one too.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from typing import Any, ClassVar

from fencelock.errors import GuardError, SourceUnavailableError
from fencelock.protocol import guard_requests as ask
from fencelock.stores.mysql.connection.expressions import expand
from fencelock.stores.mysql.connection.wire import Value, decode_text
from fencelock.stores.mysql.guard.trips import Trips
from fencelock.stores.sql.signing import hmac_pads
from fencelock.stores.statements import statements

SQL = statements(__package__, "guard.sql")
MAX_LOOKS = 500
"""How often to look whether sessions that were told to end have ended, each time after 20 ms."""
LOOKS_WITHOUT = 25
"""How many looks in a row find no session, until there is none. One that waits inside a seal is not seen, and needs not
be: it is refused by its right, which is checked after the wait.
"""


class MySQLRightsCodec(ABC):
    """Operators' requests."""

    @abstractmethod
    def fill(self, template: str, **values: Value) -> str:
        """Return a statement with its values."""

    @abstractmethod
    def _begin_now(self) -> Trips:
        """Begin the guard's own transaction, if it has not begun."""

    def _grant_right(self, request: ask.GrantRight) -> Trips:
        yield from self._begin_now()
        yield self.fill(SQL.grant_right, **request.right._asdict())
        yield self.fill(SQL.write_audit, **request.entry._asdict())

    def _revoke_rights(self, request: ask.RevokeRights) -> Trips:
        yield from self._begin_now()
        answers = yield self.fill(SQL.find_rights, role=request.role)
        held = [ask.Right(decode_text(resource), decode_text(account)) for resource, account in answers[0]]
        taken = tuple(right for right in held if _is_revoked(right.resource, request.resources))
        for right in taken:
            yield self.fill(SQL.revoke_right, **right._asdict())
        for entry in request.entries:
            yield self.fill(SQL.write_audit, **entry._asdict())
        return taken

    def _end_sessions(self, request: ask.EndSessions) -> Trips:
        if not (yield SQL.may_see_sessions)[0][0][0]:
            raise GuardError(
                f"this account may not see the sessions of {request.role}, and so not end them: use one with the "
                f"rights PROCESS and CONNECTION ADMIN"
            )
        look = self.fill(expand(SQL.find_sessions), role=request.role)
        told: set[int] = set()
        looks_without = 0
        for _ in range(MAX_LOOKS):
            found = {number for (number,) in (yield look)[0]}
            for number in found - told:
                yield self.fill(SQL.end_session, number=number)
            told |= found
            # MariaDB shows a session inside a routine as one of the routine's owner: look until none comes out.
            looks_without = 0 if found else looks_without + 1
            if looks_without == LOOKS_WITHOUT:
                return len(told)
            yield SQL.pause
        raise SourceUnavailableError(f"account {request.role} still has sessions, which were told to end: try again")

    def _write_keys(self, request: ask.WriteKeys) -> Trips:
        yield from self._begin_now()
        yield self.fill(SQL.forget_keys)
        for key in request.keys:
            inner, outer = hmac_pads(key.secret)
            values = {"key_id": key.key_id, "inner_pad": inner, "outer_pad": outer, "retired_s": key.retired_s}
            yield self.fill(SQL.write_key, **values)
        yield self.fill(SQL.write_audit, **request.entry._asdict())

    def _require_signatures(self, request: ask.RequireSignatures) -> Trips:
        yield from self._begin_now()
        for resource in sorted(request.resources):
            yield self.fill(SQL.require_signature, resource=resource, is_required=request.is_required)
        for entry in request.entries:
            yield self.fill(SQL.write_audit, **entry._asdict())

    ENCODERS: ClassVar[dict[type, Callable[[Any, Any], Generator[Any, Any, Any]]]] = {
        ask.GrantRight: _grant_right,
        ask.RevokeRights: _revoke_rights,
        ask.EndSessions: _end_sessions,
        ask.WriteKeys: _write_keys,
        ask.RequireSignatures: _require_signatures,
    }


def _is_revoked(right: str, resources: Iterable[str]) -> bool:
    """Return whether a right covers one of these resources; one that ends in `*` stands for the right of that name."""
    return any(
        right == resource or (right.endswith("*") and not resource.endswith("*") and resource.startswith(right[:-1]))
        for resource in resources
    )
