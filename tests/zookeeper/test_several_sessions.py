"""A source with two ttls has two sessions: one that cannot be asked costs the leases of the other nothing."""

import pytest

from fencelock.errors import SourceUnavailableError
from fencelock.stores.zookeeper.source.session import ZooKeeperSession
from tests.zookeeper.fix_client import TTL_MS, Client


def test_h2_a_session_without_a_connection_costs_no_lease_of_another(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, live = client.acquire("cut"), client.acquire("live", ttl_ms=TTL_MS + 1)
    wait_connected = ZooKeeperSession.wait_connected

    def wait(session: ZooKeeperSession, request_timeout_s: float) -> None:
        if session.ttl_ms == TTL_MS:
            raise SourceUnavailableError("no connection")
        wait_connected(session, request_timeout_s)

    with monkeypatch.context() as patched:
        patched.setattr(ZooKeeperSession, "wait_connected", wait)
        for leases in (("cut", cut), ("live", live)), (("live", live), ("cut", cut)):
            renewed = client.renew(*leases)
            assert (renewed.remaining_ms.keys(), renewed.lost, renewed.in_doubt) == ({live}, {}, {cut})
        with pytest.raises(SourceUnavailableError):
            client.renew(("cut", cut))
    assert client.renew(("cut", cut), ("live", live)).remaining_ms.keys() == {cut, live}
