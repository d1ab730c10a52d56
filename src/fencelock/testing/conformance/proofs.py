"""Checks of who may do what: the claim ends a lease, the proof writes in its name, the digest does nothing (G12).

A claim is the holder's secret, its proof is H(claim), and its digest is H(proof), which stores keep.
"""

import dataclasses
from contextlib import suppress

from fencelock import Event
from fencelock import protocol as ask
from fencelock.errors import (
    FencelockError,
    GuardError,
    ImplausibleTokenError,
    StaleTokenError,
    TokenCollisionError,
    WrongLockError,
)
from fencelock.model import PLAUSIBLE_GAIN, Sequencer
from fencelock.protocol import GuardFlow, digest_of_claim, draw_claim, one_way
from fencelock.testing.conformance.guard_rig import LOCK, GuardRig
from fencelock.testing.conformance.rig import refusal, require
from fencelock.testing.conformance.source_rig import Claimant, SourceRig

HUGE = 2**61
"""A token that no source will have issued for some decades."""


def _others(claim: str) -> dict[str, str]:
    """Return what somebody else may know of a lease, by its name."""
    return {"proof": one_way(claim), "digest": digest_of_claim(claim)}


class LeaseProofChecks(SourceRig):
    """Checks that a source obeys claims only, keeps none, and tells the truth about a proof."""

    def check(self, claimant: Claimant, *, proof: str | None = None, history_id: str | None = None) -> ask.Checked:
        """Ask whether the claimant's lease holds its lock now."""
        history_id = history_id or self.source().history_id
        return self.ask(ask.Check(claimant.lock, history_id, proof or one_way(claimant.claim)))  # type: ignore[no-any-return]

    def test_only_the_claim_ends_or_renews_a_lease(self) -> None:
        """G12: who is shown a sequencer, or reads the source's store, can end nothing."""
        holder = self.claimant()
        holder.hold()
        for name, secret in _others(holder.claim).items():
            again = self.ask(ask.Acquire("lock", secret, "a thief", self.long_ttl_ms, self.now_us(), False))
            require(not isinstance(again, ask.Granted), f"G12: the {name} of a lease is not granted as its claim")
            renewed = self.run(ask.ask(ask.Renew((("lock", secret),))))
            require(not renewed.remaining_ms, f"G12: the {name} of a lease renews nothing")
            require(not self.ask(ask.Release("lock", secret)).was_held, f"G12: the {name} of a lease releases nothing")
            require(self.info().holder == holder.holder, f"G12: a release by the {name} leaves the holder alone")
        require(holder.renew() is None, "G12: the lease runs on, and its claim renews it")

    def test_only_the_claim_has_a_place_in_the_queue(self) -> None:
        """G12: nor can they take a waiter's place, or its turn."""
        holder, waiter = self.claimant(), self.claimant()
        holder.hold()
        waiter.queue()
        for name, secret in _others(waiter.claim).items():
            self.ask(ask.Release("lock", secret))
            require(self.info().waiters == (waiter.holder,), f"G12: the {name} of a waiter does not end its wait")
        holder.release()
        for name, secret in _others(waiter.claim).items():
            reply = self.ask(ask.Poll("lock", secret))
            require(not isinstance(reply, ask.Granted), f"G12: the {name} of a waiter does not take its turn: {reply}")
        waiter.granted(waiter.poll(), "G12: the waiter's claim takes it")

    def test_no_claim_and_no_proof_is_kept(self) -> None:
        """G12: whether a lease is held, waited for, released or broken."""
        (released := self.claimant()).hold()
        released.release()
        (broken := self.claimant()).hold()
        self.break_lock()
        (holder := self.claimant()).hold()
        (waiter := self.claimant()).queue()
        lost = (released.renew(), broken.renew(), waiter.renew())
        shown = f"{self.info()} {self.ask(ask.ListLocks(None))} {self.source()} {lost}".encode()
        kept = self.dump()
        require(not kept or holder.holder.encode() in kept, "dump() shows what the source keeps, its holder included")
        for claimant in (released, broken, holder, waiter):
            for name, secret in (("claim", claimant.claim), ("proof", one_way(claimant.claim))):
                require(secret.encode() not in shown + kept, f"G12: the source shows no {name}, and keeps none")

    def test_a_check_tells_whether_a_proof_holds_the_lock(self) -> None:
        """Chubby's CheckSequencer: for those who cannot keep a mark."""
        holder, waiter = self.claimant(), self.claimant()
        require(self.check(holder) == ask.Checked(0, None), "a lock that was never taken is held by no proof")
        token = holder.hold().token
        waiter.queue()
        for _ in range(2):
            held = self.check(holder)
            require(0 < held.remaining_ms <= holder.ttl_ms, f"the holder's proof holds the lock, for its ttl: {held}")
            require(held.last_token == token, f"a check shows the last token, {token}: {held}")
            holder.renew()
        none = ask.Checked(0, token)
        for what, checked in {
            "a waiter's proof": self.check(waiter),
            "a proof of another history": self.check(holder, history_id="another"),
            "a claim in the place of a proof": self.check(holder, proof=holder.claim),
            "a digest in the place of a proof": self.check(holder, proof=digest_of_claim(holder.claim)),
        }.items():
            require(checked == none, f"{what} does not hold the lock: {checked}")

    def test_a_check_tells_that_a_lease_has_ended(self) -> None:
        """It was released, broken, expired or taken over, or the epoch was raised."""
        released = self.claimant()
        token = released.hold().token
        released.release()
        freed = self.check(released)
        require(freed.remaining_ms == 0, f"a released lease holds nothing: {freed}")
        known = (token,) if self.shows_spent_tokens else (token, None)
        require(
            freed.last_token in known, f"a check of a free lock shows the last token, if the source knows it: {freed}"
        )
        (broken := self.claimant()).hold()
        self.break_lock()
        require(self.check(broken).remaining_ms == 0, "a broken lease holds nothing")
        (next_one := self.claimant()).hold()
        require(self.check(next_one).remaining_ms > 0, "the next lease holds the lock")
        next_one.release()
        (brief := self.brief()).hold()
        self.let_expire()
        require(self.check(brief).remaining_ms == 0, "an expired lease holds nothing: no check renews it")
        taker = self.claimant()
        token = taker.hold().token
        require(self.check(brief) == ask.Checked(0, token), "a lease that was taken over holds nothing")
        require(self.check(taker).remaining_ms > 0, "the new holder's lease does")
        if self.has_epochs:
            before = self.source().history_id
            self.raise_epoch()
            ended = (self.check(taker), self.check(taker, history_id=before))
            require(not any(one.remaining_ms for one in ended), f"a raised epoch ends the lease: {ended}")


