"""Guards that break one rule each: the conformance kit must reject every one.

Each is a session of a target in memory in which one method, or one decision of the flows, is changed.
"""

import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace

from fencelock._flows.admit import Verdict, admit
from fencelock._flows.tenure import Tenure
from fencelock.errors import (
    GuardError,
    ImplausibleTokenError,
    SealLostError,
    SourceUnavailableError,
    StaleTokenError,
    TokenCollisionError,
    WrongLockError,
)
from fencelock.model import one_way
from fencelock.protocol import guard_requests as ask
from fencelock.stores.errors import check_plausible
from tests.conformance.memory_guard import PatientSession


class SealNeverCommitted(PatientSession):
    def _commit(self, _):
        self.rollback()


class SealCommittedWithTheWork(PatientSession):
    """The seal is part of the user's transaction, and undone with it."""

    pending = ()

    def _commit(self, _):
        self.pending = tuple(self.inside.marks.values())
        self.rollback()

    def enter(self):
        super().enter()
        self.work.marks.update((mark.resource, mark) for mark in self.pending)


class MarkInTheClientsMemory(PatientSession):
    """etcd's own example."""

    def _commit(self, _):
        self.own = dict(self.inside.marks)
        self.rollback()

    def enter(self):
        super().enter()
        self.work.marks.update(getattr(self, "own", {}))


class OneConnectionForAll(PatientSession):
    """A connection that a late thread still has is given to the next block."""

    def __new__(cls, place):
        if not hasattr(place, "session"):
            place.session = super().__new__(cls)
        return place.session

    def __init__(self, place):
        if not hasattr(self, "place"):
            super().__init__(place)


class OneReplyBehind(OneConnectionForAll):
    """A connection that is kept though it was interrupted between a request and its reply."""

    def perform(self, request):
        self.replies = getattr(self, "replies", deque())
        self.replies.append(super().perform(request))
        return self.replies.popleft()


class ThreadForEver(OneConnectionForAll):
    """A thread that did not start at once is believed to run, and nobody starts it again."""

    def perform(self, request):
        if not hasattr(self, "thread"):
            self.thread = threading.Thread(target=int)
            with suppress(RuntimeError):
                self.thread.start()
        if self.thread.ident is None:
            raise SourceUnavailableError("the thread does not answer")
        return super().perform(request)


class MarkPerRow(PatientSession):
    def _read_marks(self, _):
        return {}

    def _open(self, request):
        self.enter()
        self.sequencer = request.sequencer
        return ()

    def _finish(self, request):
        self.publish()

    def put(self, table, key, value):
        row = self.inside.data.get((table, key))
        if row is not None and row[0] > self.sequencer.token:
            raise StaleTokenError("stale", token=self.sequencer.token, mark=row[0], resource="r")
        self.inside.data[table, key] = (self.sequencer.token, value)


class NoCheckAtTheWrite(PatientSession):
    """The mark is compared when the tenure seals, and never again."""

    def is_own(self, resource, sequencer):
        return True


class NoWriterLock(PatientSession):
    """Checks and changes in two transactions: a seal may come between them."""

    def enter(self):
        self.target.writer = self
        self.work = self.target.state.copy()
        self.presented = {}


class _RaisedMarksChanged(PatientSession):
    def changed(self, mark):
        raise NotImplementedError

    def _raise_marks(self, request):
        super()._raise_marks(request)
        marks = self.inside.marks
        marks.update((resource, self.changed(marks[resource])) for resource in request.resources)


class MarksAsFloats(_RaisedMarksChanged):
    def changed(self, mark):
        return replace(mark, token=min(int(float(mark.token)), 2**63 - 1))

    def is_own(self, resource, sequencer):
        return float(self.inside.marks[resource].token) == float(sequencer.token)


class MarksAs32Bits(_RaisedMarksChanged):
    def changed(self, mark):
        return replace(mark, token=mark.token & 0xFFFFFFFF)


