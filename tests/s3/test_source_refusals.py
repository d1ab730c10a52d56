"""A server that refuses the object of one lock: the leases of the other locks go on. In threads and on a loop."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fencelock.clock import boottime_us
from fencelock.errors import OutcomeUnknownError, SourceError
from fencelock.protocol import source_requests as ask
from fencelock.stores.document.operations import MAX_WRITES
from fencelock.stores.s3.source.store import S3Source
from fencelock.stores.together import MAX_AT_ONCE
from tests.s3.fake_bucket import FakeBucket, lose_request
from tests.support.helpers import DEADLINE_S

TTL_MS = 30_000
NAMES = [f"lock-{number:02}" for number in range(MAX_WRITES)]
RENEW_ALL = ask.Renew(tuple((name, name) for name in NAMES))
Send = Callable[[S3Source, Any], Any]


def in_thread(store: S3Source, request: Any) -> Any:
    return store.connect(request_timeout_s=DEADLINE_S).perform(request)


def on_loop(store: S3Source, request: Any) -> Any:
    async def perform() -> Any:
        return await store.connect_async(request_timeout_s=DEADLINE_S).perform(request)

    return asyncio.run(perform())


@pytest.fixture(params=[in_thread, on_loop])
def send(request: pytest.FixtureRequest) -> Send:
    found: Send = request.param
    return found


@pytest.fixture
def bucket() -> FakeBucket:
    return FakeBucket()


@pytest.fixture
def store(bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch) -> S3Source:
    """A source that has granted every lock to the claim with its name."""
    store = bucket.source_store()
    monkeypatch.setattr(store, "create_location", lambda: None)
    store.install()
    for name in NAMES:
        granted = in_thread(store, ask.Acquire(name, name, "me", TTL_MS, boottime_us(), may_wait=False))
        assert isinstance(granted, ask.Granted)
    return store


def deny(bucket: FakeBucket, operation: str, *names: str) -> None:
    """Refuse an operation on the objects of these locks, or on every object below /locks/."""

    def answer(call: Any, normally: Callable[[], Any]) -> Any:
        _, is_lock, name = call.arguments.get("Key", "").partition("/locks/")
        if call.operation == operation and is_lock and name in (names or NAMES):
            raise SourceError("AccessDenied on purpose")
        return normally()

    bucket.on_call = answer


@pytest.mark.parametrize("denied", [NAMES[0], NAMES[MAX_AT_ONCE], NAMES[-1]])
def test_h2_one_write_that_is_always_refused_starves_no_other_lease(
    bucket: FakeBucket, store: S3Source, send: Send, denied: str
) -> None:
    deny(bucket, "put_object", denied)
    others = {name: TTL_MS for name in NAMES if name != denied}
    for _ in range(3):
        assert send(store, RENEW_ALL) == ask.Renewed(others, {}, frozenset({denied}))


@pytest.mark.parametrize("denied", [NAMES[0], NAMES[-1]])
def test_h2_one_object_that_may_not_be_read_ends_no_other_lease(
    bucket: FakeBucket, store: S3Source, send: Send, denied: str
) -> None:
    deny(bucket, "get_object", denied)
    others = {name: TTL_MS for name in NAMES if name != denied}
    assert send(store, RENEW_ALL) == ask.Renewed(others, {}, frozenset({denied}))
    listed = [info.name for page in pages(store, send) for info in page]
    assert listed == list(others)
    with pytest.raises(SourceError, match="AccessDenied on purpose"):
        send(store, ask.Inspect(denied))


def pages(store: S3Source, send: Send) -> Any:
    """Return the pages of all locks."""
    after = None
    while page := send(store, ask.ListLocks(after)):
        yield page
        after = page[-1].name


def test_writes_that_are_all_refused_are_an_error_that_says_why(
    bucket: FakeBucket, store: S3Source, send: Send
) -> None:
    deny(bucket, "put_object")
    with pytest.raises(OutcomeUnknownError, match=r"24 lease\(s\).*AccessDenied on purpose"):
        send(store, RENEW_ALL)


def test_doubt_stops_the_writes_that_have_not_begun(bucket: FakeBucket, store: S3Source, send: Send) -> None:
    bucket.on(lambda call: call.operation == "put_object", *[lose_request] * len(NAMES))
    bucket.calls.clear()
    with pytest.raises(OutcomeUnknownError):
        send(store, RENEW_ALL)
    assert len([call for call in bucket.calls if call.operation == "put_object"]) <= 2 * MAX_AT_ONCE
