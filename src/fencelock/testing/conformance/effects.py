"""Checks that a guard's store keeps what is done once per key: rules G13 (`dispatch`) and G14 (`once=`)."""

import threading
from collections.abc import Callable
from contextlib import closing, suppress

from fencelock.errors import AlreadyDoneError, FencelockError, KeyReusedError
from fencelock.model import Sequencer
from fencelock.protocol import (
    Begin,
    BeginEffect,
    ConflictError,
    Effect,
    Finish,
    Open,
    PurgeEffects,
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
DONE = INTENT._replace(result="sent \N{CHECK MARK}")
A_DAY_MS = 86_400_000


class EffectChecks(GuardRig):
    """Checks of what a resource keeps of effects outside of it."""

    def test_an_intent_is_seen_by_the_next_holder(self) -> None:
        """G13: and so is its result; each key and each resource has its own."""
        require(self._begin(self._sealed(5), INTENT) is None, "G13: a new key has nothing")
        second = self._sealed(6)
        seen = self._kept(second)
        require(seen is not None and seen.began_at, f"G13: an intent is kept, with its time: {seen}")
        require(seen == INTENT._replace(began_at=seen.began_at if seen else ""), f"G13: it is kept as it was: {seen}")
        require(self._kept(second, key="mail/8") is None, "G13: another key has no intent")
        require(self._kept(self._sealed(6, resource="s"), resource="s") is None, "G13: another resource has no intent")
        third = self._sealed(7)
        done = Effect(KEY, 7, "host:2:mailer", result="sent \N{CHECK MARK}")
        self._write(third, done)
        done = done._replace(began_at=seen.began_at if seen else "")
        require(
            self._kept(third) == done, f"G13: a result is kept in the intent's place, and time: {self._kept(third)}"
        )
        self._write(third, done._replace(result=""))
        require(self._kept(third) == done._replace(result=""), "G13: an empty result is one")

    def test_an_intent_that_is_taken_back_is_forgotten(self) -> None:
        """G13: an effect that was never begun is in no doubt; taking it back twice is allowed."""
        lease = self._sealed(5)
        self._begin(lease, INTENT)
        for _ in range(2):
            self._write(lease, INTENT._replace(holder=""))
            require(self._kept(lease) is None, "G13: an intent that was taken back is forgotten")

    def test_an_intent_is_undone_with_its_block(self) -> None:
        """G13: it belongs to the guarded transaction."""
        lease = self._sealed(5)
        with closing(self.make_store(self.url).connect()) as connection:
            connection.perform(Open(("r",), lease))
            connection.perform(BeginEffect("r", INTENT))
            connection.rollback()
        require(self._kept(lease) is None, "G13: a block that was rolled back leaves no intent")

    def test_two_blocks_of_one_lease_do_not_both_begin(self) -> None:
        """G13: one of them finds the other's intent, or is refused."""
        lease = self._sealed(5)
        begun: list[str] = []

        def begin(name: str, meanwhile: Callable[[], None]) -> None:
            with closing(self.make_store(self.url).connect()) as connection, suppress(FencelockError, ConflictError):
                connection.perform(Open(("r",), lease))
                if connection.perform(BeginEffect("r", INTENT._replace(holder=name))) is None:
                    meanwhile()
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
        self._begin(lease, INTENT._replace(token=999))
        seen = self._kept(lease)
        require(seen is not None and seen.token == lease.token, f"G13: the token is the one presented: {seen}")
        forged = INTENT._replace(key="forged")
        for opening in (Open(("r",), old), Begin()):
            for request in (BeginEffect("r", forged), WriteEffect("r", forged)):
                with (
                    closing(self.make_store(self.url).connect()) as connection,
                    refusal(FencelockError, "G13: a transaction that has not presented the mark keeps no effect"),
                ):
                    connection.perform(opening)
                    connection.perform(request)
                    connection.perform(Finish(("r",)))
        require(self._kept(lease, key="forged") is None, "G13: what was refused is not kept")

    # --- in a guarded block -------------------------------------------------------------------------------------------
    def test_a_key_is_begun_once(self) -> None:
        """G14: a second caller gets what is kept, and changes nothing."""
        first = self._sealed(5)
        begun = DONE._replace(request_digest="d" * 64)
        require(self._begin(first, begun._replace(result=None), done=begun) is None, "G14: a new key has nothing")
        for is_later in (False, True):
            seen = self._begin(self._sealed(6) if is_later else first, INTENT._replace(holder="somebody else"))
            require(seen is not None and seen.began_at, f"G14: a key that was done is told, with its time: {seen}")
            require(seen == begun._replace(began_at=seen.began_at if seen else ""), f"G14: as it was recorded: {seen}")

    def test_a_key_is_committed_with_its_work(self) -> None:
        """G14: together or not at all."""
        guard, lease = self.guard(), self.sequencer(5)
        with suppress(ZeroDivisionError):
            self.write(guard, lease, "undone", once=KEY, then=ZeroDivisionError())
        require(self._kept(lease) is None, "G14: a block that was rolled back leaves no key")
        self.write(guard, lease, "done", once=KEY)
        with refusal(AlreadyDoneError, "G14: a key's work is done once"):
            self.write(guard, lease, "done twice", once=KEY)
        require(self.value() == "done", f"G14: the work of a key is committed once: {self.value()}")
        self.write(guard, lease, "another", once="another key")
        require(self.value() == "another", "G14: another key is another job")

    def test_a_stale_lease_is_told_what_was_done(self) -> None:
        """G14: whether it has sealed before or not."""
        late, old, lease = self.sequencer(4), self._sealed(5), self._sealed(6)
        self.write(self.guard(), lease, "done", once=KEY)
        for stale in (old, late):
            with refusal(AlreadyDoneError, "G14: a stale lease is told that the key was done"):
                self.write(self.guard(), stale, "done twice", once=KEY)
        require(self.value() == "done", "G14: a stale lease writes nothing")

    def test_a_key_of_another_request_is_refused(self) -> None:
        """G14: it is not taken for done."""
        lease = self._sealed(5)
        self._begin(lease, INTENT._replace(request_digest="d" * 64), done=DONE._replace(request_digest="d" * 64))
        with refusal(KeyReusedError, "G14: the digest of the request is kept and compared"):
            self.write(self.guard(), lease, "another request", once=KEY)

    def test_old_results_are_purged_and_no_others(self) -> None:
        """G14: not what is in doubt, not what is young, and nothing whose token is the mark."""
        first = self._sealed(5)
        self._begin(first, INTENT._replace(key="in doubt"))
        self._begin(first, INTENT, done=DONE)
        require(self._purge(0) == 0, "G14: a result stays while its token is the mark")
        second = self._sealed(6)
        require(self._purge(A_DAY_MS) == 0, "G14: a result younger than that stays")
        require(self._kept(second) is not None, "G14: a purge forgets nothing else")
        require(self._purge(0) == 1, "G14: a purge says how many results it forgets")
        require(self._kept(second) is None, "G14: a purge forgets old results")
        require(self._kept(second, key="in doubt") is not None, "G14: a purge leaves what is in doubt")

    def _purge(self, older_than_ms: int) -> int:
        return self.run(ask(PurgeEffects(older_than_ms)))  # type: ignore[no-any-return]

    def _sealed(self, token: int, *, resource: str = "r") -> Sequencer:
        """Return the sequencer of a lease that has sealed the resource."""
        lease = self.sequencer(token)
        self.seal(self.guard(resource), lease)
        return lease

    def _begin(self, lease: Sequencer, effect: Effect, *, done: Effect | None = None) -> Effect | None:
        """Begin an effect of resource `r` in a guarded block of its own, and record a result there; return what was
        kept before.
        """
        with closing(self.make_store(self.url).connect()) as connection:
            require(connection.perform(Open(("r",), lease)) == (), "the lease has sealed the resource")
            before = run_generator(ask(BeginEffect("r", effect)), connection.perform)
            if done is not None:
                connection.perform(WriteEffect("r", done))
            connection.perform(Finish(("r",)))
        return before

    def _write(self, lease: Sequencer, effect: Effect) -> None:
        """Replace an effect of resource `r` in a guarded block of its own."""
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