class MarkWithoutDigest(_RaisedMarksChanged):
    def changed(self, mark):
        return replace(mark, digest="?")


class MarkWithoutSource(_RaisedMarksChanged):
    def changed(self, mark):
        return replace(mark, source_id=None)

    def is_own(self, resource, sequencer):
        mark = self.inside.marks.get(resource)
        return super().is_own(resource, sequencer) or (mark is not None and mark.digest == sequencer.digest)


class MarkWithoutClosing(PatientSession):
    def _close_marks(self, request):
        pass


class ClosingForgetsTheMark(PatientSession):
    def _close_marks(self, request):
        for resource in request.resources:
            del self.inside.marks[resource]


class ClosingByAnybody(PatientSession):
    def _close_marks(self, request):
        for resource in request.resources:
            self.inside.marks[resource] = replace(self.inside.marks[resource], is_closed=True)


class ClosingByTheProof(PatientSession):
    """Hashes what it is given once too seldom."""

    def _close_marks(self, request):
        super()._close_marks(request)
        for resource in request.resources:
            mark = self.inside.marks[resource]
            if mark.digest == one_way(request.claim):
                self.inside.marks[resource] = replace(mark, is_closed=True)


class ClosingByTheDigest(PatientSession):
    def _close_marks(self, request):
        super()._close_marks(request)
        for resource in request.resources:
            mark = self.inside.marks[resource]
            if mark.digest == request.claim:
                self.inside.marks[resource] = replace(mark, is_closed=True)


class DigestPresented(PatientSession):
    """Compares what is presented with the mark as it is."""

    def is_own(self, resource, sequencer):
        mark = self.inside.marks.get(resource)
        return super().is_own(resource, sequencer) or (mark is not None and mark.digest == sequencer.proof)


class ProofKept(PatientSession):
    """Keeps what it is shown beside the mark."""

    def _raise_marks(self, request):
        super()._raise_marks(request)
        self.inside.data["proof", ""] = request.sequencer.proof


class ProofInTheMark(PatientSession):
    """One digest instead of two: the mark is a complete sequencer."""

    def _raise_marks(self, request):
        super()._raise_marks(request)
        for resource in request.resources:
            self.inside.data["proof", resource] = request.sequencer.proof

    def _look(self, request):
        seen = super()._look(request)
        proofs = self.target.state.data
        return seen._replace(marks=tuple(replace(one, digest=proofs["proof", one.resource]) for one in seen.marks))


class AnyTokenPlausible(PatientSession):
    def _check_plausible(self, resource, token):
        pass


class OperatorsTokenPlausible(PatientSession):
    def _change_mark(self, request):
        super()._change_mark(request._replace(is_implausible=True))


class ImplausibleUnderAnotherName(PatientSession):
    """Refuses with an error that no hook counts."""

    def _raise_marks(self, request):
        try:
            super()._raise_marks(request)
        except ImplausibleTokenError as error:
            raise GuardError(str(error)) from error


class OnlyTheClockCounts(PatientSession):
    """Its ceiling forgets what an operator has vouched for."""

    def _check_plausible(self, resource, token):
        check_plausible(resource, token, 0, time.time())


class FloorForgotten(PatientSession):
    """Purges marks, and remembers none of their tokens."""

    def _purge_marks(self, request):
        count = super()._purge_marks(request)
        self.inside.floors.clear()
        return count


class FloorForKnownResources(PatientSession):
    """Keeps the floor of the purged resources alone."""

    def _purge_marks(self, request):
        self.target.purged = {mark.resource for mark in request.marks}
        return super()._purge_marks(request)

    def _raise_marks(self, request):
        floors = self.inside.floors
        if not self.target.purged.issuperset(request.resources):
            self.inside.floors = {}
        super()._raise_marks(request)
        self.inside.floors = floors


