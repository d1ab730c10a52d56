"""The guards' flows, driven by hand over a target in memory: their requests, decisions and memory."""

from collections.abc import Collection
from typing import Any

import pytest

from fencelock import (
    GuardError,
    Mark,
    OutcomeUnknownError,
    Protection,
    SealLostError,
    Sequencer,
    SourceInfo,
    SourceUnavailableError,
    StaleTokenError,
    TokenCollisionError,
    WrongLockError,
)
from fencelock._flows import admin, guarding
from fencelock._flows.conflicts import MAX_CONFLICTS
from fencelock._flows.guarding import MAX_COMMIT_TRIES, Opened, Sealed
from fencelock._flows.tenure import Scope, Tenure
from fencelock.protocol import guard_requests as ask
from fencelock.testing.memory_resource import MemoryResource, MemoryResourceSession
from tests.support.guards import LOCK, claim_of, sequencer

PLACE = "memory://place"
CLAIM = claim_of(5)
OURS = sequencer(5)


class Store(MemoryResourceSession):
    """A session that records its requests, and can raise a mark in its user's transaction."""

    can_raise = False

    def __init__(self, *marks: Mark, mode: str | None = None) -> None:
        super().__init__(MemoryResource())
        for mark in marks:
            self.target.state.marks[mark.resource] = mark
            if mode is not None:
                self.target.state.tables[mark.resource] = Protection(mark.resource, mark.resource, mode)
        self.asked: list[Any] = []

    def perform(self, request: Any) -> Any:
        self.asked.append(request)
        return super().perform(request)

    def _join(self, request: ask.Join) -> bool:
        super()._join(request)
        return self.can_raise

    def mark(self, resource: str = "r") -> Mark:
        return self.target.state.marks[resource]

    def of(self, kind: type) -> list[Any]:
        return [request for request in self.asked if isinstance(request, kind)]


def run(store: Store, flow: Any, *, unconfirmed: Collection[int] = ()) -> Any:
    """Answer a flow's requests by the store; the commits of these numbers are done, and not confirmed."""
    try:
        request = next(flow)
        while True:
            reply = store.perform(request)
            if isinstance(request, ask.Commit) and len(store.of(ask.Commit)) in unconfirmed:
                request = flow.throw(OutcomeUnknownError("no reply to the commit"))
            else:
                request = flow.send(reply)
    except StopIteration as done:
        return done.value
    except BaseException:
        store.rollback()
        raise


def mark(token: int, resource: str = "r", *, of: Sequencer | None = None, is_closed: bool = False) -> Mark:
    """Return the mark of the lease that has this token."""
    lease = of or sequencer(token)
    return Mark(resource, LOCK, token, lease.source_id, lease.history_id, lease.digest, is_closed)


def scope(*resources: str, lock: str = LOCK, is_independent: bool = False) -> Scope:
    return Scope(PLACE, resources or ("r",), lock, is_independent=is_independent)


def close(scope: Scope, lease: Sequencer, tenure: Tenure) -> Any:
    """Close as the holder, who knows the claim."""
    return guarding.close(scope, lease, CLAIM, tenure)


def sealed_tenure(*resources: str) -> Tenure:
    tenure = Tenure()
    keys = scope(*resources).keys
    tenure.remember(keys, keys)
    return tenure


# --- whose lease it is ---
@pytest.mark.parametrize("flow", [guarding.seal, guarding.open_transaction, guarding.check, close])
@pytest.mark.parametrize("lock", ["a-lock", "z-lock"])
def test_g5_a_lease_on_another_lock_is_refused_before_anything_is_asked(flow: Any, lock: str) -> None:
    store = Store(mark(4))
    with pytest.raises(WrongLockError, match=rf"resource 'r', resource 's' belongs to lock '{LOCK}'.*'{lock}'"):
        run(store, flow(scope("r", "s"), sequencer(5, lock=lock), sealed_tenure("r", "s")))
    assert store.asked == []


