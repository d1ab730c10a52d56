"""What a guard keeps at etcd and ZooKeeper beside the marks, written by the request that it belongs to: effects (G13),
the keys of work that is done once (G14), and the floors of purged marks (G15).
"""

import pytest

from tests.support.effects import Effects
from tests.support.once import OvertakenJobs
from tests.support.purged_marks import PurgedMarks
from tests.zookeeper.fix_zookeeper import fresh_base


@pytest.fixture(params=["etcd", "zookeeper"])
def guard_url(request: pytest.FixtureRequest) -> str:
    server = request.getfixturevalue(request.param)
    return str(server.url if request.param == "etcd" else server.url(fresh_base()))


class TestEffects(Effects):
    @pytest.fixture
    def effects_url(self, guard_url: str) -> str:
        return guard_url


class TestOnceJobs(OvertakenJobs):
    @pytest.fixture
    def once_url(self, guard_url: str) -> str:
        return guard_url


class TestPurgedMarks(PurgedMarks):
    @pytest.fixture
    def marks_url(self, guard_url: str) -> str:
        return guard_url
