"""What the DynamoDB guard's one transaction does about lost, late and refused requests, without a server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencelock import FencelockError, GuardError, OutcomeUnknownError, SourceError, SourceUnavailableError
from fencelock.protocol.guard_requests import ConflictError
from fencelock.stores.aws.clients import Call, Refusal
from fencelock.stores.dynamodb import requests
from fencelock.stores.dynamodb.guard.items import ItemAction, is_equal
from fencelock.stores.dynamodb.guard.transaction import MAX_ITEM_BYTES, MAX_ITEMS, transact
from fencelock.stores.dynamodb.requests import PATIENCE_S, get_items, read, read_pages
from fencelock.stores.pauses import Pause

LOST = OutcomeUnknownError("lost on purpose")
BUSY = Refusal("ThrottlingException", "slow down", {})
IN_PROGRESS = Refusal("TransactionInProgressException", "wait", {})
DONE: dict[str, Any] = {}
Answer = Any


def cancelled(*codes: str | None) -> Refusal:
    reasons = [{"Code": code, "Message": f"it says {code}"} for code in codes]
    return Refusal("TransactionCanceledException", "cancelled", {"CancellationReasons": reasons})


def action(name: str, *, is_mark: bool = False) -> ItemAction:
    condition = is_equal("v", {"S": "x"}, f"{name} has changed")
    return ItemAction("data", {"pk": {"S": name}}, expressions=[condition], is_mark=is_mark)


ACTIONS = [action("the mark", is_mark=True), action("an item")]


class Clock:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> int:
        return int(self.now_ms)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    the_clock = Clock()
    monkeypatch.setattr(requests, "boottime_ms", the_clock)
    return the_clock


def run(flow: Any, answers: Callable[[], Answer], clock: Clock, during_pause_s: float = 0.0) -> tuple[Any, list[Call]]:
    """Run a generator on these answers, and return its result and the calls that it made."""
    calls: list[Call] = []
    step, value = flow.send, None
    try:
        while True:
            operation = step(value)
            step = flow.send
            if isinstance(operation, Pause):
                clock.now_ms += 1000 * max(operation.seconds, during_pause_s)
                value = None
            else:
                calls.append(operation)
                value = answers()
                if isinstance(value, Exception):
                    step = flow.throw
    except StopIteration as end:
        return end.value, calls
    except FencelockError as error:
        error.calls = calls  # type: ignore[attr-defined]
        raise


def tokens(calls: list[Call]) -> list[str]:
    return [call.arguments["ClientRequestToken"] for call in calls]


def one_by_one(*answers: Answer) -> Callable[[], Answer]:
    return iter(answers).__next__


@pytest.mark.parametrize("lost", [LOST, IN_PROGRESS])
def test_a_request_without_an_answer_is_sent_again_with_its_token(clock: Clock, lost: Answer) -> None:
    _, calls = run(transact(ACTIONS), one_by_one(lost, lost, BUSY, DONE), clock)
    assert len(calls) == 4
    assert len(set(tokens(calls))) == 1
    assert len({repr(call.arguments) for call in calls}) == 1, "DynamoDB refuses a token with another request"


def test_a_request_that_met_another_one_is_sent_again_with_a_new_token(clock: Clock) -> None:
    _, calls = run(transact(ACTIONS), one_by_one(cancelled("None", "TransactionConflict"), BUSY, DONE), clock)
    assert len(set(tokens(calls))) == 2


def test_a_token_is_kept_while_a_lost_request_may_still_arrive(clock: Clock) -> None:
    """With a new one, the late request and the new one would both be carried out."""
    answers = one_by_one(LOST, cancelled("TransactionConflict", "None"), cancelled("TransactionConflict", "None"), DONE)
    _, calls = run(transact(ACTIONS), answers, clock)
    assert len(set(tokens(calls))) == 1


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([cancelled("ConditionalCheckFailed", "None")], "the mark has changed"),
        ([cancelled("None", "ConditionalCheckFailed")], "an item has changed"),
        ([cancelled("ConditionalCheckFailed", "ConditionalCheckFailed")], "the mark has changed"),
        ([cancelled("ConditionalCheckFailed", "TransactionConflict")], "the mark has changed"),
        ([LOST, cancelled("ConditionalCheckFailed", "None")], "the mark has changed"),
    ],
)
def test_the_reasons_say_which_condition_did_not_hold(clock: Clock, answers: list[Answer], error: str) -> None:
    with pytest.raises(ConflictError, match=error):
        run(transact(ACTIONS), one_by_one(*answers), clock)


def test_a_condition_that_fails_after_a_lost_request_proves_nothing(clock: Clock) -> None:
    """It may hold again when the lost request arrives. A mark's former value never comes again."""
    with pytest.raises(OutcomeUnknownError, match="lost on purpose"):
        run(transact(ACTIONS), one_by_one(LOST, cancelled("None", "ConditionalCheckFailed")), clock)


@pytest.mark.parametrize("code", ["ValidationError", "ItemCollectionSizeLimitExceeded", "AccessDenied"])
def test_another_reason_is_told_and_definite_unless_a_request_is_lost(clock: Clock, code: str) -> None:
    with pytest.raises(GuardError, match=f"it says {code}.*nothing was written") as caught:
        run(transact(ACTIONS), one_by_one(cancelled("None", code)), clock)
    assert caught.value.definite
    with pytest.raises(OutcomeUnknownError):
        run(transact(ACTIONS), one_by_one(LOST, cancelled("None", code)), clock)


