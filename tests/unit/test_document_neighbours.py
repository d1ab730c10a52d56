"""What is wrong with the document of one lock, or with one request of many, says nothing of the other locks."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from fencelock.errors import OutcomeUnknownError, SchemaError, SourceError, SourceUnavailableError
from fencelock.protocol import source_requests as ask
from fencelock.stores.document.admin import PAGE_LOCKS
from fencelock.stores.document.operations import (
    LOCK,
    MAX_KEYS,
    MAX_WRITES,
    SOURCE_KEY,
    Document,
    Key,
    Operation,
    ReadDocuments,
    WriteEach,
)
from tests.support.documents import Documents
from tests.unit.test_document_source import TTL_MS, World

PROBLEM = "the item is not one of fencelock's"
PAGE = MAX_KEYS - 1
STRAYS: dict[str, Callable[[Key], Document]] = {
    "not JSON": lambda key: Document(key, "version", "no JSON"),
    "not read": lambda key: Document(key, "", "", PROBLEM),
    "of a newer version": lambda key: Document(key, "version", '{"schema": 99}'),
}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(params=STRAYS)
def stray(request: pytest.FixtureRequest) -> Callable[[Key], Document]:
    return STRAYS[request.param]


def put_stray(world: World, name: str, stray: Callable[[Key], Document]) -> None:
    """Put something else in the place of a lock's document."""
    world.documents.documents[Key(LOCK, name)] = stray(Key(LOCK, name))


def names_of(number: int) -> list[str]:
    """Return names of locks, in their order."""
    return [f"lock {index:03}" for index in range(number)]


def acquire(world: World, names: list[str]) -> ask.Renew:
    """Take locks, and return the request that renews them; each claim has its lock's name."""
    for name in names:
        world.one.acquire(name, lock=name)
    return ask.Renew(tuple((name, name) for name in names))


def failing_at(world: World, kind: type, number: int, error: Exception) -> None:
    """Have the n-th operation of a kind from now on fail, and every later operation."""
    seen: list[Operation] = []

    def before(operation: Operation) -> None:
        if isinstance(operation, kind) or len(seen) >= number:
            seen.append(operation)
        if len(seen) >= number:
            raise error

    world.documents.before = before


# --- renewals ---------------------------------------------------------------------------------------------------------
def test_h2_a_document_that_cannot_be_read_ends_the_leases_of_no_other_lock(
    world: World, stray: Callable[[Key], Document]
) -> None:
    names = names_of(10)
    request = acquire(world, names)
    put_stray(world, names[3], stray)
    world.kinds()
    replied = world.one.send(request)
    others = [name for name in names if name != names[3]]
    assert replied == ask.Renewed(dict.fromkeys(others, TTL_MS), {}, frozenset({names[3]}))
    assert world.kinds() == ["ReadDocuments", "WriteEach"]


def test_h2_what_was_written_is_told_though_a_later_page_cannot_be_read(world: World) -> None:
    names = names_of(150)
    request = acquire(world, names)
    failing_at(world, ReadDocuments, 2, SourceUnavailableError("down on purpose"))
    replied = world.one.send(request)
    assert replied == ask.Renewed(dict.fromkeys(names[:PAGE], TTL_MS), {}, frozenset(names[PAGE:]))


@pytest.mark.parametrize("error", [OutcomeUnknownError("lost"), SourceError("refused")])
def test_h2_what_was_written_is_told_though_a_later_write_fails(world: World, error: SourceError) -> None:
    names = names_of(2 * MAX_WRITES + 1)
    request = acquire(world, names)
    failing_at(world, WriteEach, 2, error)
    replied = world.one.send(request)
    assert replied == ask.Renewed(dict.fromkeys(names[:MAX_WRITES], TTL_MS), {}, frozenset(names[MAX_WRITES:]))


def test_h3_a_loss_is_told_though_a_later_page_cannot_be_read(world: World) -> None:
    names = names_of(PAGE + 1)
    request = acquire(world, names)
    world.two.send(ask.Break(names[0], "breaker", "other", "on purpose"))
    failing_at(world, WriteEach, 1, OutcomeUnknownError("lost"))
    replied = world.one.send(request)
    assert list(replied.lost) == [names[0]]
    assert replied.in_doubt == frozenset(names[1:])