@pytest.mark.parametrize("flow", [guarding.seal, guarding.open_transaction, guarding.check, close])
@pytest.mark.parametrize("lock", ["a-lock", "z-lock"])
def test_g5_a_resource_bound_to_another_lock_names_the_guard(flow: Any, lock: str) -> None:
    store = Store(Mark("r", lock))
    store.enter()
    with pytest.raises(WrongLockError, match=rf"bound to lock '{lock}', and this guard was opened for lock '{LOCK}'"):
        run(store, flow(scope(), OURS, Tenure()))


@pytest.mark.parametrize("flow", [guarding.seal, guarding.check, close])
def test_g5_a_durable_resource_refuses_a_source_in_memory(flow: Any) -> None:
    durable = Scope("sqlite:////app.db", ("r",), LOCK)
    with pytest.raises(WrongLockError, match="outlives source memory-1"):
        run(Store(mark(4)), flow(durable, sequencer(5, source_id="memory-1"), Tenure()))


# --- seal ---
def test_g2_a_seal_is_one_transaction_over_every_resource() -> None:
    store, tenure = Store(mark(4), mark(3, "s")), Tenure()
    done = run(store, guarding.seal(scope("r", "s"), OURS, tenure))
    assert done == Sealed(("r", "s"))
    assert [type(request) for request in store.asked] == [ask.Begin, ask.ReadMarks, ask.RaiseMarks, ask.Commit]
    assert (store.mark("r"), store.mark("s")) == (mark(5), mark(5, "s"))
    assert tenure.sealed == set(scope("r", "s").keys)


def test_g2_what_is_sealed_already_is_not_written_again() -> None:
    store = Store(mark(5), mark(4, "s"))
    assert run(store, guarding.seal(scope("r", "s"), OURS, Tenure())) == Sealed(("s",))
    assert store.of(ask.RaiseMarks) == [ask.RaiseMarks(("s",), OURS)]


def test_g4_a_seal_whose_commit_was_not_confirmed_is_written_again() -> None:
    store, tenure = Store(mark(4)), Tenure()
    done = run(store, guarding.seal(scope(), OURS, tenure), unconfirmed=range(1, MAX_COMMIT_TRIES))
    assert done == Sealed(("r",))
    assert store.of(ask.RaiseMarks) == [ask.RaiseMarks(("r",), OURS)] * MAX_COMMIT_TRIES
    assert tenure.sealed == set(scope().keys)


def test_g9_a_seal_that_is_never_confirmed_is_not_remembered() -> None:
    store, tenure = Store(mark(4)), Tenure()
    with pytest.raises(OutcomeUnknownError):
        run(store, guarding.seal(scope(), OURS, tenure), unconfirmed=range(99))
    assert len(store.of(ask.Commit)) == MAX_COMMIT_TRIES
    assert not tenure.sealed


def test_g2_a_resource_is_not_opened_after_another_was_read() -> None:
    tenure = sealed_tenure("r")
    tenure.has_read = True
    for flow in (guarding.seal, guarding.check):
        store = Store(mark(4, "s"))
        store.enter()
        with pytest.raises(GuardError, match="'s' would be sealed after"):
            run(store, flow(scope("s"), OURS, tenure))
        assert store.asked == []
    by_default = Scope(PLACE, ("s",), LOCK)
    with pytest.raises(GuardError, match="'s' would be sealed after"):
        run(Store(), guarding.seal(by_default, OURS, tenure))
    assert run(Store(), guarding.seal(scope("s", is_independent=True), OURS, tenure)) == Sealed(("s",))


def test_g2_a_thread_that_began_to_read_meanwhile_is_noticed() -> None:
    tenure = Tenure()
    flow = guarding.seal(scope(), OURS, tenure)
    store = Store(mark(4))
    request = next(flow)
    while not isinstance(request, ask.Commit):
        request = flow.send(store.perform(request))
    tenure.has_read = True
    with pytest.raises(GuardError, match="'r' would be sealed after"):
        flow.send(None)


