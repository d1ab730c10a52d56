"""Encodes the requests to a MySQL guard about what is done once per key (`once=`, `fencelock.dispatch`).

Promise: as for `codec.py`, whose codecs derive from this one. For a key, a guarded block sends one more statement: the
one that ends the block writes the result, too.
"""

from abc import abstractmethod
from typing import ClassVar

from fencelock.protocol import guard_requests as ask
from fencelock.stores.mysql.connection.wire import Rows, Value, decode_text
from fencelock.stores.mysql.guard.errors import CONFLICTS, read_report
from fencelock.stores.mysql.guard.rights import SQL
from fencelock.stores.mysql.guard.trips import Trips
from fencelock.stores.sql.guard import GuardCodecBase, begun_meanwhile

_MS_PER_S = 1000


class MySQLEffectsCodec(GuardCodecBase):
    """The requests about effects, on every connection."""

    _unwritten: ask.WriteEffect | None = None
    """What the end of the block writes."""

    @abstractmethod
    def fill(self, template: str, **values: Value) -> str:
        """Return a statement with its values."""

    def _begin_effect(self, request: ask.BeginEffect) -> Trips:
        try:
            answers = yield self.fill(SQL.begin_effect, **_values(request))
        except Exception as error:
            report = read_report(error)
            if report is None or report.number not in CONFLICTS:
                raise
            raise self._begun_meanwhile(request.effect.key) from error
        return _effect(answers)

    def _begun_meanwhile(self, key: str) -> Exception:
        """Return the error for a transaction that may begin again: in the caller's own, the caller does."""
        return begun_meanwhile(key)

    def _read_effect(self, request: ask.ReadEffect) -> Trips:
        return _effect((yield self.fill(SQL.read_effect, **request._asdict())))

    def _write_effect(self, request: ask.WriteEffect) -> Trips:
        """Keep the effect for the statement at the end of the block."""
        self._unwritten = request
        yield from ()

    def _end(self, plain: str, with_effect: str, **values: Value) -> str:
        """Return the statement that ends the block, which writes the effect, too, if there is one."""
        unwritten, self._unwritten = self._unwritten, None
        if unwritten is None:
            return self.fill(plain, **values)
        return self.fill(with_effect, **values, **_values(unwritten))

    def _purge_effects(self, request: ask.PurgeEffects) -> Trips:
        yield SQL.look_without_locks
        answers = yield self.fill(SQL.purge_effects, older_than_s=request.older_than_ms // _MS_PER_S)
        return int(answers[0][0][0])

    ENCODERS: ClassVar = {
        ask.BeginEffect: _begin_effect,
        ask.ReadEffect: _read_effect,
        ask.WriteEffect: _write_effect,
        ask.PurgeEffects: _purge_effects,
    }


def _values(request: ask.BeginEffect | ask.WriteEffect) -> dict[str, Value]:
    resource, effect = request
    return {
        "resource": resource,
        "key": effect.key,
        "holder": effect.holder,
        "result": effect.result,
        "request_digest": effect.request_digest,
    }


def _effect(answers: list[Rows]) -> ask.Effect | None:
    if not answers or not answers[0]:
        return None
    key, token, holder, began_at, result, request_digest = answers[0][0]
    texts = (decode_text(holder), decode_text(began_at), None if result is None else decode_text(result))
    return ask.Effect(decode_text(key), int(token), *texts, decode_text(request_digest))