class OneFloorForAllSources(PatientSession):
    def _raise_marks(self, request):
        self.inside.floors[request.sequencer.source_id] = max(self.inside.floors.values(), default=0)
        super()._raise_marks(request)


class FloorForMissingMarksAlone(PatientSession):
    """Asks for no floor where a mark without a source stands."""

    def _raise_marks(self, request):
        floors = self.inside.floors
        if any(resource in self.inside.marks for resource in request.resources):
            self.inside.floors = {}
        super()._raise_marks(request)
        self.inside.floors = floors


class FloorOfTheLastPurge(PatientSession):
    def _purge_marks(self, request):
        self.inside.floors.clear()
        return super()._purge_marks(request)


class WhateverTheMarkIsNow(PatientSession):
    """Purges by the resource's name."""

    def _purge_marks(self, request):
        marks = tuple(self.inside.marks[mark.resource] for mark in request.marks)
        return super()._purge_marks(request._replace(marks=marks))


class PurgesAtOnce(PatientSession):
    def _purge_marks(self, request):
        return self.target.state.purge_marks(request)


class AnythingMayGo(PatientSession):
    def _find_old_marks(self, request):
        return tuple(mark for mark in self.target.state.marks.values() if mark.source_id == request.source_id)


class OnePage(PatientSession):
    def _find_old_marks(self, request):
        return super()._find_old_marks(request._replace(after=""))


class FloorSetBlindly(PatientSession):
    def _set_floor(self, request):
        self.inside.floors[request.floor.source_id] = request.floor.token


class OperatorIgnored(PatientSession):
    def _change_mark(self, request):
        pass


class BindingIgnored(PatientSession):
    def _change_mark(self, request):
        before = self.inside.marks[request.mark.resource]
        super()._change_mark(request._replace(mark=replace(request.mark, lock=before.lock)))


class OneMarkForAll(PatientSession):
    def _read_marks(self, request):
        mark = self.inside.marks.get("only")
        return {resource: replace(mark, resource=resource) for resource in request.resources} if mark else {}

    def _raise_marks(self, request):
        super()._raise_marks(request._replace(resources=("only",)))

    def is_own(self, resource, sequencer):
        return super().is_own("only", sequencer)


class MarksFolded(PatientSession):
    def _read_marks(self, request):
        found = super()._read_marks(ask.ReadMarks(tuple(name.lower() for name in request.resources)))
        return {name: found[name.lower()] for name in request.resources if name.lower() in found}

    def _raise_marks(self, request):
        super()._raise_marks(request._replace(resources=tuple(name.lower() for name in request.resources)))


class OnlyTheFirstIsSealed(PatientSession):
    def _raise_marks(self, request):
        super()._raise_marks(request._replace(resources=request.resources[:1]))


class MarkBeforeTheFirstSeal(PatientSession):
    def _look(self, request):
        seen = super()._look(request)
        return seen if seen.marks else seen._replace(marks=(ask.Mark("r", "lock", 1),))


class UndoneWorkStays(PatientSession):
    def rollback(self):
        if self.work is not None and self.presented:
            self.target.state = self.work
        super().rollback()


class NothingEnforced(PatientSession):
    def put(self, table, key, value):
        self.inside.data[table, key] = value


class PresentedForEver(PatientSession):
    def is_presented(self, resource):
        self.target.known = getattr(self.target, "known", False) or super().is_presented(resource)
        return self.target.known


class PresentedForEverything(PatientSession):
    def is_presented(self, resource):
        return bool(self.presented)


class EverythingProtected(PatientSession):
    def put(self, table, key, value):
        protected = next(iter(self.inside.tables), table)
        super().put(protected, key, value)
        self.inside.data[table, key] = value


class UnprotectIgnored(PatientSession):
    def _unprotect(self, request):
        return ()


class UnprotectForgetsTheMark(PatientSession):
    def _unprotect(self, request):
        self.inside.marks.pop(request.resource)
        return super()._unprotect(request)


