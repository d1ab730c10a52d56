"""Each operation on documents, as items of a table: what it does, and that races are decided by its condition."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fencelock.errors import OutcomeUnknownError, SchemaError, SourceError, SourceUnavailableError
from fencelock.stores.aws.clients import Call
from fencelock.stores.document.operations import (
    COUNTER,
    LOCK,
    MAX_KEYS,
    MAX_WRITES,
    SOURCE_KEY,
    CreateCounter,
    Delete,
    Document,
    FoundDocuments,
    Increment,
    Key,
    Operation,
    ReadDocuments,
    ReadLocation,
    ReadLocks,
    Reply,
    WriteDocument,
    WriteEach,
)
from fencelock.stores.dynamodb.source.documents import MAX_PARTS, DynamoDocuments
from fencelock.stores.dynamodb.source.store import DynamoDBSource
from fencelock.stores.pauses import Pause
from fencelock.stores.together import Together
from tests.dynamodb.fix_source import Locks
from tests.support.helpers import DEADLINE_S

Perform = Callable[[Operation], Reply]
NUMBER = Key(COUNTER, "history")
RACERS = 8


def lock(name: str) -> Key:
    return Key(LOCK, name)


def write(name: str, version: str, seen: str | None = None, body: str = "{}") -> WriteDocument:
    return WriteDocument(lock(name), body, version, seen)


@pytest.fixture
def perform(locks: Locks) -> Perform:
    return DynamoDBSource(locks.url).open_client(DEADLINE_S).perform


def versions(found: Reply) -> list[str | None]:
    assert isinstance(found, FoundDocuments)
    return [None if document is None else document.version for document in found.documents]


def test_a_document_is_written_on_the_condition_of_its_version(perform: Perform) -> None:
    assert perform(write("a", "1")) is True
    assert perform(write("a", "2")) is False
    assert perform(write("a", "2", seen="0")) is False
    assert perform(write("a", "2", seen="1")) is True
    assert perform(write("b", "2", seen="1")) is False
    assert versions(perform(ReadDocuments((lock("a"), lock("b"))))) == ["2", None]


def test_a_read_answers_in_order_with_the_date_of_the_service(perform: Perform) -> None:
    perform(write("a", "1", body='{"é": "\\u0000"}'))
    found = perform(ReadDocuments((lock("b"), lock("a"), lock("b"))))
    assert isinstance(found, FoundDocuments)
    assert found.documents == (None, Document(lock("a"), "1", '{"é": "\\u0000"}'), None)
    assert found.date_ms is not None
    assert found.date_ms % 1000 == 0


def test_the_writes_of_a_beat_are_independent(perform: Perform) -> None:
    for name in ("a", "b", "c"):
        perform(write(name, "1"))
    batch = WriteEach(
        (write("a", "2", "1"), write("b", "2", "0"), write("none", "2", "1"), write("c", "2", "1", "é'\"?"))
    )
    assert perform(batch) == (True, False, False, True)
    found = perform(ReadDocuments((lock("a"), lock("b"), lock("none"), lock("c"))))
    assert versions(found) == ["2", "1", None, "2"]
    assert isinstance(found, FoundDocuments)
    assert found.documents[3] == Document(lock("c"), "2", "é'\"?")


def test_a_beat_may_create_documents(perform: Perform) -> None:
    assert perform(WriteEach((write("a", "1"),))) == (True,)
    assert perform(WriteEach((write("a", "2"), write("b", "2")))) == (False, True)
    assert versions(perform(ReadDocuments((lock("a"), lock("b"))))) == ["1", "2"]


def test_a_beat_and_a_read_may_be_as_large_as_they_may_be(perform: Perform) -> None:
    names = [f"{number:03}" for number in range(MAX_WRITES)]
    body = "x" * 20_000
    assert perform(WriteEach(tuple(write(name, "1", body=body) for name in names))) == (True,) * MAX_WRITES
    keys = tuple(lock(f"{number:03}") for number in range(MAX_KEYS))
    assert versions(perform(ReadDocuments(keys))) == ["1"] * MAX_WRITES + [None] * (MAX_KEYS - MAX_WRITES)


def test_a_document_is_deleted_on_the_condition_of_its_version(perform: Perform) -> None:
    perform(write("a", "1"))
    assert perform(Delete(lock("a"), "0")) is False
    assert perform(Delete(lock("a"), "1")) is True
    assert perform(Delete(lock("a"), "1")) is False


def test_locks_are_listed_by_their_names(perform: Perform) -> None:
    names = ["a", "b%", "z", "é", "\uffff", "\U0001f600"]
    for name in reversed(names):
        perform(write(name, "1"))
    perform(CreateCounter(NUMBER))

    def listed(after: str, limit: int) -> list[str]:
        found = perform(ReadLocks(after, limit))
        assert isinstance(found, FoundDocuments)
        return [document.key.name for document in found.documents if document is not None]

    assert listed("", 10) == names
    assert listed("", 2) == names[:2]
    assert listed("b%", 3) == names[2:5]
    assert listed(names[-1], 3) == []


def test_a_list_goes_on_over_pages(perform: Perform) -> None:
    """A reply of DynamoDB's ends after 1 MB."""
    for number in range(5):
        perform(write(f"{number}", "1", body="x" * 300_000))
    assert len(versions(perform(ReadLocks("", 10)))) == 5