# --- what is only observed ---
def test_g6_a_refusal_that_is_only_observed_is_counted_told_and_not_remembered_as_a_seal() -> None:
    store, tenure = Store(mark(9), mode=ask.OBSERVE), Tenure()
    store.target.state.marks["s"] = mark(4, "s")
    opened = run(store, guarding.open_transaction(scope("r", "s"), OURS, tenure))
    assert isinstance(opened, Opened)
    assert opened.sealed is not None
    for refused in (opened.sealed.refused, opened.refused):
        assert [one.resource for one in refused] == ["r"]
        assert isinstance(refused[0].error, StaleTokenError)
    assert opened.sealed.raised == opened.presented == ("s",)
    assert store.of(ask.RecordRefusal) == [ask.RecordRefusal("r", "stale")] * 2
    assert tenure.sealed == set(scope("s").keys)
    assert tenure.opened == set(scope("r", "s").keys)
    assert tenure.has_read


def test_g6_it_takes_one_enforced_table_to_refuse() -> None:
    store = Store(mark(9), mode=ask.OBSERVE)
    store.target.state.tables["more"] = Protection("more", "r", ask.ENFORCE)
    with pytest.raises(StaleTokenError):
        run(store, guarding.seal(scope(), OURS, Tenure()))


def test_g6_an_unprotected_resource_refuses() -> None:
    with pytest.raises(StaleTokenError):
        run(Store(mark(9)), guarding.seal(scope(), OURS, Tenure()))


# --- transactions ---
def test_g1_a_transaction_of_a_sealed_tenure_is_one_request() -> None:
    store = Store(mark(5))
    opened = run(store, guarding.open_transaction(scope(), OURS, sealed_tenure(), 900))
    assert opened == Opened(None, ("r",), ())
    assert store.asked == [ask.Open(("r",), OURS, 900)]


@pytest.mark.parametrize(
    ("found", "error"),
    [(mark(6), StaleTokenError), (mark(4), SealLostError), (mark(5, is_closed=True), StaleTokenError)],
)
def test_g1_a_mark_that_is_no_longer_ours_refuses_the_transaction(found: Mark, error: type[GuardError]) -> None:
    for flow in (guarding.open_transaction, guarding.check, guarding.present):
        store, tenure = Store(found), sealed_tenure()
        store.enter()
        with pytest.raises(error):
            run(store, flow(scope(), OURS, tenure))
        assert not tenure.has_read


def test_g2_a_mark_that_fell_between_seal_and_transaction_is_not_passed_over() -> None:
    """Only observed when it was sealed, lowered by an operator since: it has to be sealed, not written to."""
    store, tenure = Store(mark(9), mode=ask.OBSERVE), Tenure()
    flow = guarding.open_transaction(scope(), OURS, tenure)
    request = next(flow)
    while not isinstance(request, ask.Open):
        request = flow.send(store.perform(request))
    store.target.state.marks["r"] = mark(3)
    reply = store.perform(request)
    assert reply == ("r",)
    assert isinstance(flow.send(reply), ask.ReadMarks)
    with pytest.raises(GuardError, match="is not sealed by token 5 yet"):
        flow.send({"r": mark(3)})


# --- in the caller's own transaction ---
def in_their_transaction(store: Store, flow: Any) -> Any:
    store.enter()
    return run(store, flow)


def test_g9_what_is_checked_in_the_callers_transaction_is_remembered() -> None:
    store, tenure = Store(mark(5), mark(5, "s")), Tenure()
    assert in_their_transaction(store, guarding.check(scope("r", "s"), OURS, tenure, 900)) == Sealed()
    assert store.asked == [ask.Join(("r", "s"), False, 900), ask.ReadMarks(("r", "s"), shared_by=OURS.digest)]
    assert tenure.sealed == tenure.opened == set(scope("r", "s").keys)
    assert tenure.has_read


def test_g6_a_refusal_in_the_callers_transaction_may_be_observed_only() -> None:
    store, tenure = Store(mark(9), mode=ask.OBSERVE), Tenure()
    done = in_their_transaction(store, guarding.check(scope(), OURS, tenure))
    assert [one.resource for one in done.refused] == ["r"]
    assert tenure.opened == set(scope().keys)
    assert not tenure.sealed