class TablesStolen(PatientSession):
    def _protect(self, request):
        for table in request.tables:
            self.inside.tables.pop(table, None)
        return super()._protect(request)


class ObservingRefuses(PatientSession):
    def _protect(self, request):
        return super()._protect(request._replace(mode="enforce"))


class ObservingCountsNothing(PatientSession):
    def _look(self, request):
        return super()._look(request)._replace(observations=())


class ObservingCountsEverything(PatientSession):
    def put(self, table, key, value):
        super().put(table, key, value)
        self.inside.observe("r", table, "update")


class SwitchNotTold(PatientSession):
    def _protect(self, request):
        super()._protect(request)
        return ask.Protected(())


class ProtectingResetsTheMark(PatientSession):
    def _protect(self, request):
        self.inside.marks.pop(request.resource, None)
        return super()._protect(request)


class EffectsForgotten(PatientSession):
    def _write_effect(self, request):
        pass


class EffectsOfAllResources(PatientSession):
    def _read_effect(self, request):
        state = self.work or self.target.state
        return next((effect for (_, key), effect in state.effects.items() if key == request.key), None)


class IntentsKeptForEver(PatientSession):
    def _write_effect(self, request):
        if request.effect.holder:
            super()._write_effect(request)


class EffectsKeptApartFromTheBlock(PatientSession):
    def _write_effect(self, request):
        super()._write_effect(request)
        self.target.state.effects.update(self.inside.effects)


class EffectsUnderAnyToken(PatientSession):
    def _write_effect(self, request):
        super()._write_effect(request)
        self.inside.effects[request.resource, request.effect.key] = request.effect


class EffectsOfAnybody(PatientSession):
    def _write_effect(self, request):
        self.inside.effects[request.resource, request.effect.key] = request.effect


class BegunAgain(PatientSession):
    """Replaces what is kept under a key."""

    def _begin_effect(self, request):
        self._write_effect(ask.WriteEffect(*request))


class ToldToTheNewestAlone(PatientSession):
    def _read_effect(self, request):
        return super()._read_effect(request) if self.work and self.is_presented(request.resource) else None


class RequestsNotCompared(PatientSession):
    def _write_effect(self, request):
        super()._write_effect(request._replace(effect=request.effect._replace(request_digest="")))


class PurgedUnderTheMark(PatientSession):
    def _purge_effects(self, request):
        for place, effect in self.target.state.effects.items():
            self.target.state.effects[place] = effect._replace(token=0)
        return super()._purge_effects(request)


class PurgedAtAnyAge(PatientSession):
    def _purge_effects(self, request):
        return super()._purge_effects(request._replace(older_than_ms=0))


class DoubtsPurged(PatientSession):
    def _purge_effects(self, request):
        count = super()._purge_effects(request)
        if count:
            self.target.state.effects.clear()
        return count


