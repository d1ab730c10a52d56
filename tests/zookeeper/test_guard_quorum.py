"""Blocks at three servers of ZooKeeper, whose leaders are killed, frozen and restarted."""

import gc

import pytest

from fencelock_lab.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from tests.guard_quorum import race_through
from tests.zookeeper.test_guard_life import ZooKeeperFace


@pytest.mark.campaign
@pytest.mark.process
def test_no_update_is_lost_while_leaders_change(own_ensemble: ZooKeeperEnsemble) -> None:
    ensemble = own_ensemble
    direct = ensemble.client()

    def kill_leader() -> None:
        ensemble.leader().kill()

    def freeze_leader() -> None:
        frozen.append(ensemble.leader())
        frozen[0].freeze()

    def thaw() -> None:
        frozen[0].thaw()

    frozen: list[ZooKeeperServer] = []
    elections = [kill_leader, ensemble.start, freeze_leader, thaw, ensemble.crash]
    race_through(ZooKeeperFace(ensemble, direct), elections)
    gc.collect()
    direct.stop()
    direct.close()
