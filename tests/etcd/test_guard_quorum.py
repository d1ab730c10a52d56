"""Blocks at three members of etcd, whose leaders are killed, frozen and restarted."""

import pytest

from fencelock_lab.servers.etcd import EtcdCluster, EtcdServer
from tests.etcd.fix_etcd import Corner
from tests.etcd.test_guard_life import EtcdFace
from tests.guard_quorum import race_through


@pytest.mark.campaign
@pytest.mark.process
def test_no_update_is_lost_while_leaders_change(own_etcd_three: EtcdCluster) -> None:
    cluster = own_etcd_three

    def kill_leader() -> None:
        cluster.leader().kill()

    def freeze_leader() -> None:
        frozen.append(cluster.leader())
        frozen[0].freeze()

    def thaw() -> None:
        frozen[0].thaw()

    frozen: list[EtcdServer] = []
    elections = [kill_leader, cluster.start, freeze_leader, thaw, cluster.restart]
    race_through(EtcdFace(Corner(cluster, "app")), elections)