BROKEN_GUARDS = (
    (SealNeverCommitted, "test_a_seal_outlives_the_client_that_made_it"),
    (SealCommittedWithTheWork, "test_a_seal_is_committed_apart_from_the_users_work"),
    (SealCommittedWithTheWork, "test_a_seal_is_seen_by_others_before_the_first_read"),
    (MarkInTheClientsMemory, "test_a_seal_outlives_the_client_that_made_it"),
    (MarkPerRow, "test_a_mark_is_of_the_whole_resource"),
    (NoCheckAtTheWrite, "test_a_mark_is_checked_again_in_each_transaction"),
    (NoCheckAtTheWrite, "test_a_seal_that_is_gone_is_not_made_again"),
    (NoCheckAtTheWrite, "test_a_stale_holder_is_refused_where_the_store_enforces"),
    (NoWriterLock, "test_a_seal_does_not_overtake_an_open_transaction"),
    (MarksAsFloats, "test_tokens_are_compared_exactly_up_to_the_last"),
    (MarksAs32Bits, "test_tokens_are_compared_exactly_up_to_the_last"),
    (MarkWithoutDigest, "test_a_holder_may_write_again"),
    (MarkWithoutDigest, "test_a_holder_may_write_through_another_guard"),
    (MarkWithoutSource, "test_another_sources_lease_is_refused"),
    (MarkWithoutClosing, "test_a_closed_mark_refuses_its_own_holder"),
    (MarkWithoutClosing, "test_closing_before_sealing_refuses_the_token_too"),
    (ClosingForgetsTheMark, "test_a_closed_mark_refuses_its_own_holder"),
    (ClosingByAnybody, "test_only_the_claim_closes_a_mark"),
    (ClosingByTheProof, "test_only_the_claim_closes_a_mark"),
    (ClosingByTheDigest, "test_only_the_claim_closes_a_mark"),
    (DigestPresented, "test_who_reads_a_mark_cannot_present_it"),
    (ProofKept, "test_a_mark_keeps_the_digest_and_no_proof"),
    (ProofInTheMark, "test_a_mark_keeps_the_digest_and_no_proof"),
    (AnyTokenPlausible, "test_an_implausible_token_is_refused"),
    (OperatorsTokenPlausible, "test_an_implausible_token_is_refused"),
    (ImplausibleUnderAnotherName, "test_each_refusal_is_told_once"),
    (OnlyTheClockCounts, "test_a_token_near_the_mark_is_plausible"),
    (FloorForgotten, "test_a_purged_mark_leaves_a_floor"),
    (FloorForKnownResources, "test_a_floor_is_for_every_resource_of_its_source"),
    (OneFloorForAllSources, "test_a_floor_is_for_every_resource_of_its_source"),
    (FloorForMissingMarksAlone, "test_a_mark_that_has_no_source_yet_is_below_the_floor_too"),
    (FloorOfTheLastPurge, "test_a_floor_never_falls_by_a_purge"),
    (WhateverTheMarkIsNow, "test_a_mark_that_was_raised_since_is_not_purged"),
    (PurgesAtOnce, "test_a_purge_that_is_undone_changes_nothing"),
    (AnythingMayGo, "test_marks_that_may_not_go_are_not_found"),
    (OnePage, "test_old_marks_are_found_page_by_page"),
    (FloorSetBlindly, "test_a_floor_is_set_with_an_audit_entry"),
    (OperatorIgnored, "test_raising_a_mark_to_a_source_refuses_what_it_had_issued"),
    (OperatorIgnored, "test_a_mark_is_lowered_by_an_operator_only"),
    (OperatorIgnored, "test_a_broken_lease_is_outranked"),
    (BindingIgnored, "test_rebinding_moves_a_resource_to_another_lock"),
    (OneMarkForAll, "test_resources_have_marks_of_their_own"),
    (MarksFolded, "test_resource_names_are_kept_apart"),
    (OnlyTheFirstIsSealed, "test_several_resources_are_sealed_together"),
    (MarkBeforeTheFirstSeal, "test_a_resource_that_was_never_sealed_has_mark_0"),
    (UndoneWorkStays, "test_a_seal_is_committed_apart_from_the_users_work"),
    (NothingEnforced, "test_an_unfenced_write_is_refused"),
    (PresentedForEver, "test_a_token_is_presented_for_one_transaction"),
    (PresentedForEverything, "test_a_token_is_presented_for_its_own_resource"),
    (EverythingProtected, "test_other_tables_are_free"),
    (UnprotectIgnored, "test_unprotecting_lets_anybody_write_again"),
    (UnprotectForgetsTheMark, "test_unprotecting_lets_anybody_write_again"),
    (TablesStolen, "test_a_table_belongs_to_one_resource"),
    (ObservingRefuses, "test_observing_counts_and_lets_pass"),
    (ObservingCountsNothing, "test_observing_counts_and_lets_pass"),
    (ObservingCountsEverything, "test_a_fenced_write_is_not_counted"),
    (SwitchNotTold, "test_going_over_to_enforcing_raises_the_mark"),
    (ProtectingResetsTheMark, "test_protecting_again_changes_nothing"),
    (EffectsForgotten, "test_an_intent_is_seen_by_the_next_holder"),
    (EffectsOfAllResources, "test_an_intent_is_seen_by_the_next_holder"),
    (IntentsKeptForEver, "test_an_intent_that_is_taken_back_is_forgotten"),
    (EffectsKeptApartFromTheBlock, "test_an_intent_is_undone_with_its_block"),
    (NoWriterLock, "test_two_blocks_of_one_lease_do_not_both_begin"),
    (EffectsUnderAnyToken, "test_an_effect_is_kept_under_the_token_that_was_presented"),
    (EffectsOfAnybody, "test_an_effect_is_kept_under_the_token_that_was_presented"),
    (BegunAgain, "test_a_key_is_begun_once"),
    (BegunAgain, "test_a_key_is_committed_with_its_work"),
    (EffectsForgotten, "test_a_key_is_begun_once"),
    (EffectsKeptApartFromTheBlock, "test_a_key_is_committed_with_its_work"),
    (ToldToTheNewestAlone, "test_a_stale_lease_is_told_what_was_done"),
    (RequestsNotCompared, "test_a_key_of_another_request_is_refused"),
    (PurgedUnderTheMark, "test_old_results_are_purged_and_no_others"),
    (PurgedAtAnyAge, "test_old_results_are_purged_and_no_others"),
    (DoubtsPurged, "test_old_results_are_purged_and_no_others"),
    (OneConnectionForAll, "test_a_kept_connection_writes_in_no_later_block"),
    (OneReplyBehind, "test_an_interrupted_block_leaves_the_next_one_in_order"),
    (ThreadForEver, "test_a_block_succeeds_once_threads_start_again"),
)
"""Each broken guard, and a check that must reject it."""