@pytest.mark.parametrize("error", [OutcomeUnknownError("lost"), SourceUnavailableError("down"), SchemaError("none")])
def test_an_error_before_anything_is_settled_is_raised(world: World, error: SourceError) -> None:
    request = acquire(world, names_of(2))
    failing_at(world, ReadDocuments, 1, error)
    with pytest.raises(type(error), match=str(error)):
        world.one.send(request)


def writing_each(monkeypatch: pytest.MonkeyPatch, refused: dict[str, SourceError]) -> None:
    """Refuse the writes of these locks, each with its error."""

    def write_each(self: Documents, request: WriteEach) -> tuple[Any, ...]:
        return tuple(refused.get(one.key.name) or self._writedocument(one) for one in request.writes)

    monkeypatch.setattr(Documents, "_writeeach", write_each)


def test_h2_a_refused_write_stops_neither_its_batch_nor_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_of(MAX_WRITES + 1)
    request = acquire(world, names)
    writing_each(monkeypatch, dict.fromkeys(names[:MAX_WRITES], SourceError("denied")))
    assert world.one.send(request) == ask.Renewed({names[-1]: TTL_MS}, {}, frozenset(names[:-1]))


def test_refusals_of_all_leases_are_an_error_that_says_why(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_of(2)
    request = acquire(world, names)
    writing_each(monkeypatch, dict.fromkeys(names, SourceError("denied")))
    with pytest.raises(OutcomeUnknownError, match=r"2 lease\(s\) could not be renewed: denied"):
        world.one.send(request)


def test_a_source_that_falls_silent_is_not_asked_for_the_next_batches(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = names_of(3 * MAX_WRITES)
    request = acquire(world, names)
    writing_each(monkeypatch, dict.fromkeys(names[MAX_WRITES:], OutcomeUnknownError("silent")))
    world.kinds()
    assert world.one.send(request).in_doubt == frozenset(names[MAX_WRITES:])
    assert world.kinds() == ["ReadDocuments", "WriteEach", "WriteEach"]


# --- operators --------------------------------------------------------------------------------------------------------
def test_a_listing_leaves_out_what_cannot_be_read_and_says_so(
    world: World, stray: Callable[[Key], Document], caplog: pytest.LogCaptureFixture
) -> None:
    names = names_of(3)
    acquire(world, names)
    put_stray(world, names[1], stray)
    with caplog.at_level(logging.WARNING, "fencelock"):
        listed = world.one.send(ask.ListLocks(None))
    assert [info.name for info in listed] == [names[0], names[2]]
    (_,) = (message for message in caplog.messages if "a lock was left out" in message)


def test_a_page_of_locks_that_cannot_be_read_ends_no_listing(world: World, stray: Callable[[Key], Document]) -> None:
    names = names_of(2 * PAGE_LOCKS + 1)
    acquire(world, names[-1:])
    for name in names[:-1]:
        put_stray(world, name, stray)
    (info,) = world.one.send(ask.ListLocks(None))
    assert info.name == names[-1]
    assert world.one.send(ask.ListLocks(info.name)) == ()


def test_a_purge_leaves_what_cannot_be_read_and_deletes_the_rest(
    world: World, stray: Callable[[Key], Document]
) -> None:
    names = names_of(3)
    acquire(world, names)
    for name in names:
        world.one.release(name, lock=name)
    put_stray(world, names[0], stray)
    assert world.one.send(ask.Purge()) == 2
    assert [key.name for key in world.documents.documents if key.kind == LOCK] == [names[0]]


def test_doctor_reports_each_lock_that_cannot_be_read(world: World, stray: Callable[[Key], Document]) -> None:
    names = names_of(PAGE_LOCKS + 2)
    acquire(world, names)
    for name in (names[0], names[-1]):
        put_stray(world, name, stray)
    found = world.one.source.examine()
    assert [one.code for one in found] == ["blocked-queue"] * 2


def test_doctor_reports_a_source_that_cannot_be_read(world: World) -> None:
    del world.documents.documents[SOURCE_KEY]
    assert [one.code for one in world.one.source.examine()] == ["source-refused"]


def test_a_lock_that_cannot_be_read_is_refused(world: World, stray: Callable[[Key], Document]) -> None:
    put_stray(world, "lock", stray)
    for request in (ask.Inspect("lock"), ask.Release("lock", "claim"), ask.Break("lock", "claim", "me", "why")):
        with pytest.raises(SourceError):
            world.one.send(request)
    with pytest.raises(SourceError):
        world.one.acquire("new")