@pytest.mark.parametrize(("may_raise", "can_raise"), [(False, True), (True, False), (None, True)])
def test_g2_a_mark_is_raised_in_the_callers_transaction_only_if_both_sides_say_so(
    may_raise: bool | None, can_raise: bool
) -> None:
    store = Store(mark(4))
    store.can_raise = can_raise
    said = {} if may_raise is None else {"may_raise": may_raise}
    with pytest.raises(GuardError, match=r"not sealed by token 5 yet \(its mark is 4\)"):
        in_their_transaction(store, guarding.check(scope(), OURS, Tenure(), **said))
    assert store.asked[0] == ask.Join(("r",), bool(may_raise), None)
    assert store.of(ask.RaiseMarks) == []


def test_g2_a_seal_in_the_callers_transaction_is_not_remembered() -> None:
    store, tenure = Store(mark(4), mark(5, "s")), Tenure()
    store.can_raise = True
    done = in_their_transaction(store, guarding.check(scope("r", "s"), OURS, tenure, may_raise=True))
    assert done == Sealed(("r",))
    assert store.of(ask.RaiseMarks) == [ask.RaiseMarks(("r",), OURS)]
    assert tenure.opened == set(scope("r", "s").keys)
    # Nor is the other mark, which may have been raised by an earlier check of the same transaction.
    assert tenure.sealed == set()
    store.can_raise = False
    in_their_transaction(store, guarding.check(scope("s"), OURS, tenure, may_raise=True))
    assert tenure.sealed == set(scope("s").keys)


def test_g9_a_sealed_tenure_raises_nothing_in_the_callers_transaction() -> None:
    store = Store(mark(5))
    store.can_raise = True
    in_their_transaction(store, guarding.check(scope(), OURS, sealed_tenure(), may_raise=True))
    assert store.asked[0] == ask.Join(("r",), False, None)


def test_what_is_presented_are_the_resources_that_admit_the_lease() -> None:
    store = Store(mark(5), mark(9, "s"), mode=ask.OBSERVE)
    opened = in_their_transaction(store, guarding.present(scope("r", "s"), OURS, Tenure()))
    assert opened.presented == ("r",)


# --- close ---
def test_g10_close_writes_again_what_may_not_be_on_the_disk() -> None:
    store, tenure = Store(mark(5), mark(4, "s")), Tenure()
    run(store, close(scope("r", "s"), OURS, tenure), unconfirmed=[1])
    assert store.of(ask.RaiseMarks) == [ask.RaiseMarks(("s",), OURS)]  # The first commit has done it.
    assert store.of(ask.CloseMarks) == [ask.CloseMarks(("r", "s"), CLAIM)] * 2
    assert (store.mark("r"), store.mark("s")) == (mark(5, is_closed=True), mark(5, "s", is_closed=True))
    assert tenure.sealed == set(scope("r", "s").keys)


def test_g10_a_close_that_is_never_confirmed_is_told() -> None:
    store, tenure = Store(mark(5)), Tenure()
    with pytest.raises(OutcomeUnknownError):
        run(store, close(scope(), OURS, tenure), unconfirmed=range(99))
    assert len(store.of(ask.Commit)) == MAX_COMMIT_TRIES


@pytest.mark.parametrize("found", [mark(6), mark(6, is_closed=True), Mark("r", LOCK, 5, "source", "history")])
def test_g10_a_resource_that_refuses_the_token_already_is_left_alone(found: Mark) -> None:
    store = Store(found)
    run(store, close(scope(), OURS, Tenure()))
    assert store.of(ask.RaiseMarks) == store.of(ask.CloseMarks) == []
    assert store.mark() == found


@pytest.mark.parametrize("claim", ["claim-4", "claim-6"])
@pytest.mark.parametrize("is_closed", [False, True])
def test_g10_nobody_closes_the_mark_of_another_claim(claim: str, is_closed: bool) -> None:
    with pytest.raises(TokenCollisionError):
        run(Store(mark(5, of=sequencer(5, claim=claim), is_closed=is_closed)), close(scope(), OURS, Tenure()))


@pytest.mark.parametrize("is_closed", [False, True])
def test_g9_a_lost_seal_is_not_closed(is_closed: bool) -> None:
    with pytest.raises(SealLostError):
        run(Store(mark(4, is_closed=is_closed)), close(scope(), OURS, sealed_tenure()))