def _tolerating(*tolerated):
    """Return an `admit` that ignores these refusals."""

    def tolerant(mark, sequencer, *, was_sealed):
        try:
            return admit(mark, sequencer, was_sealed=was_sealed)
        except tolerated:
            return Verdict.RAISE

    return tolerant


def _strict(mark, sequencer, *, was_sealed):
    if mark.token == sequencer.token:
        raise StaleTokenError("stale", token=sequencer.token, mark=mark.token, resource=mark.resource)
    return admit(mark, sequencer, was_sealed=was_sealed)


def _seal_by_seal(mark, sequencer, *, was_sealed):
    """Checks only the last of several resources."""
    return Verdict.RAISE if mark.resource == "s" else admit(mark, sequencer, was_sealed=was_sealed)


BROKEN_DECISIONS = (
    (_strict, "test_a_holder_may_write_again"),
    (_tolerating(StaleTokenError), "test_a_lower_token_is_refused_with_both_numbers"),
    (_tolerating(TokenCollisionError), "test_an_equal_token_of_another_claim_is_a_collision"),
    (_tolerating(TokenCollisionError), "test_an_equal_token_of_another_history_is_a_collision"),
    (_tolerating(WrongLockError), "test_another_sources_lease_is_refused"),
    (_tolerating(SealLostError), "test_a_seal_that_is_gone_is_not_made_again"),
    (_tolerating(SealLostError), "test_a_close_that_is_gone_is_not_undone"),
    (_seal_by_seal, "test_of_several_resources_none_is_sealed_if_one_refuses"),
)
"""Each broken `admit`, and a check that must reject it."""


def close_anything(*_):
    """Closes any mark in the name of the leaving holder."""
    return True
    yield


admit_other_locks = _tolerating(WrongLockError)


class CarelessTenure(Tenure):
    """Allows a seal after another resource was read."""

    def check_may_open(self, keys, *, is_independent):
        pass