def test_a_counter_counts_only_where_there_is_one(perform: Perform) -> None:
    assert perform(Increment(NUMBER)) is None
    perform(CreateCounter(NUMBER))
    assert perform(Increment(NUMBER)) == 1
    perform(CreateCounter(NUMBER))
    assert perform(Increment(NUMBER)) == 2
    found = perform(ReadDocuments((NUMBER,)))
    assert isinstance(found, FoundDocuments)
    assert found.documents == (Document(NUMBER, "", "2"),)


def test_of_writes_at_the_same_time_one_is_done(locks: Locks, perform: Perform) -> None:
    perform(write("a", "0"))
    clients = [DynamoDBSource(locks.url).open_client(DEADLINE_S) for _ in range(RACERS)]

    def race(number: int) -> Reply:
        return clients[number].perform(write("a", f"new-{number}", "0"))

    with ThreadPoolExecutor(RACERS) as pool:
        outcomes = list(pool.map(race, range(RACERS)))
    assert outcomes.count(True) == 1
    assert versions(perform(ReadDocuments((lock("a"),)))) == [f"new-{outcomes.index(True)}"]


def test_no_two_increments_get_the_same_number(perform: Perform) -> None:
    perform(CreateCounter(NUMBER))
    with ThreadPoolExecutor(RACERS) as pool:
        numbers = list(pool.map(lambda _: perform(Increment(NUMBER)), range(4 * RACERS)))
    assert sorted(numbers) == list(range(1, 4 * RACERS + 1))  # type: ignore[type-var]


def test_the_place_is_the_id_of_the_table(locks: Locks, perform: Perform) -> None:
    assert perform(ReadLocation()) == locks.client.describe_table(TableName=locks.name)["Table"]["TableId"]


def test_a_table_that_does_not_exist_asks_for_an_installation(empty_table: Locks) -> None:
    client = DynamoDBSource(empty_table.url).open_client(DEADLINE_S)
    for operation in (
        ReadDocuments((lock("a"),)),
        ReadLocks("", 1),
        write("a", "1"),
        Increment(NUMBER),
        ReadLocation(),
    ):
        with pytest.raises(SchemaError, match="fencelock install"):
            client.perform(operation)


@pytest.mark.parametrize("item", [{}, {"body": {"S": "{}"}}, {"version": {"N": "1"}, "body": {"S": "{}"}}])
def test_an_item_of_somebody_else_is_the_problem_of_its_lock_alone(
    locks: Locks, perform: Perform, item: dict[str, Any]
) -> None:
    perform(write("b", "1"))
    locks.client.put_item(TableName=locks.name, Item={"pk": {"S": LOCK}, "sk": {"S": "a"}} | item)
    for operation in (ReadDocuments((lock("a"), lock("b"))), ReadLocks("", 2)):
        found = perform(operation)
        assert isinstance(found, FoundDocuments)
        stray, other = found.documents
        assert stray is not None
        assert "'lock', 'a' of the table is not one of fencelock's" in stray.problem
        assert other == Document(lock("b"), "1", "{}")


@pytest.mark.parametrize("key", [SOURCE_KEY, NUMBER])
def test_an_item_of_somebody_else_in_the_place_of_the_source_is_refused(
    locks: Locks, perform: Perform, key: Key
) -> None:
    locks.client.put_item(TableName=locks.name, Item={"pk": {"S": key.kind}, "sk": {"S": key.name}})
    with pytest.raises(SourceError, match="not one of fencelock's"):
        perform(ReadDocuments((key,)))