def test_g6_what_only_observes_is_not_closed() -> None:
    store = Store(Mark("r", "another-lock", 4, "source", "history", sequencer(4).digest), mode=ask.OBSERVE)
    run(store, close(scope(), OURS, Tenure()))
    assert store.of(ask.RaiseMarks) == store.of(ask.CloseMarks) == []


# --- operators ---
def source(last_token: int, source_id: str = "source") -> SourceInfo:
    return SourceInfo(source_id, 1, "history", last_token, 1000)


@pytest.mark.parametrize("last_token", [0, 1, 7])
def test_g6_enforcing_what_was_observed_raises_the_mark_if_there_is_a_token(last_token: int) -> None:
    store = Store(Mark("r", LOCK), mode=ask.OBSERVE)
    run(store, admin.protect(scope(), ("r",), ask.ENFORCE, source(last_token), "me"))
    entry = ask.AuditEntry("mode", "r", 0, last_token, "me", "r: observe to enforce")
    raised = Mark("r", LOCK, last_token, "source", "history")
    assert store.of(ask.WriteAudit) == ([] if last_token else [ask.WriteAudit(entry)])
    assert store.of(ask.ChangeMark) == ([ask.ChangeMark(raised, entry)] if last_token else [])


@pytest.mark.parametrize("flow", ["protect", "unprotect", "lower", "raise_to", "rebind", "outrank"])
@pytest.mark.parametrize("lock", ["a-lock", "z-lock"])
def test_g5_an_operator_too_names_the_lock_that_a_resource_is_bound_to(flow: str, lock: str) -> None:
    flows = {
        "protect": admin.protect(scope(), ("r",), ask.ENFORCE, source(7), "me"),
        "unprotect": admin.unprotect(scope(), (), "me", "why"),
        "lower": admin.lower(scope(), 3, "me", "why"),
        "raise_to": admin.raise_to(scope(), 9, "me", "why"),
        "rebind": admin.rebind(scope(), "new-lock", source(7), "me", "why"),
        "outrank": admin.outrank(scope(), OURS, "me", "why"),
    }
    store = Store(Mark("r", lock, 4), mode=ask.OBSERVE)
    with pytest.raises(WrongLockError, match=rf"bound to lock '{lock}'"):
        run(store, flows[flow])
    assert [type(request) for request in store.asked] == [ask.Begin, ask.ReadMarks]


def test_g5_no_operator_binds_a_durable_resource_to_a_source_in_memory() -> None:
    durable, of_memory = Scope("sqlite:////app.db", ("r",), LOCK), source(7, "memory-1")
    for flow in (
        admin.protect(durable, ("r",), ask.ENFORCE, of_memory, "me"),
        admin.raise_to(durable, of_memory, "me", "why"),
        admin.rebind(durable, "new-lock", of_memory, "me", "why"),
        admin.outrank(durable, sequencer(5, source_id="memory-1"), "me", "why"),
    ):
        with pytest.raises(WrongLockError, match="outlives source memory-1"):
            run(Store(), flow)


@pytest.mark.parametrize(
    ("found", "is_raised"),
    [
        (Mark("r", LOCK), True),
        (mark(4), True),
        (mark(4, is_closed=True), True),
        (mark(5), True),
        (Mark("r", LOCK, 5, "source", "history"), False),
        (mark(6), False),
    ],
)
def test_g10_a_break_outranks_every_lease_up_to_its_token(found: Mark, is_raised: bool) -> None:
    """The break's own claim may have sealed the resource: then the mark is raised above that claim too."""
    store = Store(found)
    run(store, admin.outrank(scope(), OURS, "me", "it hangs"))
    entry = ask.AuditEntry("break", "r", found.token, 5, "me", "it hangs")
    wanted = [ask.ChangeMark(Mark("r", LOCK, 5, "source", "history"), entry, sequencer=OURS)]
    assert store.of(ask.ChangeMark) == (wanted if is_raised else [])
    assert store.mark().digest is None or not is_raised


@pytest.mark.parametrize("claim", ["claim-4", "claim-6"])
def test_g10_a_break_whose_token_somebody_else_has_is_loud(claim: str) -> None:
    with pytest.raises(TokenCollisionError):
        run(Store(mark(5, of=sequencer(5, claim=claim))), admin.outrank(scope(), OURS, "me", "it hangs"))


