"""Requests to a source at S3 that are lost, late, or arrive twice: nobody holds a lock twice, and no lock stays taken.

What happens to each request happens in memory; that the client itself repeats nothing is tested in tests/aws.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

import fencelock
import fencelock.aio
from fencelock.stores import registry
from tests.http.http_proxy import HTTPProxy
from tests.s3.fake_bucket import FakeBucket, double, lose_reply, lose_request
from tests.s3.fix_s3 import Corner
from tests.support.helpers import DEADLINE_S

URL = "s3://bucket/prefix"
TTL = 30.0
REQUESTS = 11
"""As many as an acquire and a release of a new lock send."""
Answer = Callable[[], Any]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> FakeBucket:
    made = FakeBucket()
    made.source_store().install()
    made.calls.clear()
    monkeypatch.setattr(registry, "_load", lambda *_: made.source_store)
    return made


class Late:
    """The request arrives after everything else."""

    def __init__(self) -> None:
        self.held_back: list[Answer] = []

    def __call__(self, answer: Answer) -> Any:
        self.held_back.append(answer)
        return lose_request(answer)

    def arrive(self) -> None:
        for answer in self.held_back:
            answer()


def use(url: str = URL) -> int:
    """Acquire the lock and release it; return the token."""
    with fencelock.connect(url) as source, source.lock("a", ttl=TTL, timeout=DEADLINE_S) as lease:
        return lease.token


def at(nth: int, fault: Any) -> list[Any]:
    return [None] * (nth - 1) + [fault]


def test_as_many_requests_are_sent_as_are_disturbed_here(bucket: FakeBucket) -> None:
    use()
    assert len(bucket.calls) == REQUESTS


@pytest.mark.parametrize("nth", range(1, REQUESTS + 1))
@pytest.mark.parametrize("fault", [lose_reply, lose_request, double])
def test_a_disturbed_request_costs_no_lease_and_leaves_no_lock(bucket: FakeBucket, fault: Any, nth: int) -> None:
    bucket.on(lambda _: True, *at(nth, fault))
    assert use() < use()


@pytest.mark.parametrize("nth", range(1, REQUESTS + 1))
def test_a_late_request_changes_nothing_for_the_next_holder(bucket: FakeBucket, nth: int) -> None:
    late = Late()
    bucket.on(lambda _: True, *at(nth, late))
    first = use()
    with fencelock.connect(URL) as source, source.lock("a", ttl=TTL, timeout=DEADLINE_S) as lease:
        late.arrive()
        assert lease.token > first
        assert source.check(lease).is_current


@pytest.mark.campaign
@pytest.mark.parametrize("fault", ["drop_reply", "drop_request"])
@pytest.mark.parametrize("nth", range(1, REQUESTS + 1))
def test_a_message_that_a_real_network_loses_costs_no_lease(seaweed: Corner, fault: str, nth: int) -> None:
    """Behind this proxy each PUT takes a second, for which botocore waits to be told to send the body."""
    fencelock.connect(seaweed.url).install()
    with HTTPProxy(urlsplit(seaweed.endpoint).port or 0) as proxy:
        getattr(proxy, fault)(nth)
        first = use(seaweed.behind(proxy.port).url)
    assert use(seaweed.url) > first
