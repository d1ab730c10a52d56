"""A claim whose key etcd does not let the process delete, or even read: its other claims go on."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from fencelock.clock import boottime_us
from fencelock.errors import SourceError
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.etcd.connection.begun_call import EtcdCallError
from fencelock.stores.etcd.source.cluster_state import ClusterState
from fencelock_lab.servers.etcd import EtcdCluster
from tests.etcd.clients import Client, installed
from tests.etcd.fix_etcd import Corner

TTL_MS = 60_000
ROOT = "root:secret"
LOCKS = ("held", "barred", "expired")


def acquire(client: Client, lock: str) -> str:
    claim = draw_claim()
    granted = client.ask(ask.Acquire(lock, claim, "tester", TTL_MS, boottime_us(), may_wait=False))
    assert isinstance(granted, ask.Granted)
    return claim


def renew(client: Client, leases: dict[str, str], *locks: str) -> set[str]:
    """Return the locks whose leases are renewed."""
    reply = client.ask(ask.Renew(tuple((lock, leases[lock]) for lock in locks)))
    return {lock for lock in locks if leases[lock] in reply.remaining_ms}


def expire(client: Client) -> None:
    for entry in client.state.entries.values():
        if entry.lock != "held":
            entry.deadline_ms = 0


@pytest.fixture
def barred(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Have etcd refuse each transaction that would delete the key of one lock."""
    delete_entries = ClusterState.delete_entries

    def refuse(state: ClusterState, entries: list[Any]) -> Iterator[Any]:
        if any(one.lock == "barred" for one in entries):
            raise SourceError("refused") from EtcdCallError(grpc.StatusCode.PERMISSION_DENIED, "permission denied")
        return (yield from delete_entries(state, entries))

    with monkeypatch.context() as patched:
        patched.setattr(ClusterState, "delete_entries", refuse)
        yield patched


@pytest.mark.parametrize("renewed", [("held",), ("held", "barred")])
def test_h2_a_claim_that_cannot_be_ended_costs_the_process_no_other(
    etcd: Corner, barred: pytest.MonkeyPatch, renewed: tuple[str, ...]
) -> None:
    client = installed(etcd.url)
    leases = {lock: acquire(client, lock) for lock in LOCKS}
    expire(client)
    for _ in range(2):
        assert renew(client, leases, *renewed) == {"held"}
    assert not client.ask(ask.Inspect("expired")).is_held
    assert client.ask(ask.Inspect("barred")).is_held
    barred.undo()
    assert renew(client, leases, "held") == {"held"}
    assert not client.ask(ask.Inspect("barred")).is_held


@pytest.mark.usefixtures("barred")
def test_a_claim_that_cannot_be_ended_makes_no_acquire_fail_that_was_done(
    etcd: Corner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error was a definite one, so nobody would have released the lock that the acquire had got."""
    client = installed(etcd.url)
    acquire(client, "barred")
    expire(client)
    monkeypatch.setattr("fencelock.stores.etcd.source.session.EtcdSession.is_due", lambda _: True)
    acquire(client, "held")


@pytest.fixture
def clerk(own_etcd: EtcdCluster) -> Client:
    """Return a client that has a right for each lock."""
    installed(own_etcd.url("app"))
    own_etcd.ctl("user", "add", ROOT)
    own_etcd.ctl("user", "grant-role", "root", "root")
    own_etcd.ctl("user", "add", "clerk:secret")
    own_etcd.ctl("role", "add", "clerks")
    for prefix in (".fencelock/", *(f"{lock}/" for lock in LOCKS)):
        own_etcd.ctl("role", "grant-permission", "--prefix", "clerks", "readwrite", f"app/{prefix}")
    own_etcd.ctl("user", "grant-role", "clerk", "clerks")
    own_etcd.ctl("auth", "enable")
    return Client(own_etcd.url("app", login="clerk:secret"))


def test_h2_a_key_that_cannot_be_read_leaves_no_other_lease_in_doubt(own_etcd: EtcdCluster, clerk: Client) -> None:
    leases = {lock: acquire(clerk, lock) for lock in LOCKS}
    own_etcd.ctl("role", "revoke-permission", "--prefix", "clerks", "app/barred/", user=ROOT)
    reply = clerk.ask(ask.Renew(tuple(leases.items())))
    assert reply.remaining_ms.keys() == {leases["held"], leases["expired"]}
    assert (reply.lost, reply.in_doubt) == ({}, {leases["barred"]})


def test_h2_a_lost_lease_that_cannot_be_explained_costs_the_process_no_other(
    own_etcd: EtcdCluster, clerk: Client
) -> None:
    client = clerk
    leases = {lock: acquire(client, lock) for lock in LOCKS}
    # From now on their keys are watched, and no longer read.
    assert renew(client, leases, *LOCKS) == set(LOCKS)
    expire(client)
    own_etcd.ctl("role", "revoke-permission", "--prefix", "clerks", "app/barred/", user=ROOT)
    assert renew(client, leases, *LOCKS) == {"held"}
