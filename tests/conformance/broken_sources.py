"""Sources that break one rule each, as shipped products have: the conformance kit must reject every one.

Each is the reference model with one method changed.
"""

import unicodedata
import zlib

from fencelock.model import one_way
from fencelock.protocol import source_requests as ask
from fencelock.stores.memory.reference_model import LockRow, ReferenceModel


class CounterResetByRelease(ReferenceModel):
    """Litestream's S3 leaser, DistributedLock.MongoDB, `consul lock`."""

    def _release(self, request, now_us):
        self.counter = 0
        return super()._release(request, now_us)


class CounterForgottenByPurge(ReferenceModel):
    def _purge(self, request, now_us):
        self.counter = 0
        return super()._purge(request, now_us)


class CounterEvictedWithItsLease(ReferenceModel):
    """Redisson, Kahuna ephemeral."""

    def _acquire(self, request, now_us):
        row = self.locks.get(request.lock)
        if row is not None and row.digest not in (None, request.claim) and not row.remaining_ms(now_us // 1000):
            self.counter = 0
        return super()._acquire(request, now_us)


class TokensFromZero(ReferenceModel):
    def _grant(self, *args):
        reply = super()._grant(*args)
        return reply._replace(token=reply.token - 1) if isinstance(reply, ask.Granted) else reply


class TokenDrawnAfterTheGrant(ReferenceModel):
    """portalocker: the counter is read in a step of its own."""

    def answer(self, request, now_us):
        reply = super().answer(request, now_us)
        if isinstance(reply, ask.Granted):
            self.counter += 1
            return reply._replace(token=self.counter)
        return reply


class TokenOfTheMomentForAnybody(ReferenceModel):
    """Redisson's getToken(): a stale holder reads its successor's token."""

    def _acquire(self, request, now_us):
        reply = super()._acquire(request, now_us)
        row = self.locks.get(request.lock)
        if isinstance(reply, ask.ClaimEnded) and row is not None and row.digest is not None:
            return ask.Granted(row.token, row.ttl_ms, self.source_id, self.history_id)
        return reply


class RetryIssuesAnotherToken(ReferenceModel):
    """Redisson: a re-entrant acquire increments, so that the outer frame is stale."""

    def _granted_before(self, row, now_ms):
        self.counter += 1
        return super()._granted_before(row._replace(token=self.counter), now_ms)


class RetryOfAPollIssuesAnotherToken(ReferenceModel):
    def _poll(self, request, now_us):
        row = self.locks.get(request.lock)
        if row is not None and row.digest == request.claim:
            self.counter += 1
            self.locks[request.lock] = row._replace(token=self.counter)
        return super()._poll(request, now_us)


class RetryBeginsTheLeaseAnew(ReferenceModel):
    def _granted_before(self, row, now_ms):
        reply = super()._granted_before(row, now_ms)
        return reply._replace(remaining_ms=row.ttl_ms) if isinstance(reply, ask.Granted) else reply


class RetryFindsItselfBusy(ReferenceModel):
    """redis-py, python-redis-lock: lost reply and retry is "not acquired", while holding."""

    def _granted_before(self, row, now_ms):
        return ask.Busy()


class RenewalIssuesAnotherToken(ReferenceModel):
    def _renew(self, request, now_us):
        reply = super()._renew(request, now_us)
        for lock, _ in request.leases:
            self.counter += 1
            self.locks[lock] = self.locks[lock]._replace(token=self.counter)
        return reply


class ExpiredRenewalAccepted(ReferenceModel):
    def _renew(self, request, now_us):
        for lock, claim in request.leases:
            row = self.locks.get(lock)
            if row is not None and row.digest == claim:
                self.locks[lock] = row._replace(deadline_ms=now_us // 1000 + row.ttl_ms)
        return super()._renew(request, now_us)


class RenewalByName(ReferenceModel):
    def _renew(self, request, now_us):
        renewed = {claim: self.locks[lock].ttl_ms for lock, claim in request.leases if lock in self.locks}
        return ask.Renewed(renewed, {})


class RenewalThatExtendsNothing(ReferenceModel):
    def _renew(self, request, now_us):
        before = dict(self.locks)
        reply = super()._renew(request, now_us)
        self.locks = before
        return reply


class RenewalWithoutReason(ReferenceModel):
    def _why_lost(self, row, claim):
        return ""


class LeaseWithoutEnd(ReferenceModel):
    def _is_free(self, lock, now_ms):
        row = self.locks.get(lock)
        return row is None or row.digest is None


class ReleaseByName(ReferenceModel):
    """redis-py before its nonce: any release frees the lock."""

    def _release(self, request, now_us):
        row = self.locks.get(request.lock)
        digest = row.digest if row is not None and row.digest else request.claim
        return super()._release(request._replace(claim=digest), now_us)


class ReleaseOfTheClaimAlone(ReferenceModel):
    def _free(self, lock, row, ended, now_us):
        if ended != "it was released":
            super()._free(lock, row, ended, now_us)


class BreakThatNamesAnybody(ReferenceModel):
    def _break(self, request, now_us):
        reply = super()._break(request, now_us)
        return reply._replace(holder="somebody") if isinstance(reply, ask.Broken) else reply


class ReleaseThatClaimsSuccess(ReferenceModel):
    def _release(self, request, now_us):
        super()._release(request, now_us)
        return ask.Released(was_held=True)


class _ReleaseBlindTo(ReferenceModel):
    """Its release reports a lease as held although it had ended; the subclass chooses how."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.unnoticed = set()

    def overlook(self, lock):
        row = self.locks.get(lock)
        if row is not None:
            self.unnoticed.add(row.digest)

    def _release(self, request, now_us):
        reply = super()._release(request, now_us)
        return ask.Released(reply.was_held or request.claim in self.unnoticed)


class ReleaseBlindToBreaks(_ReleaseBlindTo):
    def _break(self, request, now_us):
        self.overlook(request.lock)
        return super()._break(request, now_us)


class ReleaseBlindToTakeOvers(_ReleaseBlindTo):
    def _grant(self, lock, *args):
        self.overlook(lock)
        return super()._grant(lock, *args)


class ReleaseBlindToEpochs(_ReleaseBlindTo):
    def _raise_epoch(self, request, now_us):
        for lock in self.locks:
            self.overlook(lock)
        return super()._raise_epoch(request, now_us)


class ReleaseForgotten(ReferenceModel):
    """A late duplicate of the acquire is granted to nobody."""

    def is_over(self, claim, born_us):
        return False


class ReleaseRememberedUntilTheNext(ReferenceModel):
    def remember_ended(self, claim, now_us):
        self.ended_us.clear()
        super().remember_ended(claim, now_us)


class ReleaseRememberedUntilPurge(ReferenceModel):
    def _purge(self, request, now_us):
        reply = super()._purge(request, now_us)
        self.ended_us.clear()
        return reply


class ExpiryForgotten(ReferenceModel):
    def _grant(self, lock, claim, holder, ttl_ms, now_us):
        row = self.locks.get(lock)
        reply = super()._grant(lock, claim, holder, ttl_ms, now_us)
        if row is not None:
            self.ended_us.pop(row.digest, None)
        return reply


class BreakForgotten(ReferenceModel):
    def _break(self, request, now_us):
        row = self.locks.get(request.lock)
        reply = super()._break(request, now_us)
        if row is not None:
            self.ended_us.pop(row.digest, None)
        return reply


class LeaverForgotten(ReferenceModel):
    def _release(self, request, now_us):
        waits = request.claim in self.queues.get(request.lock, ())
        reply = super()._release(request, now_us)
        if waits:
            self.ended_us.pop(request.claim)
        return reply


class HastyReleaseForgotten(ReferenceModel):
    def _release(self, request, now_us):
        row = self.locks.get(request.lock)
        is_known = (row is not None and row.digest == request.claim) or request.claim in self.queues.get(
            request.lock, ()
        )
        reply = super()._release(request, now_us)
        if not is_known:
            self.ended_us.pop(request.claim, None)
        return reply


class Barging(ReferenceModel):
    def _acquire(self, request, now_us):
        if self._is_free(request.lock, now_us // 1000) and not self.is_over(request.claim, request.born_us):
            return self._grant(request.lock, request.claim, request.holder, request.ttl_ms, now_us)
        return super()._acquire(request, now_us)


class LastInFirstOut(ReferenceModel):
    def head(self, lock, now_ms):
        queue = self.queues.get(lock, {})
        return next((claim for claim in reversed(queue) if queue[claim].deadline_ms > now_ms), None)


class AskingAgainLosesThePlace(ReferenceModel):
    def _acquire(self, request, now_us):
        self.queues.get(request.lock, {}).pop(request.claim, None)
        return super()._acquire(request, now_us)


class LeavingKeepsThePlace(ReferenceModel):
    def _release(self, request, now_us):
        queue = dict(self.queues.get(request.lock, {}))
        reply = super()._release(request, now_us)
        if request.claim in queue:
            self.queues[request.lock] = queue
        return reply


class DeadWaitersStay(ReferenceModel):
    """A dead waiter blocks all waiters behind it."""

    def head(self, lock, now_ms):
        return next(iter(self.queues.get(lock, {})), None)

    def _drop_dead_waiters(self, lock, now_us):
        pass


class DeadWaitersReturn(ReferenceModel):
    """etcd#11456, CURATOR-604: the lock goes to a waiter whose session died."""

    def _drop_dead_waiters(self, lock, now_us):
        pass

    def head(self, lock, now_ms):
        alive = super().head(lock, now_ms)
        return alive or next(iter(self.queues.get(lock, {})), None)


class DeadWaitersForgotten(ReferenceModel):
    def _drop_dead_waiters(self, lock, now_us):
        super()._drop_dead_waiters(lock, now_us)
        self.ended_us.clear()


class PollingKeepsNoPlace(ReferenceModel):
    def _poll(self, request, now_us):
        before = self.queues.get(request.lock, {}).get(request.claim)
        reply = super()._poll(request, now_us)
        if isinstance(reply, ask.Queued) and before is not None:
            now_ms = now_us // 1000
            self.queues[request.lock][request.claim] = before._replace(deadline_ms=now_ms + 1)
        return reply


class PollGrantsAnybody(ReferenceModel):
    def _poll(self, request, now_us):
        if self._is_free(request.lock, now_us // 1000):
            return self._grant(request.lock, request.claim, "?", 1000, now_us)
        return super()._poll(request, now_us)


class SleepWithoutEnd(ReferenceModel):
    def _take_turn(self, lock, claim, now_us):
        reply = super()._take_turn(lock, claim, now_us)
        return ask.Queued(10**9) if isinstance(reply, ask.Queued) else reply


class BreakWithoutToken(ReferenceModel):
    def _break(self, request, now_us):
        self.counter -= 1
        return super()._break(request, now_us)


class BreakWithoutReason(ReferenceModel):
    def _break(self, request, now_us):
        return super()._break(request._replace(reason="?"), now_us)


class BreakDoneTwice(ReferenceModel):
    """A repeated request breaks the successor's lease."""

    def _break(self, request, now_us):
        self.breaks.clear()
        return super()._break(request, now_us)


class BreakDoneTwiceAfterARaise(ReferenceModel):
    """A break that was done in an earlier history is done again in the new one."""

    def _raise_epoch(self, request, now_us):
        self.breaks.clear()
        return super()._raise_epoch(request, now_us)


class BreakThatDropsTheQueue(ReferenceModel):
    def _break(self, request, now_us):
        self.queues.pop(request.lock, None)
        return super()._break(request, now_us)


class EpochWithoutJump(ReferenceModel):
    def _raise_epoch(self, request, now_us):
        counter = self.counter
        super()._raise_epoch(request, now_us)
        self.counter = self.bound = counter
        return self._read_source(request, now_us)


class EpochThatKeepsLeases(ReferenceModel):
    def start_again(self, now_us, ended):
        self.counter = self.bound


class EpochRaisedByAnybody(ReferenceModel):
    def _raise_epoch(self, request, now_us):
        return super()._raise_epoch(request._replace(history_id=self.history_id), now_us)


class ReservingSpendsTokens(ReferenceModel):
    def _reserve_block(self, request, now_us):
        self.counter = self.bound
        return super()._reserve_block(request, now_us)


class InspectionOfAnotherToken(ReferenceModel):
    def _info(self, lock, now_ms):
        info = super()._info(lock, now_ms)
        return type(info)(info.name, 0, info.holder, info.remaining, info.ttl, info.waiters)


class ListingWithoutTheLast(ReferenceModel):
    def _list(self, request, now_us):
        return super()._list(request, now_us)[:-1]


class OneClaimForTheProcess(ReferenceModel):
    """etcd's own key layout under one shared lease: both threads are owner."""

    def answer(self, request, now_us):
        if hasattr(request, "claim"):
            request = request._replace(claim="this process")
        self.ended_us.clear()
        return super().answer(request, now_us)


class _NamesChanged(ReferenceModel):
    def changed(self, lock):
        raise NotImplementedError

    def answer(self, request, now_us):
        if hasattr(request, "lock"):
            request = request._replace(lock=self.changed(request.lock))
        return super().answer(request, now_us)


class NamesHashedTo16Bits(_NamesChanged):
    """tooz on PostgreSQL."""

    def changed(self, lock):
        return str(zlib.crc32(lock.encode()) & 0xFFFF)


class NamesNormalised(_NamesChanged):
    def changed(self, lock):
        return unicodedata.normalize("NFC", lock)


class NamesFolded(_NamesChanged):
    def changed(self, lock):
        return lock.upper()


class NamesStripped(_NamesChanged):
    def changed(self, lock):
        return lock.rstrip(" ") or lock


class NamesCut(_NamesChanged):
    def changed(self, lock):
        return lock[:255]


class GrantsThatNameNoHistory(ReferenceModel):
    def _grant(self, *args):
        reply = super()._grant(*args)
        return reply._replace(history_id="?") if isinstance(reply, ask.Granted) else reply


class HolderNotRemembered(ReferenceModel):
    def _grant(self, lock, claim, holder, ttl_ms, now_us):
        return super()._grant(lock, claim, "somebody", ttl_ms, now_us)


class EverybodyIsGranted(ReferenceModel):
    def _acquire(self, request, now_us):
        self.locks[request.lock] = self.locks.get(request.lock, LockRow(1, None, None, 0, 0))._replace(digest=None)
        return super()._acquire(request, now_us)


class _AlsoObeys(ReferenceModel):
    """Obeys what is derived from a claim as it obeys the claim."""

    def known(self, digest):
        """Return the claims, as the model keeps them, that this text is taken for."""
        raise NotImplementedError

    def answer(self, request, now_us):
        if isinstance(request, self.OBEYED):
            kept = {row.digest for row in self.locks.values()} | {
                one for queue in self.queues.values() for one in queue
            }
            meant = next((one for one in kept if one is not None and self.known(self.given(request)) == one), None)
            if meant is not None:
                return getattr(self, self.ANSWERS[type(request)])(self.as_meant(request, meant), now_us)
        return super().answer(request, now_us)

    def given(self, request):
        return request.leases[0][1] if isinstance(request, ask.Renew) else request.claim

    def as_meant(self, request, digest):
        if isinstance(request, ask.Renew):
            return ask.Renew(((request.leases[0][0], digest),))
        return request._replace(claim=digest)


class ProofReleases(_AlsoObeys):
    """Hashes what it is given once."""

    OBEYED = (ask.Release,)

    def known(self, given):
        return one_way(given)


class DigestRenews(_AlsoObeys):
    """Compares what it is given with what it keeps."""

    OBEYED = (ask.Renew,)

    def known(self, given):
        return given


class ProofAcquires(ProofReleases):
    OBEYED = (ask.Acquire,)


class ProofTakesTheTurn(ProofReleases):
    OBEYED = (ask.Poll,)


class DigestLeavesTheQueue(DigestRenews):
    OBEYED = (ask.Release,)


class ClaimsKept(ReferenceModel):
    """A log of its own."""

    def answer(self, request, now_us):
        self.log = (*getattr(self, "log", ()), request)
        return super().answer(request, now_us)


class ClaimsShown(ReferenceModel):
    def _why_lost(self, row, digest):
        return "its claim ended"

    def answer(self, request, now_us):
        reply = super().answer(request, now_us)
        if isinstance(reply, ask.Renewed):
            return ask.Renewed(reply.remaining_ms, {claim: f"claim {claim} ended" for claim in reply.lost})
        return reply


class CheckByName(ReferenceModel):
    def _check(self, request, now_us):
        row = self.locks.get(request.lock)
        return ask.Checked(row.remaining_ms(now_us // 1000), row.token) if row else ask.Checked(0, None)


class CheckOfTheDigest(ReferenceModel):
    def _check(self, request, now_us):
        row = self.locks.get(request.lock)
        is_its = row is not None and request.proof == row.digest
        return ask.Checked(1, row.token) if is_its else super()._check(request, now_us)


class CheckOfAnyHistory(ReferenceModel):
    def _check(self, request, now_us):
        return super()._check(request._replace(history_id=self.history_id), now_us)


class CheckWithoutToken(ReferenceModel):
    def _check(self, request, now_us):
        return super()._check(request, now_us)._replace(last_token=0)


class CheckWithoutEnd(ReferenceModel):
    def _check(self, request, now_us):
        return super()._check(request, 0)


class CheckThatRenews(ReferenceModel):
    def _check(self, request, now_us):
        row = self.locks.get(request.lock)
        if row is not None and row.digest is not None:
            self.locks[request.lock] = row._replace(deadline_ms=now_us // 1000 + row.ttl_ms)
        return super()._check(request, now_us)


class CheckRemembersTheLast(ReferenceModel):
    """A release leaves the digest and its deadline where they were."""

    def _free(self, lock, row, ended, now_us):
        self.freed = row
        super()._free(lock, row, ended, now_us)

    def _check(self, request, now_us):
        freed = getattr(self, "freed", None)
        if freed is not None and freed.digest == one_way(request.proof):
            return ask.Checked(freed.remaining_ms(now_us // 1000), freed.token)
        return super()._check(request, now_us)


class PollThatOnlyLooks(ReferenceModel):
    """A poll that keeps no place is answered by reading, even when its turn has come."""

    def _poll(self, request, now_us):
        return super()._poll(request, now_us) if request.keeps_place else ask.Queued(1)


class PollThatGrantsByReading(ReferenceModel):
    """A poll that keeps no place says what another one would write."""

    def _poll(self, request, now_us):
        return ReferenceModel._poll(self if request.keeps_place else self.copy(), request, now_us)


class HandingOver(ReferenceModel):
    """A release gives the lock to the next waiter, from then on; the waiter counts from when it reads that."""

    def _release(self, request, now_us):
        reply = super()._release(request, now_us)
        head = self.head(request.lock, now_us // 1000)
        if reply.was_held and head is not None:
            self._take_turn(request.lock, head, now_us)
        return reply

    def _granted_before(self, row, now_ms):
        reply = super()._granted_before(row, now_ms)
        return reply._replace(remaining_ms=row.ttl_ms) if isinstance(reply, ask.Granted) else reply


class ExpiryOnlySeen(ReferenceModel):
    """A lease is over when it was seen to hold the lock for its ttl, as a source without a clock decides, and this one
    says that it has one.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seen_ms = {}

    def _is_free(self, lock, now_ms):
        row = self.locks.get(lock)
        if row is None or row.digest is None:
            return True
        return now_ms >= self.seen_ms.setdefault(row.token, now_ms) + row.ttl_ms


class ExpiryForNewcomers(ReferenceModel):
    """A lease that is renewed by somebody else's process is nothing to a newcomer."""

    def _acquire(self, request, now_us):
        row = self.locks.get(request.lock)
        if row is not None and row.digest not in (None, request.claim):
            self._free(request.lock, row, "a newcomer came", now_us)
        return super()._acquire(request, now_us)


BROKEN = (
    (PollThatOnlyLooks, "test_a_poll_that_keeps_no_place_takes_the_turn_that_has_come"),
    (PollThatGrantsByReading, "test_a_poll_that_keeps_no_place_takes_the_turn_that_has_come"),
    (HandingOver, "test_a_served_waiter_holds_the_lock_for_as_long_as_it_is_told"),
    (ExpiryOnlySeen, "test_a_process_that_never_saw_a_lease_takes_it_over_after_it_has_expired"),
    (ExpiryForNewcomers, "test_a_process_that_never_saw_a_lease_leaves_it_alone"),
    (CounterResetByRelease, "test_release_keeps_the_counter"),
    (CounterForgottenByPurge, "test_purge_keeps_the_counter"),
    (CounterEvictedWithItsLease, "test_a_token_rises_after_expiry"),
    (TokensFromZero, "test_a_token_is_an_integer_from_1"),
    (TokenDrawnAfterTheGrant, "test_tokens_follow_the_holders_under_contention"),
    (TokenOfTheMomentForAnybody, "test_inspection_shows_the_last_token_and_gives_none_away"),
    (RetryIssuesAnotherToken, "test_a_retry_with_the_same_claim_gives_the_same_token"),
    (RetryOfAPollIssuesAnotherToken, "test_a_waiter_that_asks_again_gets_the_same_token"),
    (RetryBeginsTheLeaseAnew, "test_a_grant_states_the_time_left"),
    (RetryFindsItselfBusy, "test_a_lost_reply_is_answered_again"),
    (RenewalIssuesAnotherToken, "test_renewal_keeps_the_token"),
    (ExpiredRenewalAccepted, "test_an_expired_lease_cannot_be_renewed"),
    (RenewalByName, "test_a_lease_taken_over_cannot_be_renewed"),
    (RenewalThatExtendsNothing, "test_renewal_extends_the_lease"),
    (RenewalWithoutReason, "test_a_batch_tells_the_lost_from_the_renewed"),
    (LeaseWithoutEnd, "test_a_lease_ends_at_its_ttl"),
    (ReleaseOfTheClaimAlone, "test_release_frees_the_lock"),
    (BreakThatNamesAnybody, "test_a_break_of_a_free_lock_ends_nobodys_lease"),
    (ReleaseByName, "test_release_by_an_old_claim_frees_nobody_elses_lock"),
    (ReleaseThatClaimsSuccess, "test_release_is_idempotent"),
    (ReleaseBlindToBreaks, "test_release_says_that_a_broken_lease_was_lost"),
    (ReleaseBlindToTakeOvers, "test_release_says_that_a_lease_was_taken_over"),
    (ReleaseBlindToEpochs, "test_release_says_that_the_epoch_was_raised"),
    (ReleaseForgotten, "test_a_late_duplicate_after_release_is_refused"),
    (ReleaseRememberedUntilTheNext, "test_a_late_duplicate_after_another_grant_is_refused"),
    (ReleaseRememberedUntilPurge, "test_a_late_duplicate_after_purge_is_refused"),
    (ExpiryForgotten, "test_a_late_duplicate_after_takeover_is_refused"),
    (BreakForgotten, "test_a_late_duplicate_after_break_is_refused"),
    (LeaverForgotten, "test_a_late_duplicate_of_a_waiter_is_refused"),
    (HastyReleaseForgotten, "test_a_release_that_overtakes_its_acquire_is_kept"),
    (Barging, "test_a_newcomer_does_not_barge_in"),
    (LastInFirstOut, "test_waiters_are_served_in_the_order_in_which_they_came"),
    (AskingAgainLosesThePlace, "test_a_waiter_that_asks_again_keeps_its_one_place"),
    (LeavingKeepsThePlace, "test_a_waiter_that_leaves_makes_room"),
    (DeadWaitersStay, "test_a_dead_waiter_blocks_no_longer_than_its_ttl"),
    (DeadWaitersReturn, "test_a_waiter_whose_place_expired_is_not_granted"),
    (DeadWaitersForgotten, "test_a_waiter_whose_place_expired_is_not_granted"),
    (PollingKeepsNoPlace, "test_polling_keeps_a_place"),
    (PollGrantsAnybody, "test_a_poll_without_a_place_is_over"),
    (SleepWithoutEnd, "test_a_waiter_is_told_when_to_look_again"),
    (BreakWithoutToken, "test_a_break_mints_a_higher_token"),
    (BreakDoneTwice, "test_a_break_asked_again_breaks_nobody_elses_lease"),
    (BreakDoneTwiceAfterARaise, "test_a_break_asked_again_after_a_raise_gives_its_own_token"),
    (BreakWithoutReason, "test_a_break_ends_the_lease_and_says_why"),
    (BreakThatDropsTheQueue, "test_a_break_lets_the_queue_move_on"),
    (EpochWithoutJump, "test_raising_the_epoch_begins_above_every_token"),
    (EpochThatKeepsLeases, "test_raising_the_epoch_begins_above_every_token"),
    (EpochRaisedByAnybody, "test_raising_the_epoch_is_compared_and_swapped"),
    (ReservingSpendsTokens, "test_reserving_a_block_twice_spends_nothing"),
    (InspectionOfAnotherToken, "test_release_keeps_the_counter"),
    (ListingWithoutTheLast, "test_listing_gives_every_name_back"),
    (OneClaimForTheProcess, "test_two_threads_on_one_lock_exclude_each_other"),
    (NamesHashedTo16Bits, "test_many_names_are_different_locks"),
    (NamesNormalised, "test_nasty_names_are_different_locks"),
    (NamesFolded, "test_nasty_names_are_different_locks"),
    (NamesStripped, "test_nasty_names_are_different_locks"),
    (NamesCut, "test_nasty_names_are_different_locks"),
    (GrantsThatNameNoHistory, "test_a_grant_names_its_source_and_history"),
    (HolderNotRemembered, "test_a_held_lock_is_busy_for_everybody_else"),
    (EverybodyIsGranted, "test_a_held_lock_is_busy_for_everybody_else"),
    (DeadWaitersStay, "test_a_lone_dead_waiter_blocks_nobody"),
    (RetryIssuesAnotherToken, "test_a_lost_reply_to_a_poll_is_answered_again"),
    (CounterResetByRelease, "test_a_new_grant_gives_a_higher_token"),
    (LeaseWithoutEnd, "test_a_queue_moves_on_when_its_holder_expires"),
    (CounterResetByRelease, "test_a_token_rises_over_a_waiter"),
    (DeadWaitersReturn, "test_a_waiter_whose_place_expired_does_not_keep_it"),
    (InspectionOfAnotherToken, "test_an_unknown_lock_has_no_token"),
    (ReleaseByName, "test_release_by_an_expired_claim_frees_nobody_elses_lock"),
    (ReleaseByName, "test_release_of_one_lock_leaves_the_others"),
    (NamesFolded, "test_releasing_one_nasty_name_frees_no_other"),
    (ProofReleases, "test_only_the_claim_ends_or_renews_a_lease"),
    (DigestRenews, "test_only_the_claim_ends_or_renews_a_lease"),
    (ProofAcquires, "test_only_the_claim_ends_or_renews_a_lease"),
    (ProofTakesTheTurn, "test_only_the_claim_has_a_place_in_the_queue"),
    (DigestLeavesTheQueue, "test_only_the_claim_has_a_place_in_the_queue"),
    (ClaimsKept, "test_no_claim_and_no_proof_is_kept"),
    (ClaimsShown, "test_no_claim_and_no_proof_is_kept"),
    (CheckByName, "test_a_check_tells_whether_a_proof_holds_the_lock"),
    (CheckOfTheDigest, "test_a_check_tells_whether_a_proof_holds_the_lock"),
    (CheckOfAnyHistory, "test_a_check_tells_whether_a_proof_holds_the_lock"),
    (CheckWithoutToken, "test_a_check_tells_whether_a_proof_holds_the_lock"),
    (CheckWithoutEnd, "test_a_check_tells_that_a_lease_has_ended"),
    (CheckThatRenews, "test_a_check_tells_that_a_lease_has_ended"),
    (CheckRemembersTheLast, "test_a_check_tells_that_a_lease_has_ended"),
)
"""Each broken source, and a check that must reject it; every check has one."""
