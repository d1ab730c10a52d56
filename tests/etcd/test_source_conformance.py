"""The etcd source keeps every rule, over threads and over grpc's own asyncio, on one member and on three."""

import pytest

from fencelock.stores.etcd.source.store import EtcdSource
from fencelock.testing import AsyncSourceConformance, SourceConformance
from tests.etcd.fix_etcd import Corner
from tests.support.helpers import wait_until


class InEtcd:
    """A prefix of its own for each check. etcd ends an expired lease within about a second, not at once."""

    short_ttl_ms = 1000
    break_keeps_queue = False
    counts_alone = False  # Other tests use the same server meanwhile.
    many_names = 300

    def setup_method(self) -> None:
        """The prefix comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _in_etcd(self, corner: Corner) -> None:
        self.corner = corner
        super().setup_method()

    def make_url(self) -> str:
        EtcdSource(self.corner.url).install()
        return self.corner.url

    def dump(self) -> bytes:
        return self.corner.dump()

    def let_expire(self) -> None:
        session = self.store.state.sessions[self.short_ttl_ms]
        super().let_expire()
        wait_until(lambda: f"{session.lease:016x}" not in self.corner.cluster.leases())


class OnOne(InEtcd):
    @pytest.fixture
    def corner(self, etcd: Corner) -> Corner:
        return etcd


class OnThree(InEtcd):
    many_names = 20

    @pytest.fixture
    def corner(self, etcd_three: Corner) -> Corner:
        return etcd_three


class TestEtcdSource(OnOne, SourceConformance):
    pass


@pytest.mark.campaign
class TestEtcdSourceOfThree(OnThree, SourceConformance):
    pass


@pytest.mark.campaign
class TestAsyncEtcdSource(OnOne, AsyncSourceConformance):
    pass
