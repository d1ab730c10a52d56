"""Each operation on documents, as objects: what it does, and that its condition decides what comes late or at once."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from fencelock.errors import OutcomeUnknownError, SourceError, SourceUnavailableError, UnsupportedError
from fencelock.stores.document.operations import (
    COUNTER,
    LOCK,
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
from fencelock.stores.pauses import LONGEST_S
from fencelock.stores.s3.source.documents import INCREMENT_MS, MAX_PART_CHARACTERS, lock_name, lock_path
from fencelock.stores.s3.source.store import S3Source
from fencelock.testing.clock import ManualClock
from fencelock.testing.conformance.names import NASTY_NAMES
from tests.s3.fake_bucket import BEGAN_S, DELETES, FakeBucket, double, lose_reply, lose_request
from tests.s3.fix_s3 import Corner
from tests.support.helpers import DEADLINE_S

Perform = Callable[[Operation], Reply]
NUMBER = Key(COUNTER, "history")
RACERS = 8
A = Key(LOCK, "a")


def write(name: str, body: str, seen: str | None = None) -> WriteDocument:
    return WriteDocument(Key(LOCK, name), body, body, seen)


@pytest.fixture
def bucket() -> FakeBucket:
    return FakeBucket()


@pytest.fixture(params=["in memory", "at SeaweedFS"])
def perform(request: pytest.FixtureRequest) -> Perform:
    if request.param == "in memory":
        return performing(request.getfixturevalue("bucket"))
    return S3Source(request.getfixturevalue("seaweed").url).open_client(DEADLINE_S).perform


def performing(bucket: FakeBucket) -> Perform:
    return bucket.source_store().open_client(DEADLINE_S).perform


def read(perform: Perform, key: Key = A) -> Document | None:
    found = perform(ReadDocuments((key,)))
    assert isinstance(found, FoundDocuments)
    return found.documents[0]


def version(perform: Perform, key: Key = A) -> str:
    document = read(perform, key)
    assert document is not None
    return document.version


def body(perform: Perform, key: Key = A) -> str | None:
    document = read(perform, key)
    return None if document is None else document.body


# --- documents --------------------------------------------------------------------------------------------------------
def test_a_document_is_written_on_the_condition_of_what_was_read(perform: Perform) -> None:
    assert read(perform) is None
    assert perform(write("a", "1", '"0123"')) is False
    assert perform(write("a", "1")) is True
    assert perform(write("a", "2")) is False
    first = version(perform)
    assert perform(write("a", "3", first)) is True
    assert perform(write("a", "4", first)) is False
    assert body(perform) == "3"


def test_a_document_is_deleted_on_the_condition_of_what_was_read(perform: Perform) -> None:
    perform(write("a", "1"))
    first = version(perform)
    perform(write("a", "2", first))
    assert perform(Delete(A, first)) is False
    assert perform(Delete(A, version(perform))) is True
    assert read(perform) is None
    assert perform(write("a", "3", first)) is False


def test_a_beat_is_one_write_after_the_other(perform: Perform) -> None:
    perform(write("a", "1"))
    assert perform(WriteEach((write("a", "2"), write("b", "3")))) == (False, True)


def test_locks_are_listed_page_by_page_whatever_their_names(perform: Perform) -> None:
    names = {"a", "a/b", "é", "~", "x" * 512, "x" * 511 + "y", "x" * 300, "\U0001f512" * 128}
    for name in names:
        perform(write(name, "1"))
    perform(CreateCounter(NUMBER))
    found: list[str] = []
    while True:
        page = perform(ReadLocks(found[-1] if found else "", 3))
        assert isinstance(page, FoundDocuments)
        found += [document.key.name for document in page.documents if document is not None]
        if len(page.documents) < 3:
            break
    assert len(found) == len(names)
    assert set(found) == names


def test_objects_of_somebody_else_are_no_locks(bucket: FakeBucket) -> None:
    for name in ("a b", "~", "~~", "~YQ~", "~YQ", "%2f", ""):
        bucket.objects[f"prefix/.fencelock/locks/{name}"] = b"{}"
    performing(bucket)(write("a", "1"))
    page = performing(bucket)(ReadLocks("", 100))
    assert isinstance(page, FoundDocuments)
    assert [document.key.name for document in page.documents if document is not None] == ["a"]


@pytest.mark.parametrize("name", NASTY_NAMES)
def test_a_path_stands_for_one_name_and_fits_into_file_names(name: str) -> None:
    path = lock_path(name)
    assert lock_name(path) == name
    assert all(len(part) <= MAX_PART_CHARACTERS + 2 and part not in ("", ".", "..") for part in path.split("/"))


def test_a_reply_tells_the_earliest_date_of_its_objects(bucket: FakeBucket) -> None:
    now_s = iter(range(5, 100))
    bucket.now_us = lambda: next(now_s) * 1_000_000
    found = performing(bucket)(ReadDocuments((A, NUMBER)))
    assert found == FoundDocuments((None, None), (BEGAN_S + 5) * 1000)


def test_a_place_has_no_identity(perform: Perform) -> None:
    assert perform(ReadLocation()) is None


# --- the counter ------------------------------------------------------------------------------------------------------
def test_a_counter_counts_only_where_there_is_one(perform: Perform) -> None:
    assert perform(Increment(NUMBER)) is None
    perform(CreateCounter(NUMBER))
    assert perform(Increment(NUMBER)) == 1
    perform(CreateCounter(NUMBER))
    assert perform(Increment(NUMBER)) == 2
    assert body(perform, NUMBER) == "2"


def test_no_two_bodies_of_a_counter_are_equal(bucket: FakeBucket) -> None:
    """An ETag stands for the bytes: with equal ones a late request would be accepted."""
    seen = set()
    for _ in range(2):
        performing(bucket)(CreateCounter(NUMBER))
        (stored,) = bucket.objects.values()
        seen.add(stored)
        bucket.objects.clear()
    assert len(seen) == 2


def test_no_two_increments_get_the_same_number(perform: Perform) -> None:
    perform(CreateCounter(NUMBER))
    with ThreadPoolExecutor(RACERS) as pool:
        numbers = list(pool.map(lambda _: perform(Increment(NUMBER)), range(2 * RACERS)))
    assert sorted(numbers) == list(range(1, 2 * RACERS + 1))  # type: ignore[type-var]


@pytest.mark.parametrize("fault", [lose_reply, lose_request, double])
def test_a_number_whose_replacement_was_not_acknowledged_belongs_to_nobody(bucket: FakeBucket, fault: Any) -> None:
    perform = performing(bucket)
    perform(CreateCounter(NUMBER))
    bucket.on(lambda call: call.operation == "put_object", fault)
    numbers: list[Reply] = []
    for _ in range(3):
        try:
            numbers.append(perform(Increment(NUMBER)))
        except OutcomeUnknownError:
            continue
    assert len(set(numbers)) == len(numbers) >= 2
    assert numbers == sorted(numbers)  # type: ignore[type-var]


def test_a_late_increment_takes_no_number_of_others(bucket: FakeBucket) -> None:
    perform, late = performing(bucket), []

    def hold_back(answer: Callable[[], Any]) -> Any:
        late.append(answer)
        return lose_request(answer)

    perform(CreateCounter(NUMBER))
    bucket.on(lambda call: call.operation == "put_object", hold_back)
    with pytest.raises(OutcomeUnknownError):
        perform(Increment(NUMBER))
    assert perform(Increment(NUMBER)) == 1
    (arrive,) = late
    arrive()
    assert perform(Increment(NUMBER)) == 2


def test_a_counter_that_others_always_change_first_is_given_up(
    bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr("fencelock.stores.s3.source.documents.boottime_ms", clock.now_ms)
    monkeypatch.setattr("fencelock.stores.pauses.time", SimpleNamespace(sleep=clock.advance))
    perform = performing(bucket)
    perform(CreateCounter(NUMBER))
    (name,) = bucket.objects

    def change_first(call: Any, answer: Callable[[], Any]) -> Any:
        if call.operation == "put_object":
            bucket.objects[name] = json.dumps({"reached": len(bucket.calls)}).encode()
        return answer()

    bucket.on_call = change_first
    began_ms = clock.now_ms()
    with pytest.raises(SourceUnavailableError, match="try again"):
        perform(Increment(NUMBER))
    assert INCREMENT_MS < clock.now_ms() - began_ms <= INCREMENT_MS + 1000 * LONGEST_S


def test_a_counter_of_somebody_else_is_refused(bucket: FakeBucket) -> None:
    bucket.objects["prefix/.fencelock/counters/history"] = b"7"
    with pytest.raises(SourceError, match="counters/history"):
        performing(bucket)(Increment(NUMBER))


# --- races and refusals -----------------------------------------------------------------------------------------------
def test_of_writes_and_deletes_at_the_same_time_one_is_done(seaweed: Corner) -> None:
    clients = [S3Source(seaweed.url).open_client(DEADLINE_S) for _ in range(RACERS)]
    for number in range(5):
        perform = clients[0].perform
        name = f"race-{number}"
        perform(write(name, "0"))
        seen = version(perform, Key(LOCK, name))

        def race(racer: int, name: str = name, seen: str = seen) -> Reply:
            asked = Delete(Key(LOCK, name), seen) if racer % 2 else write(name, f"new-{racer}", seen)
            return clients[racer].perform(asked)

        with ThreadPoolExecutor(RACERS) as pool:
            outcomes = list(pool.map(race, range(RACERS)))
        winner = outcomes.index(True)
        assert outcomes.count(True) == 1
        assert body(perform, Key(LOCK, name)) == (None if winner % 2 else f"new-{winner}")


def test_nothing_is_deleted_where_the_condition_of_a_delete_is_ignored(bucket: FakeBucket) -> None:
    perform = performing(bucket)
    perform(write("a", "1"))
    bucket.ignored = frozenset({DELETES})
    with pytest.raises(UnsupportedError, match="nothing was deleted"):
        perform(Delete(A, version(perform)))
    assert list(bucket.objects) == ["prefix/.fencelock/locks/a"]


def test_a_server_that_compares_etags_without_quotation_marks_is_asked_so(bucket: FakeBucket) -> None:
    bucket.knows_quotes = False
    perform = performing(bucket)
    perform(write("a", "1"))
    assert perform(write("a", "2", version(perform))) is True
    assert perform(Delete(A, version(perform))) is True


def test_a_read_is_asked_twice_and_fails_definitely(bucket: FakeBucket) -> None:
    perform = performing(bucket)
    perform(write("a", "1"))
    bucket.on(lambda _: True, lose_reply)
    assert body(perform) == "1"
    bucket.on(lambda _: True, lose_reply, lose_reply)
    with pytest.raises(SourceUnavailableError, match="nothing was done"):
        read(perform)


def test_a_bucket_that_does_not_exist_is_named(seaweed: Corner) -> None:
    perform = S3Source(seaweed.url.replace("s3://fencelock/", "s3://no-such-bucket/")).open_client(DEADLINE_S).perform
    for operation in (ReadLocks("", 1), write("a", "1")):
        with pytest.raises(SourceError, match="no-such-bucket"):
            perform(operation)