# --- replies that the server here never gives -------------------------------------------------------------------------
HEADERS = {"HTTPHeaders": {"date": "Mon, 23 Nov 2026 11:00:00 GMT"}}
LATER = {"HTTPHeaders": {"date": "Mon, 23 Nov 2026 11:00:01 GMT"}}


def answered(operation: Operation, *replies: dict[str, Any], paused: list[Pause] | None = None) -> Any:
    """Return the reply to an operation whose calls are answered so; `paused` gets its pauses."""
    paused = [] if paused is None else paused
    calls = DynamoDocuments("locks", "dynamodb://eu-central-1/locks").perform(operation)
    answers = iter(replies)
    try:
        step: Call | Pause = next(calls)
        while True:
            step = calls.send(next(answers) if isinstance(step, Call) else paused.append(step))
    except StopIteration as done:
        return done.value


def item(name: str) -> dict[str, Any]:
    return {"pk": {"S": LOCK}, "sk": {"S": name}, "version": {"S": "1"}, "body": {"S": "{}"}}


def test_what_a_read_leaves_out_is_asked_for_again_and_the_earliest_date_counts() -> None:
    rest = {"locks": {"Keys": [{"pk": {"S": LOCK}, "sk": {"S": "b"}}], "ConsistentRead": True}}
    found = answered(
        ReadDocuments((lock("a"), lock("b"))),
        {"Responses": {"locks": [item("a")]}, "UnprocessedKeys": rest, "ResponseMetadata": HEADERS},
        {"Responses": {"locks": [item("b")]}, "UnprocessedKeys": {}, "ResponseMetadata": LATER},
    )
    assert versions(found) == ["1", "1"]
    assert found.date_ms == 1_795_431_600_000


def test_a_read_that_never_ends_is_given_up() -> None:
    rest = {"locks": {"Keys": [{"pk": {"S": LOCK}, "sk": {"S": "b"}}]}}
    reply = {"Responses": {}, "UnprocessedKeys": rest, "ResponseMetadata": HEADERS}
    paused: list[Pause] = []
    with pytest.raises(SourceUnavailableError, match="try again"):
        answered(ReadDocuments((lock("b"),)), *[reply] * 100, paused=paused)
    assert len(paused) == MAX_PARTS - 1, "one before each further request: the table is busy"


def test_a_server_that_gives_tables_no_id_names_no_location() -> None:
    assert answered(ReadLocation(), {"Table": {"TableName": "locks"}, "ResponseMetadata": HEADERS}) is None


@pytest.mark.parametrize("headers", [{}, {"date": "yesterday"}])
def test_a_reply_without_a_date_has_none(headers: dict[str, str]) -> None:
    reply = {"Responses": {}, "ResponseMetadata": {"HTTPHeaders": headers}}
    assert answered(ReadDocuments((lock("a"),)), reply) == FoundDocuments((None,), None)


@pytest.mark.parametrize("error", [OutcomeUnknownError, SourceUnavailableError])
def test_writes_in_doubt_are_told_beside_the_others(error: type[SourceError]) -> None:
    in_doubt = error("on purpose")
    assert written_each(True, in_doubt, False) == (True, in_doubt, False)


@pytest.mark.parametrize("error", [SchemaError, SourceError])
def test_a_refused_write_is_an_outcome_and_stops_no_other(error: type[SourceError]) -> None:
    calls = DynamoDocuments("locks", "").perform(WriteEach((write("a", "2", "1"),)))
    step = next(calls)
    assert isinstance(step, Together)
    (run,) = step.runs
    next(run)
    refusal = error("on purpose")
    with pytest.raises(StopIteration) as done:
        run.throw(refusal)
    assert done.value.value is refusal


def written_each(*outcomes: bool | SourceError) -> object:
    """Return what writes are told to have done whose runs ended so."""
    calls = DynamoDocuments("locks", "").perform(WriteEach((write("a", "2", "1"),) * len(outcomes)))
    assert isinstance(step := next(calls), Together)
    assert len(step.runs) == len(outcomes)
    with pytest.raises(StopIteration) as done:
        calls.send(list(outcomes))
    return done.value.value
