"""A cluster that has no room (its alarm NOSPACE): leases are renewed and released all the same."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from fencelock.clock import boottime_us
from fencelock.errors import OutcomeUnknownError
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock_lab.servers.etcd import EtcdCluster
from tests.etcd.clients import Client, installed

TTL_MS = 60_000
_RAISE, _CLEAR = b"\x08\x01\x10\x01\x18\x01", b"\x08\x02\x10\x01\x18\x01"
"""AlarmRequests of etcd's API: the action, a member's id, and NOSPACE."""


@contextmanager
def no_space(cluster: EtcdCluster) -> Iterator[None]:
    """Have the cluster refuse whatever needs room, as it does once its quota is used up."""
    with grpc.insecure_channel(cluster.servers[0].address) as channel:
        alarm = channel.unary_unary("/etcdserverpb.Maintenance/Alarm")
        alarm(_RAISE)
        yield
        alarm(_CLEAR)


def acquire(client: Client, lock: str, claim: str) -> ask.SourceReply:
    return client.ask(ask.Acquire(lock, claim, "tester", TTL_MS, boottime_us(), may_wait=False))


def test_h4_a_release_without_room_succeeds_when_it_is_repeated(own_etcd: EtcdCluster) -> None:
    client, claim, waiter = installed(own_etcd.url("app")), draw_claim(), draw_claim()
    assert isinstance(acquire(client, "lock", claim), ask.Granted)
    waiting = ask.Acquire("lock", waiter, "tester", TTL_MS, boottime_us(), may_wait=True)
    assert isinstance(client.ask(waiting), ask.Queued)
    with no_space(own_etcd):
        with pytest.raises(OutcomeUnknownError, match="has no room"):
            client.ask(ask.Release("lock", claim))
        with pytest.raises(OutcomeUnknownError, match="has no room"):
            client.ask(ask.Break("lock", draw_claim(), "operator", "a test"))
        assert client.ask(ask.Release("lock", claim)) == ask.Released(was_held=True)
        assert isinstance(client.ask(ask.Poll("lock", waiter)), ask.Granted)
        assert client.ask(ask.Renew((("lock", waiter),))).remaining_ms.keys() == {waiter}


def test_h5_an_acquire_without_room_is_abandoned(own_etcd: EtcdCluster) -> None:
    client, claim = installed(own_etcd.url("app")), draw_claim()
    client.token("warm")
    with no_space(own_etcd):
        with pytest.raises(OutcomeUnknownError, match="has no room"):
            acquire(client, "lock", claim)
        assert client.ask(ask.Release("lock", claim)) == ask.Released(was_held=False)
    assert len(client.state.entries) == 1