def test_g8_a_mark_above_the_sources_last_token_is_not_touched() -> None:
    """It was raised since the source was asked, or the source went back: a retry shows which."""
    store = Store(mark(8))
    with pytest.raises(GuardError, match=r"has mark 8, and 7 is below it: try again.*`fencelock epoch --raise`"):
        run(store, admin.raise_to(scope(), source(7), "me", "why"))
    assert store.mark() == mark(8)


# --- stores that hold nothing still ---
def conflicts(flow: Any, times: int, *, reply: Any) -> tuple[list[Any], Any]:
    """Answer a flow's requests by `reply`, but refuse this many of its commits; return the requests and the result."""
    asked: list[Any] = []
    try:
        request = next(flow)
        while True:
            asked.append(request)
            if isinstance(request, (ask.Commit, ask.Finish)) and times:
                times -= 1
                request = flow.throw(ask.ConflictError("the mark of 'r' has changed"))
            else:
                request = flow.send(reply(request))
    except StopIteration as done:
        return asked, done.value


def reply_with(*marks: Mark) -> Any:
    return lambda request: {one.resource: one for one in marks} if isinstance(request, ask.ReadMarks) else None


@pytest.mark.parametrize(
    "flow",
    [
        lambda: guarding.seal(scope(), OURS, Tenure()),
        lambda: close(scope(), OURS, Tenure()),
        lambda: admin.lower(scope(), 3, "me", "why"),
        lambda: admin.raise_to(scope(), 9, "me", "why"),
        lambda: admin.rebind(scope(), "another", source(9), "me", "why"),
        lambda: admin.outrank(scope(), OURS, "me", "why"),
        lambda: admin.unprotect(scope(), (), "me", "why"),
    ],
)
def test_g3_a_brief_transaction_that_was_overtaken_begins_anew(flow: Any) -> None:
    once, _ = conflicts(flow(), 0, reply=reply_with(mark(4)))
    assert isinstance(once[0], ask.Begin)
    again, _ = conflicts(flow(), 2, reply=reply_with(mark(4)))
    assert again == once * 3


def test_g3_a_transaction_that_is_always_overtaken_gives_up() -> None:
    with pytest.raises(SourceUnavailableError, match=f"'r' has changed, {MAX_CONFLICTS} times in a row") as caught:
        conflicts(guarding.seal(scope(), OURS, Tenure()), 99, reply=reply_with(mark(4)))
    assert caught.value.definite


def test_g1_a_seal_that_was_overtaken_decides_anew() -> None:
    marks = iter([{"r": mark(4)}, {"r": mark(6)}])
    with pytest.raises(StaleTokenError, match="its mark is 6"):
        conflicts(
            guarding.seal(scope(), OURS, Tenure()),
            1,
            reply=lambda request: next(marks) if isinstance(request, ask.ReadMarks) else None,
        )


def finished(found: Mark, *, tenure: Tenure | None = None) -> list[Any]:
    flow = guarding.finish(scope(), OURS, tenure or sealed_tenure(), ("r",))
    asked, _ = conflicts(flow, 1, reply=reply_with(found))
    return asked


@pytest.mark.parametrize(
    ("found", "error", "says"),
    [
        (mark(6), StaleTokenError, "token 5 .* its mark is 6"),
        (mark(5, is_closed=True), StaleTokenError, "closed it"),
        (mark(5, of=sequencer(5, claim="another")), TokenCollisionError, "another lease"),
        (mark(4), SealLostError, "now its mark is 4"),
        (Mark("r", "another", 5), WrongLockError, "bound to lock 'another'"),
        (mark(5), GuardError, "still this lease's, but the mark of 'r' has changed: nothing of the block was written"),
    ],
)
def test_g3_a_block_that_was_overtaken_says_by_whom(found: Mark, error: type[GuardError], says: str) -> None:
    with pytest.raises(GuardError, match=says) as caught:
        finished(found)
    assert type(caught.value) is error


def test_g3_a_block_is_committed_once() -> None:
    asked, _ = conflicts(guarding.finish(scope(), OURS, Tenure(), ("r",)), 0, reply=reply_with())
    assert asked == [ask.Finish(("r",))]
