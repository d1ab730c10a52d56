"""Checks that a source grants a claim once: rule H4, for requests that arrive late or twice."""

from collections.abc import Callable

from fencelock import protocol as ask
from fencelock.testing.conformance.rig import require
from fencelock.testing.conformance.source_rig import Claimant, SourceRig


class ClaimChecks(SourceRig):
    """Checks that a claim which has ended stays ended."""

    def test_a_late_duplicate_after_release_is_refused(self) -> None:
        """H4: a delayed copy of an acquire that arrives after the release would hold the lock without a client."""
        self._require_over_after(lambda holder: holder.release(), "its release")

    def test_a_late_duplicate_after_another_grant_is_refused(self) -> None:
        """H4: the source remembers an ended claim while later claims end."""

        def end(holder: Claimant) -> None:
            holder.release()
            for _ in range(self.churn):
                other = self.claimant()
                other.hold()
                other.release()

        self._require_over_after(end, f"its release and {self.churn} more leases")

    def test_a_late_duplicate_after_takeover_is_refused(self) -> None:
        """H4: expiry ends a claim as release does."""
        holder = self.brief()
        holder.hold()
        self.let_expire()
        other = self.claimant()
        other.hold()
        other.release()
        self._require_over(holder, "its expiry and another's lease")

    def test_a_late_duplicate_after_break_is_refused(self) -> None:
        """H4: a broken claim stays ended."""
        self._require_over_after(lambda holder: self.break_lock(holder.lock), "an operator's break")

    def test_a_late_duplicate_after_purge_is_refused(self) -> None:
        """H4: a purge of the lock does not forget its ended claims."""
        if not self.has_purge:
            return

        def end(holder: Claimant) -> None:
            holder.release()
            self.ask(ask.Purge())

        self._require_over_after(end, "its release and a purge")

    def test_a_late_duplicate_of_a_waiter_is_refused(self) -> None:
        """H4: the claim of a waiter that gave up, or was granted and released, has ended as well."""
        holder, leaver, served = self.claimant(), self.claimant(), self.claimant()
        holder.hold()
        leaver.queue()
        served.queue()
        leaver.release()
        holder.release()
        served.granted(served.poll(), "the waiter that stayed gets the lock")
        served.release()
        for waiter in (leaver, served):
            self._require_over(waiter, "it left")

    def test_a_release_that_overtakes_its_acquire_is_kept(self) -> None:
        """H4: the release of an abandoned claim may reach the source before the acquire that it undoes."""
        for lock in ("never taken", "taken before"):
            if lock == "taken before":
                other = self.claimant(lock)
                other.hold()
                other.release()
            hasty = self.claimant(lock)
            require(not hasty.release().was_held, "H4: a claim that has not arrived holds no lock")
            self._require_over(hasty, "a release that came first", may_wait=True)

    def _require_over_after(self, end: Callable[[Claimant], object], what: str) -> None:
        holder = self.claimant()
        holder.hold()
        end(holder)
        self._require_over(holder, what)
        self._require_over(holder, what, may_wait=True)

    def _require_over(self, claimant: Claimant, what: str, *, may_wait: bool = False) -> None:
        reply = self.ask(claimant.request(may_wait=may_wait))
        require(isinstance(reply, ask.ClaimEnded), f"H4: after {what} a claim is not granted or queued again: {reply}")
        require(not self.info(claimant.lock).is_held, "H4: the lock stays free")
        require(not self.info(claimant.lock).waiters, "H4: the queue stays empty")