@pytest.mark.parametrize("error", [SourceError("refused"), SourceUnavailableError("not reached")])
def test_an_error_that_does_not_pass_is_raised_at_once(clock: Clock, error: SourceError) -> None:
    with pytest.raises(type(error)) as caught:
        run(transact(ACTIONS), one_by_one(error), clock)
    assert caught.value is error


def test_after_a_lost_request_no_refusal_is_definite(clock: Clock) -> None:
    with pytest.raises(OutcomeUnknownError):
        run(transact(ACTIONS), one_by_one(LOST, SourceError("not permitted any more")), clock)
    _, calls = run(transact(ACTIONS), one_by_one(LOST, SourceUnavailableError("not reached"), DONE), clock)
    assert len(set(tokens(calls))) == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (LOST, OutcomeUnknownError),
        (IN_PROGRESS, OutcomeUnknownError),
        (BUSY, SourceUnavailableError),
        (cancelled("TransactionConflict", "None"), SourceUnavailableError),
    ],
)
def test_it_is_not_sent_again_for_ever(clock: Clock, answer: Answer, error: type[SourceError]) -> None:
    with pytest.raises(error) as caught:
        run(transact(ACTIONS), lambda: answer, clock)
    assert PATIENCE_S / 2 < clock.now_ms / 1000 <= PATIENCE_S
    assert 5 < len(caught.value.calls) < 100  # type: ignore[attr-defined]


def test_a_process_that_stood_still_does_not_use_an_old_token(clock: Clock) -> None:
    """After ten minutes DynamoDB takes the same token for another transaction, and would carry it out again."""
    with pytest.raises(OutcomeUnknownError) as caught:
        run(transact(ACTIONS), one_by_one(LOST), clock, during_pause_s=660.0)
    assert len(caught.value.calls) == 1  # type: ignore[attr-defined]


def test_what_is_too_large_is_not_sent(clock: Clock) -> None:
    def refused(actions: list[ItemAction], match: str) -> None:
        with pytest.raises(GuardError, match=match) as caught:
            run(transact(actions), one_by_one(), clock)
        assert caught.value.calls == []  # type: ignore[attr-defined]

    many = [action(str(number)) for number in range(MAX_ITEMS + 1)]
    refused(many, r"writes and checks 101 items, its marks included, and DynamoDB takes 100")
    item = {"pk": {"S": "a"}, "v": {"B": b"x" * MAX_ITEM_BYTES}}
    refused([ItemAction("data", {"pk": {"S": "a"}}, "Put", item)], r"writes 409604 bytes into one item")
    item = {"pk": {"S": "a"}, "v": {"M": {"l": {"L": [{"S": "ü" * 100_000}, {"SS": ["x" * 99_000]}]}}}}
    assert ItemAction("data", item, "Put", item).size_bytes() == 3 + 1 + 3 + 1 + 1 + 3 + 2 + 299_000
    refused([ItemAction("data", item, "Put", item)] * 15, r"writes \d{7} bytes, and DynamoDB takes 4194304")


# --- reads ------------------------------------------------------------------------------------------------------------
def test_a_read_is_asked_again_and_its_end_is_definite(clock: Clock) -> None:
    answer, calls = run(read("get_item", {}), one_by_one(LOST, BUSY, {"Item": 1}), clock)
    assert (answer, len(calls)) == ({"Item": 1}, 3)
    for never in (LOST, BUSY):
        with pytest.raises(SourceUnavailableError, match="nothing was done"):
            run(read("get_item", {}), lambda never=never: never, clock)  # type: ignore[misc]
    with pytest.raises(SourceUnavailableError, match="not reached") as caught:
        run(read("get_item", {}), one_by_one(SourceUnavailableError("not reached")), clock)
    assert len(caught.value.calls) == 1  # type: ignore[attr-defined]


def test_what_a_batch_leaves_unread_is_asked_for_again(clock: Clock) -> None:
    keys = [{"pk": {"S": str(number)}} for number in range(205)]

    def answers() -> Iterator[Answer]:
        yield {"Responses": {"t": keys[:60]}, "UnprocessedKeys": {"t": {"Keys": keys[60:100]}}}
        yield {"Responses": {"t": keys[60:160]}}
        yield {"Responses": {"t": keys[160:]}, "UnprocessedKeys": {}}

    found, calls = run(get_items("t", keys), answers().__next__, clock)
    assert found == keys
    assert [len(call.arguments["RequestItems"]["t"]["Keys"]) for call in calls] == [100, 100, 45]
    assert all(call.arguments["RequestItems"]["t"]["ConsistentRead"] for call in calls)


def test_all_pages_are_read_or_as_many_as_are_wanted(clock: Clock) -> None:
    pages: list[Answer] = [{"Items": [1, 2], "LastEvaluatedKey": "k"}, {"Items": [3, 4]}]
    found, calls = run(read_pages("query", {}), one_by_one(*pages), clock)
    assert found == [1, 2, 3, 4]
    assert [call.arguments.get("ExclusiveStartKey") for call in calls] == [None, "k"]
    assert run(read_pages("query", {}, 1), one_by_one(*pages), clock)[0] == [1]
