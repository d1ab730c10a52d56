"""Checks that a guard's store keeps effects for `fencelock.dispatch`: rule G13."""

import threading
from collections.abc import Callable
from contextlib import closing, suppress

from fencelock.errors import FencelockError
from fencelock.model import Sequencer
from fencelock.protocol import (
    Begin,
    Commit,
    ConflictError,
    Effect,
    Finish,
    Open,
    ReadEffect,
    WriteEffect,
    ask,
    run_generator,
)
from fencelock.testing.conformance.guard_rig import GuardRig
from fencelock.testing.conformance.rig import refusal, require
from fencelock.testing.runners import REQUEST_TIMEOUT_S

A_MOMENT_S = 0.2
"""How long a second block may try to begin an effect that a first one is beginning."""
KEY = "mail/7"
INTENT = Effect(KEY, 5, "host:1:mailer")


class EffectChecks(GuardRig):
    """Checks of what a resource keeps of effects outside of it."""

    def test_an_intent_is_seen_by_the_next_holder(self) -> None:
        """G13: and so is its result; each key and each resource has its own."""
        self._write(self._sealed(5), INTENT)
        second = self._sealed(6)
        seen = self._kept(second)
        require(seen is not None and seen.began_at, f"G13: an intent is kept, with its time: {seen}")
        require(seen == INTENT._replace(began_at=seen.began_at if seen else ""), f"G13: it is kept as it was: {seen}")
        require(self._kept(second, key="mail/8") is None, "G13: another key has no intent")
        require(self._kept(self._sealed(6, resource="s"), resource="s") is None, "G13: another resource has no intent")
        third = self._sealed(7)
        done = Effect(KEY, 7, "host:2:mailer", began_at=seen.began_at if seen else "", result="sent \N{CHECK MARK}")
        self._write(third, done)
        require(self._kept(third) == done, f"G13: a result is kept in the intent's place: {self._kept(third)}")
        self._write(third, done._replace(result=""))
        require(self._kept(third) == done._replace(result=""), "G13: an empty result is one")

    def test_an_intent_that_is_taken_back_is_forgotten(self) -> None:
        """G13: an effect that was never begun is in no doubt; taking it back twice is allowed."""
        lease = self._sealed(5)
        self._write(lease, INTENT)
        for _ in range(2):
            self._write(lease, INTENT._replace(holder=""))
            require(self._kept(lease) is None, "G13: an intent that was taken back is forgotten")

    def test_an_intent_is_undone_with_its_block(self) -> None:
        """G13: it belongs to the guarded transaction."""
        lease = self._sealed(5)
        with closing(self.make_store(self.url).connect()) as connection:
            connection.perform(Open(("r",), lease))
            connection.perform(WriteEffect("r", INTENT))
            connection.rollback()
        require(self._kept(lease) is None, "G13: a block that was rolled back leaves no intent")

    def test_two_blocks_of_one_lease_do_not_both_begin(self) -> None:
        """G13: one of them finds the other's intent, or is refused."""
        lease = self._sealed(5)
        begun: list[str] = []

        def begin(name: str, meanwhile: Callable[[], None]) -> None:
            with closing(self.make_store(self.url).connect()) as connection, suppress(FencelockError, ConflictError):
                connection.perform(Open(("r",), lease))
                if connection.perform(ReadEffect("r", KEY)) is None:
                    meanwhile()
                    connection.perform(WriteEffect("r", INTENT._replace(holder=name)))
                    connection.perform(Finish(("r",)))
                    begun.append(name)

        second = threading.Thread(target=begin, args=("second", lambda: None), daemon=True)

        def start_second() -> None:
            second.start()
            second.join(A_MOMENT_S)

        begin("first", start_second)
        second.join(REQUEST_TIMEOUT_S)
        require(len(begun) == 1, f"G13: of two blocks at once, one begins the effect: {begun}")

    def test_an_effect_is_kept_under_the_token_that_was_presented(self) -> None:
        """G13: whatever the caller says; and who has presented nothing keeps none."""
        old, lease = self._sealed(5), self._sealed(6)
        self._write(lease, INTENT._replace(token=999))
        seen = self._kept(lease)
        require(seen is not None and seen.token == lease.token, f"G13: the token is the one presented: {seen}")
        for opening in (Open(("r",), old), Begin()):
            with (
                closing(self.make_store(self.url).connect()) as connection,
                refusal(FencelockError, "G13: a transaction that has not presented the mark keeps no effect"),
            ):
                connection.perform(opening)
                connection.perform(WriteEffect("r", INTENT._replace(key="forged")))
                connection.perform(Finish(("r",)) if isinstance(opening, Open) else Commit())
        require(self._kept(lease, key="forged") is None, "G13: what was refused is not kept")

    def _sealed(self, token: int, *, resource: str = "r") -> Sequencer:
        """Return the sequencer of a lease that has sealed the resource."""
        lease = self.sequencer(token)
        self.seal(self.guard(resource), lease)
        return lease

    def _write(self, lease: Sequencer, effect: Effect) -> None:
        """Write an effect of resource `r` in a guarded block of its own."""
        with closing(self.make_store(self.url).connect()) as connection:
            require(connection.perform(Open(("r",), lease)) == (), "the lease has sealed the resource")
            connection.perform(WriteEffect("r", effect))
            connection.perform(Finish(("r",)))

    def _kept(self, lease: Sequencer, *, key: str = KEY, resource: str = "r") -> Effect | None:
        """Return what the resource keeps, as a block of this lease sees it."""
        with closing(self.make_store(self.url).connect()) as connection:
            connection.perform(Open((resource,), lease))
            kept = run_generator(ask(ReadEffect(resource, key)), connection.perform)
            connection.rollback()
        return kept