class MarkProofChecks(GuardRig):
    """Checks that a guard admits the proof whose digest the mark has, and no token that cannot be genuine."""

    def test_a_mark_keeps_the_digest_and_no_proof(self) -> None:
        """G12: the mark's row is no sequencer."""
        guard, lease = self.guard(), self.sequencer(5)
        self.write(guard, lease, "mine")
        require(self.mark().digest == one_way(lease.proof), f"G12: a mark has the digest of its lease: {self.mark()}")
        kept = self.dump()
        known = (lease.digest.encode(), bytes.fromhex(lease.digest))
        require(
            not kept or any(digest in kept for digest in known), "dump() shows what the store keeps, its marks included"
        )
        for name, secret in (("claim", self.claims[lease]), ("proof", lease.proof)):
            shown = repr((self.mark(), self.seen())).encode()
            require(secret.encode() not in shown + kept, f"G12: the store shows no {name}, and keeps none")

    def test_who_reads_a_mark_cannot_present_it(self) -> None:
        """G12: a frozen holder that reads its successor's mark has token and digest, and neither writes."""
        self.write(self.guard(), self.sequencer(5), "mine")
        mark = self.mark()
        for name, proof in (("digest", mark.digest or ""), ("digest of the digest", one_way(mark.digest or ""))):
            thief = Sequencer(self.source_id, self.history_id, mark.lock, mark.token, proof)
            with refusal(GuardError, f"G12: a mark's {name} is not admitted as a proof"):
                self.write(self.guard(), thief, "stolen")
            refused = self.run(self._open(thief))
            require(refused == ("r",), f"G12: the store does not present a mark's {name} as a proof: {refused}")
        require(self.value() == "mine", "G12: nothing was written")

    def _open(self, sequencer: Sequencer) -> GuardFlow[tuple[str, ...]]:
        try:
            return (yield from ask.ask(ask.Open(("r",), sequencer)))
        except FencelockError:
            return ("r",)

    def test_only_the_claim_closes_a_mark(self) -> None:
        """G10, G12: who is shown a sequencer may not end the tenure."""
        guard, lease = self.guard(), self.sequencer(5)
        self.seal(guard, lease)
        for name, secret in _others(self.claims[lease]).items():
            with suppress(GuardError):  # A store may refuse it, or do nothing.
                self.run(self._close(secret))
            require(not self.mark().is_closed, f"G12: the {name} of a lease closes nothing")
        with refusal(GuardError, "G12: a sequencer closes nothing"):
            self.do(guard.close(lease))
        self.write(guard, lease, "mine")
        self.close(guard, lease)
        require(self.mark().is_closed, "G10: the claim closes the mark")

    def _close(self, secret: str) -> GuardFlow[None]:
        yield ask.Begin()
        yield ask.ReadMarks(("r",))
        yield ask.CloseMarks(("r",), secret)
        yield ask.Commit()

    def test_an_implausible_token_is_refused(self) -> None:
        """G12: a timestamp in nanoseconds or a random number must not become a mark that refuses every holder."""
        lease = self.sequencer(5)
        self.write(self.guard(), lease, "mine")
        with refusal(ImplausibleTokenError, "G12: no source can have issued so high a token by now") as caught:
            self.seal(self.guard(), self.sequencer(HUGE))
        error = caught[0]
        require((error.token, error.resource) == (HUGE, "r"), f"G12: the error has the token and the resource: {error}")
        require(PLAUSIBLE_GAIN <= error.ceiling < HUGE, f"G12: the error has the ceiling: {error.ceiling}")
        with refusal(ImplausibleTokenError, "G12: nor does an operator raise a mark so high without saying so"):
            self.do(self.guard().raise_to(HUGE, reason="a check"))
        require(self.mark() == dataclasses.replace(self.mark(), token=5), "G12: a refusal changes nothing")
        self.write(self.guard(), lease, "still mine")

    def test_each_refusal_is_told_once(self) -> None:
        """A hook is told of each token that a guard refuses, whether it sealed, opened a block or closed."""
        holder = self.sequencer(5)
        self.write(self.guard(), holder, "mine")
        refused = (
            ("stale", StaleTokenError, self.sequencer(4)),
            ("collision", TokenCollisionError, self.sequencer(5)),
            ("wrong-lock", WrongLockError, dataclasses.replace(self.sequencer(9), source_id=draw_claim())),
            ("implausible", ImplausibleTokenError, self.sequencer(HUGE)),
        )
        for reason, kind, lease in refused:
            event = Event("refused", LOCK, lease.token, "r", reason=reason)
            with refusal(kind, f"{reason}: the seal is refused"):
                self.seal(self.guard(), lease)
            require(self.refused == [event], f"a hook is told once of a seal that is refused: {self.refused}")
            with refusal(kind, f"{reason}: the block is refused"):
                self.write(self.guard(), lease, "theirs")
            require(self.refused == [event] * 2, f"a hook is told once of a block that is refused: {self.refused}")
            self.refused.clear()
        other = self.sequencer(5)
        with refusal(TokenCollisionError, "collision: another lease's close is refused"):
            self.close(self.guard(), other)
        event = Event("refused", LOCK, 5, "r", reason="collision")
        require(self.refused == [event], f"a hook is told once of a close that is refused: {self.refused}")

    def test_a_token_near_the_mark_is_plausible(self) -> None:
        """G12: an operator may vouch for a source whose clock was wrong, and its next tokens are admitted too."""
        self.do(self.guard().raise_to(HUGE, reason="the clock was wrong", implausible=True))
        require(
            self.mark().token == HUGE, f"G12: an operator raises a mark who says that it is implausible: {self.mark()}"
        )
        highest = HUGE + PLAUSIBLE_GAIN
        with refusal(ImplausibleTokenError, "G12: a token far above the mark is refused") as caught:
            self.seal(self.guard(), self.sequencer(highest + 1))
        require(caught[0].ceiling == highest, f"G12: the ceiling is 2**50 above the mark: {caught[0].ceiling}")
        self.write(self.guard(), self.sequencer(highest), "next")
        require(self.value() == "next", "G12: a token up to the ceiling is admitted")
