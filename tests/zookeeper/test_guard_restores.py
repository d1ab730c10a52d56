"""Servers that begin from an older data folder bring back marks and data together; who had sealed finds out."""

import gc
import shutil

import pytest

import fenceline
from fenceline import SealLostError, StaleTokenError
from tests.guards import LOCK, HandmadeLease, HandmadeSource
from tests.private_server import copy_folder
from tests.zookeeper.fix_server import ZooKeeperServer

NODE = "/app/r"


def write(server: ZooKeeperServer, lease: HandmadeLease, value: bytes) -> None:
    """Write through a guard of its own: servers take no session that has seen more than they have."""
    guard = fenceline.guard(server.url("/app"), resource="r", lock=LOCK)
    with guard.transaction(lease) as txn:
        (txn.set if txn.exists(NODE) else txn.create)(NODE, value)


def test_g9_a_tenure_that_had_sealed_finds_its_seal_lost(own_zookeeper: ZooKeeperServer) -> None:
    server = own_zookeeper
    before, after, following = HandmadeLease(5), HandmadeLease(6), HandmadeLease(7)
    write(server, before, b"one")
    server.stop()
    older = server.data.with_name("older")
    copy_folder(server.data, older)
    server.start()
    write(server, after, b"two")
    server.stop()
    shutil.rmtree(server.data)
    copy_folder(older, server.data)
    server.start()
    for _ in range(2):
        with pytest.raises(SealLostError, match="sealed it with token 6, and now its mark is 5"):
            write(server, after, b"late")
    fenceline.guard(server.url("/app"), resource="r", lock=LOCK).raise_to(HandmadeSource(6), reason="restored")
    for late in (before, after):
        with pytest.raises(StaleTokenError):
            write(server, late, b"late")
    write(server, following, b"three")
    client = server.client()
    assert client.get(NODE)[0] == b"three"
    client.stop()
    client.close()
    gc.collect()
