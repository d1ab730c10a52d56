"""Encodes the requests to a PostgreSQL guard about what is done once per key (`once=`, `fencelock.dispatch`).

Promise: as for `codec.py`, whose codecs derive from this one. For a key, a guarded block sends one more statement: the
one that ends the block writes the result, too.
"""

from collections.abc import Sequence
from typing import ClassVar

from fencelock.protocol import guard_requests as ask
from fencelock.stores.postgres.connection.errors import read_report
from fencelock.stores.postgres.connection.wire import PostgresAnswer, Row, Statement
from fencelock.stores.postgres.guard.errors import CONFLICTS
from fencelock.stores.postgres.guard.rights import SQL, Trips
from fencelock.stores.sql.guard import GuardCodecBase, begun_meanwhile


class PostgresEffectsCodec(GuardCodecBase):
    """The requests about effects, on every connection."""

    _unwritten: Row | None = None
    """The effect that the end of the block writes."""

    def _begin_effect(self, request: ask.BeginEffect) -> Trips:
        resource, effect = request
        parameters = (resource, effect.key, effect.holder, effect.request_digest)
        try:
            answers = yield (Statement(SQL.begin_effect, parameters),)
        except Exception as error:
            report = read_report(error)
            if report is None or report.state not in CONFLICTS:
                raise
            raise self._begun_meanwhile(effect.key) from error
        return _effect(answers[-1])

    def _begun_meanwhile(self, key: str) -> Exception:
        """Return the error for a transaction that may begin again: in the caller's own, the caller does."""
        return begun_meanwhile(key)

    def _read_effect(self, request: ask.ReadEffect) -> Trips:
        answers = yield (Statement(SQL.read_effect, request),)
        return _effect(answers[-1])

    def _write_effect(self, request: ask.WriteEffect) -> Trips:
        """Keep the effect for the statement at the end of the block."""
        resource, effect = request
        self._unwritten = (resource, effect.key, effect.holder, effect.result, effect.request_digest)
        yield from ()

    def _purge_effects(self, request: ask.PurgeEffects) -> Trips:
        answers = yield (Statement(SQL.purge_effects, request),)
        return answers[-1].rows[0][0]

    def _end(self, resources: Sequence[str]) -> tuple[Statement, ...]:
        """Return the statement that fails unless the transaction is still the one that presented, and has not failed.

        One resource stands for all: they were presented together, and end together with the transaction. Writing the
        effect fails then, too.
        """
        unwritten, self._unwritten = self._unwritten, None
        if unwritten is not None:
            return (Statement(SQL.write_effect, unwritten),)
        return tuple(Statement(SQL.confirm, (resource,)) for resource in resources[:1])

    ENCODERS: ClassVar = {
        ask.BeginEffect: _begin_effect,
        ask.ReadEffect: _read_effect,
        ask.WriteEffect: _write_effect,
        ask.PurgeEffects: _purge_effects,
    }


def _effect(answer: PostgresAnswer) -> ask.Effect | None:
    return ask.Effect(*answer.rows[0]) if answer.rows else None
