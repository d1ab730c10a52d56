"""The source at S3 keeps every rule, synchronously and on the event loop: in memory, at SeaweedFS, and at an emulator.

The holders' clock and the dates of the replies are moved by hand, so that no check depends on how fast the machine is.
"""

from dataclasses import replace

import pytest

from fencelock.stores.s3.source.store import S3Source
from fencelock.testing import AsyncSourceConformance, SourceConformance
from fencelock.testing.clock import ManualClock
from tests.s3.fake_bucket import FakeBucket
from tests.s3.fix_s3 import new_corner, prepared
from tests.support.moved_dates import moved


class InMemory:
    """A bucket of its own for each check."""

    many_names = 50

    def setup_method(self):
        self.clock = ManualClock()
        self.bucket = FakeBucket()
        self.bucket.now_us = self.clock.now_us
        super().setup_method()

    def make_url(self):
        self.make_store("s3://bucket/prefix").install()
        return "s3://bucket/prefix"

    def make_store(self, url):
        store = self.bucket.source_store(url, now_us=self.clock.now_us, longest_wait_ms=10)
        store.capabilities = replace(store.capabilities, ttl_min_ms=1)
        return store

    def dump(self):
        return repr(self.bucket.objects).encode()


class TestInMemory(InMemory, SourceConformance):
    pass


class TestAsyncInMemory(InMemory, AsyncSourceConformance):
    pass


class InBucket:
    """The same at a server, with a prefix for each check."""

    many_names = 30
    # Whether hundreds of requests are done in the kit's 30 s is a matter of the machine: these two run in memory.
    test_two_threads_on_one_lock_exclude_each_other = None
    test_tokens_follow_the_holders_under_contention = None

    def setup_method(self):
        """The server comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _in_bucket(self, endpoint):
        self.corner = new_corner(endpoint)
        self.clock = ManualClock()
        super().setup_method()

    def make_url(self):
        self.make_store(self.corner.url).install()
        return self.corner.url

    def make_store(self, url):
        return moved(S3Source, url, self.clock.now_us)

    def dump(self):
        return b"".join(map(self.corner.read, self.corner.names()))


class AtSeaweed(InBucket):
    @pytest.fixture
    def endpoint(self, seaweed_fleet):
        return seaweed_fleet.shared().url


class AtMinistack(InBucket):
    @pytest.fixture
    def endpoint(self, ministack_fleet):
        return prepared(ministack_fleet.shared().endpoint)


class TestSeaweed(AtSeaweed, SourceConformance):
    """What needs many locks or many holders takes long, and is for the campaigns."""

    @pytest.mark.campaign
    def test_nasty_names_are_different_locks(self):
        super().test_nasty_names_are_different_locks()

    @pytest.mark.campaign
    def test_releasing_one_nasty_name_frees_no_other(self):
        super().test_releasing_one_nasty_name_frees_no_other()

    @pytest.mark.campaign
    def test_listing_gives_every_name_back(self):
        super().test_listing_gives_every_name_back()

    @pytest.mark.campaign
    def test_many_names_are_different_locks(self):
        super().test_many_names_are_different_locks()

    @pytest.mark.campaign
    def test_a_late_duplicate_after_another_grant_is_refused(self):
        super().test_a_late_duplicate_after_another_grant_is_refused()


@pytest.mark.campaign
class TestAsyncSeaweed(AtSeaweed, AsyncSourceConformance):
    pass


@pytest.mark.campaign
class TestMinistack(AtMinistack, SourceConformance):
    pass


@pytest.mark.campaign
class TestAsyncMinistack(AtMinistack, AsyncSourceConformance):
    pass
