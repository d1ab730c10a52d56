"""Checks of a source's leases: rules H1, H2, H3, H4, H5 and H9."""

from fencelock import protocol as ask
from fencelock.protocol import SourceFlow
from fencelock.testing.conformance.faults import LostReplies
from fencelock.testing.conformance.rig import require
from fencelock.testing.conformance.source_rig import TRIES, SourceRig, ask_flow, draw_flow
from fencelock.testing.runners import Attempt, acquire, end_lease, release

THREADS = 4
ROUNDS = 4
INSIDE_MS = 5
DATED_LAG_MS = 4000
"""How much later than its ttl a lease ends for a process that relies on the dates of a store: whole seconds, a margin
for machines that differ, and the time of a request.
"""


class LeaseChecks(SourceRig):
    """Checks of who holds a lock, for how long, and how the lease ends."""

    # --- holding ------------------------------------------------------------------------------------------------------
    def test_a_held_lock_is_busy_for_everybody_else(self) -> None:
        """A lock has one holder."""
        holder = self.claimant()
        holder.hold()
        for _ in range(3):
            require(isinstance(self.claimant().acquire(), ask.Busy), "a held lock is busy")
        require(self.info().holder == holder.holder, f"inspection shows who holds it: {self.info()}")

    def test_a_grant_states_the_time_left(self) -> None:
        """H1: the holder derives its deadline from it, so it never exceeds the ttl."""
        holder = self.claimant()
        grant = holder.hold()
        require(0 < grant.remaining_ms <= holder.ttl_ms, f"H1: the time left is within the ttl: {grant}")
        self.pass_time(self.short_ttl_ms)
        again = holder.granted(holder.acquire(), "T3: the holder's repeated acquire is granted")
        require(again.remaining_ms <= holder.ttl_ms - self.short_ttl_ms, "H1: a retry does not restart the lease")
        info = self.info()
        require(info.ttl == holder.ttl_ms / 1000 and 0 < info.remaining <= info.ttl, f"inspection agrees: {info}")

    def test_a_lease_ends_at_its_ttl(self) -> None:
        """H1: the source itself decides that a lease has expired."""
        self.brief().hold()
        self.let_expire()
        require(not self.info().is_held, "H1: an expired lease does not hold the lock")
        self.claimant().granted(self.claimant().acquire(), "H1: another claim can take over an expired lease")

    def test_a_process_that_never_saw_a_lease_takes_it_over_after_it_has_expired(self) -> None:
        """H1: the run of cron after the one that crashed. `capabilities.clock` says when it can know."""
        if not (self.survives_reopening and self.ends_unrenewed_leases):
            return
        self.brief().hold()
        self.let_expire()
        self.reopen()
        clock = self.store.capabilities.clock
        if clock == "dated":
            self.pass_time(DATED_LAG_MS)
        elif clock == "observer":
            self.claimant().acquire()  # Busy: the first look only begins to count.
            self.let_expire()
        grant = self.claimant().acquire()
        require(
            isinstance(grant, ask.Granted), f"H1: by its clock ({clock}), the lease has expired; the reply: {grant}"
        )

    def test_a_process_that_never_saw_a_lease_leaves_it_alone(self) -> None:
        """H1: whichever clock it has."""
        if not self.survives_reopening:
            return
        holder, store = self.claimant(), self.store
        holder.hold()
        self.reopen()
        require(isinstance(self.claimant().acquire(), ask.Busy), "H1: a lease outlives the connection that got it")
        self.store = store
        require(holder.renew() is None, "H1: and goes on")

    def test_renewal_extends_the_lease(self) -> None:
        """H2: a renewal sets the full ttl from the moment of the renewal."""
        holder = self.claimant()
        holder.hold()
        self.pass_time(self.short_ttl_ms)
        renewed = self.renew(holder)
        left_ms = renewed.remaining_ms.get(holder.claim, 0)
        spent_ms = holder.ttl_ms - self.short_ttl_ms
        lowest_ms = spent_ms - self.renewal_lag_ms
        require(lowest_ms < left_ms <= holder.ttl_ms, f"H2: a renewal gives back the time that has passed: {renewed}")
        for _ in range(TRIES):  # On a slow machine the same time may pass again before the inspection.
            if self.info().remaining * 1000 > spent_ms:
                return
            self.renew(holder)
        raise AssertionError("H2: inspection shows the renewed lease")

    def test_an_expired_lease_cannot_be_renewed(self) -> None:
        """T4: even if no other claim took it over; otherwise its holder would continue with a possibly stale token."""
        holder = self.brief()
        holder.hold()
        self.let_expire()
        require(holder.renew(), "T4: a renewal after expiry is refused, with the reason")
        require(not self.info().is_held, "T4: a refused renewal changes nothing")
        require(
            isinstance(holder.acquire(), ask.ClaimEnded), "T4: a retry of the acquire does not revive an expired lease"
        )

    def test_a_lease_taken_over_cannot_be_renewed(self) -> None:
        """T4: the reason names the new holder."""
        stale, fresh = self.brief(), self.claimant()
        stale.hold()
        self.let_expire()
        fresh.hold()
        require(fresh.holder in (stale.renew() or ""), "the reason of the loss names the new holder")
        require(fresh.renew() is None, "the new holder's lease continues")

    def test_a_batch_tells_the_lost_from_the_renewed(self) -> None:
        """H2: one request renews many leases, and the reply has a result for each."""
        good, released, expired, never = (
            self.claimant("good"),
            self.claimant("released"),
            self.brief("expired"),
            self.claimant("never"),
        )
        for lease in (good, released, expired):
            lease.hold()
        released.release()
        self.let_expire()
        stranger = self.claimant("good")
        reply = self.renew(good, released, expired, never, stranger)
        require(set(reply.remaining_ms) == {good.claim}, f"H2: the batch renews exactly the running lease: {reply}")
        lost = {lease.claim for lease in (released, expired, never, stranger)}
        require(
            set(reply.lost) == lost and all(reply.lost.values()),
            f"H2: the reply has a reason for each lost lease: {reply}",
        )
        require(self.renew() == ask.Renewed({}, {}), "H2: an empty batch is not an error")

    # --- release ------------------------------------------------------------------------------------------------------
    def test_release_frees_the_lock(self) -> None:
        """H4: the reply says whether the lease was still running."""
        holder = self.claimant()
        holder.hold()
        require(holder.release().was_held, "the reply to a release says that the lease was held")
        require(not self.info().is_held, "a released lock is free")
        self.claimant().hold()

    def test_release_is_idempotent(self) -> None:
        """H4: a client repeats a release whose reply was lost."""
        holder = self.claimant()
        holder.hold()
        holder.release()
        require(not holder.release().was_held, "H4: a second release finds no lease to end")

    def test_release_says_that_a_broken_lease_was_lost(self) -> None:
        """H3: a holder that is done before its next renewal learns of a loss from this reply alone."""
        for lock, is_taken in (("free again", False), ("taken again", True)):
            holder = self.claimant(lock)
            holder.hold()
            self.break_lock(lock)
            if is_taken:
                self.claimant(lock).hold()
            require(not holder.release().was_held, f"H3: release says that a broken lease was lost: {lock}")

    def test_release_says_that_a_lease_was_taken_over(self) -> None:
        """H3: a holder that was frozen past its ttl may end its work before it looks at a clock."""
        holder = self.brief()
        holder.hold()
        self.let_expire()
        self.claimant().hold()
        require(not holder.release().was_held, "H3: release says that another claim took the lease over")

    def test_release_says_that_the_epoch_was_raised(self) -> None:
        """H3: a new history ends every lease."""
        if not self.has_epochs:
            return
        holder = self.claimant()
        holder.hold()
        self.raise_epoch()
        require(not holder.release().was_held, "H3: release says that the lease ended with its epoch")
        self.claimant().hold()

    def test_release_by_an_old_claim_frees_nobody_elses_lock(self) -> None:
        """H4: redis-py once released by name."""
        old, new = self.claimant(), self.claimant()
        old.hold()
        old.release()
        new.hold()
        require(not old.release().was_held, "H4: an old claim holds nothing")
        require(self.info().holder == new.holder, "H4: release by an old claim frees nobody else's lock")
        require(new.renew() is None, "H4: the new holder's lease runs on")

    def test_release_by_an_expired_claim_frees_nobody_elses_lock(self) -> None:
        """H4: a holder whose lease was taken over may release late."""
        old, new = self.brief(), self.claimant()
        old.hold()
        self.let_expire()
        new.hold()
        old.release()
        require(self.info().holder == new.holder, "H4: the late release of an expired lease ends nothing")

    def test_release_of_one_lock_leaves_the_others(self) -> None:
        """H4: a claim belongs to one lock."""
        first, second = self.claimant("a"), self.claimant("b")
        first.hold()
        second.hold()
        self.ask(ask.Release("b", first.claim))
        require(self.info("b").holder == second.holder, "H4: a claim of lock a ends nothing on lock b")

    # --- break --------------------------------------------------------------------------------------------------------
    def test_a_break_ends_the_lease_and_says_why(self) -> None:
        """G10: the old holder learns the reason at its next renewal."""
        holder = self.claimant()
        holder.hold()
        broken = self.break_lock(reason="the disk burns")
        require(broken.holder == holder.holder, f"the reply to a break names the holder: {broken}")
        require("the disk burns" in (holder.renew() or ""), "the old holder learns the operator's reason")
        require(not self.info().is_held, "a broken lock is free")
        require(not holder.release().was_held, "the old holder's release ends nothing")

    def test_a_break_of_a_free_lock_ends_nobodys_lease(self) -> None:
        """G10: the break still mints a token, for the guards."""
        require(self.break_lock().holder is None, "a break of a free lock ends no lease")
        self.claimant().hold()

    def test_a_break_asked_again_breaks_nobody_elses_lease(self) -> None:
        """G10: the operator repeats a break whose reply was lost, after another client has acquired the lock."""
        holder, next_one = self.claimant(), self.claimant()
        holder.hold()
        claim, _ = self.run(draw_flow())
        request = ask.Break("lock", claim, "an operator", "a check")
        first = self.ask(request)
        next_one.hold()
        require(self.ask(request) == first, "G10: a repeated break gives the same reply and token")
        require(next_one.renew() is None, "G10: a repeated break does not end a later lease")

    def test_a_break_asked_again_after_a_raise_gives_its_own_token(self) -> None:
        """G10: the operator repeats a break whose reply was lost, after the epoch was raised."""
        self.claimant().hold()
        claim, _ = self.run(draw_flow())
        request = ask.Break("lock", claim, "an operator", "a check")
        first = self.ask(request)
        self.raise_epoch()
        require(self.ask(request).token == first.token, "G10: a repeated break gives the token that it minted")

    # --- lost replies and threads -------------------------------------------------------------------------------------
    def test_a_lost_reply_is_answered_again(self) -> None:
        """T3, H5: in redis-py and python-redis-lock retry after a lost reply meant "not acquired" while holding."""
        attempt = Attempt("lock", "holder", self.long_ttl_ms)
        lossy = LostReplies(self.store, (ask.Acquire, ask.ReserveBlock, ask.Release))
        grant = self.runner.run(lossy, acquire(attempt, may_wait=False, timeout_ms=0))
        if grant is None or attempt.claim is None:
            raise AssertionError("T3: an acquire whose reply was lost is granted when it is asked again")
        require(self.info().token == grant.token, "T3: the retry issues no second token")
        loss = self.runner.run(lossy, end_lease("lock", attempt.claim))
        require(not self.info().is_held, "H4: a release whose reply was lost is done when it is asked again")
        require(ask.Release not in lossy.to_lose, "the reply to the first release was lost")
        require(loss is None, f"H3: a release that was repeated in doubt is no loss: {loss}")

    def test_a_lost_reply_to_a_poll_is_answered_again(self) -> None:
        """T3: a granted waiter whose reply was lost is not queued behind itself."""
        holder = self.claimant()
        holder.hold()
        lossy = LostReplies(self.store, (ask.Poll,))
        flow = acquire(Attempt("lock", "waiter", self.long_ttl_ms), may_wait=True, timeout_ms=None)
        request = flow.send(None)
        while not isinstance(request, ask.Wait):
            request = flow.send(None if isinstance(request, ask.Listen) else self.run(ask_flow(request)))
        holder.release()
        # The flow sleeps: sending it None ends its sleep.
        (grant,) = self.runner.together(lossy, [flow])
        require(grant is not None and self.info().token == grant.token, "T3: a lost reply to a poll is answered again")

    def test_two_threads_on_one_lock_exclude_each_other(self) -> None:
        """H9: two claims of one process stay distinct, whatever the process shares between them."""
        inside: list[str] = []

        def work(number: int) -> SourceFlow[None]:
            for _ in range(ROUNDS):
                attempt = Attempt("lock", f"worker-{number}", self.long_ttl_ms)
                yield from acquire(attempt, may_wait=True, timeout_ms=None)
                inside.append(attempt.holder)
                yield ask.Wait(INSIDE_MS)
                require(inside == [attempt.holder], f"H9: one claim at a time holds the lock, not {inside}")
                inside.clear()
                yield from release("lock", attempt.claim or "")

        self.runner.together(self.store, [work(number) for number in range(THREADS)])
        require(not self.info().is_held, "H9: all claims have released the lock")
