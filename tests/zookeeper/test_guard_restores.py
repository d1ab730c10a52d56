"""Servers that are restored from an older data folder have old marks and old data; tenures that had sealed find out."""

import gc
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import fencelock
from fencelock import SealLostError, SourceUnavailableError, StaleTokenError
from fencelock_lab.servers.programs import copy_folder
from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.support.guards import LOCK, HandmadeLease, HandmadeSource

NODE = "/app/r"


def write(server: ZooKeeperServer, lease: HandmadeLease, value: bytes) -> None:
    """Write through a new guard: servers refuse a session that has seen newer data than they have."""
    guard = fencelock.guard(server.url("/app"), resource="r", lock=LOCK)
    with guard.transaction(lease) as txn:
        (txn.set if txn.exists(NODE) else txn.create)(NODE, value)


def back_up(server: ZooKeeperServer) -> Path:
    """Return a copy of the server's present data, made while it is stopped."""
    server.stop()
    older = server.data.with_name("older")
    copy_folder(server.data, older)
    server.start()
    return older


def begin_from(server: ZooKeeperServer, older: Path) -> None:
    """Stop the server, replace its data by the older data, and start it."""
    server.stop()
    shutil.rmtree(server.data)
    copy_folder(older, server.data)
    server.start()


def test_g9_a_tenure_that_had_sealed_finds_its_seal_lost(own_zookeeper: ZooKeeperServer) -> None:
    server = own_zookeeper
    before, after, following = HandmadeLease(5), HandmadeLease(6), HandmadeLease(7)
    write(server, before, b"one")
    older = back_up(server)
    write(server, after, b"two")
    begin_from(server, older)
    for _ in range(2):
        with pytest.raises(SealLostError, match="sealed it with token 6, and now its mark is 5"):
            write(server, after, b"late")
    fencelock.guard(server.url("/app"), resource="r", lock=LOCK).raise_to(HandmadeSource(6), reason="restored")
    for late in (before, after):
        with pytest.raises(StaleTokenError):
            write(server, late, b"late")
    write(server, following, b"three")
    client = server.client()
    assert client.get(NODE)[0] == b"three"
    client.stop()
    client.close()
    gc.collect()


def test_reused_versions_do_not_pass_for_the_old_ones(own_zookeeper: ZooKeeperServer) -> None:
    """The mark that an operator raises gets the same version as the seal of an open block had before the restore."""
    server = own_zookeeper
    write(server, HandmadeLease(4), b"initial")
    older = back_up(server)
    guard = fencelock.guard(server.url("/app"), resource="r", lock=LOCK)

    def write_across() -> None:
        with guard.transaction(HandmadeLease(5)) as txn:
            txn.set(NODE, b"late")
            begin_from(server, older)
            in_another_thread(lambda: raise_above(server, 8))

    with pytest.raises(StaleTokenError, match="its mark is 8"):
        write_across()
    client = server.client()
    assert client.get(NODE)[0] == b"initial"
    client.stop()
    client.close()
    gc.collect()


def test_a_guard_that_has_seen_more_than_restored_servers_goes_on(own_zookeeper: ZooKeeperServer) -> None:
    """They refuse its session for ever; three servers that have elected a leader since the backup do not even
    catch up.
    """
    server = own_zookeeper
    write(server, HandmadeLease(4), b"four")
    older = back_up(server)
    guard = fencelock.guard(server.url("/app"), resource="r", lock=LOCK)
    for token in range(5, 15):
        guard.seal(HandmadeLease(token))
    begin_from(server, older)
    with pytest.raises(SourceUnavailableError):
        guard.mark()
    assert guard.mark().token == 4
    gc.collect()


def raise_above(server: ZooKeeperServer, token: int) -> None:
    """Raise the marks as an operator does after a restore, and let the servers pass what clients had seen before it."""
    fencelock.guard(server.url("/app"), resource="r", lock=LOCK).raise_to(HandmadeSource(token), reason="restored")
    client = server.client()
    for _ in range(30):
        client.create("/passing", sequence=True)
    client.stop()
    client.close()


def in_another_thread(function: Callable[[], None]) -> None:
    """Run this in another thread: a thread with an open block seals nothing else."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(30)
