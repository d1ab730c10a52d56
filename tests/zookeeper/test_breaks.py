"""A break whose reply is lost: a claim that arrived between its two steps is removed all the same."""

import pytest

from fencelock.errors import OutcomeUnknownError
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.zookeeper.source import admin
from tests.zookeeper.fix_client import Client
from tests.zookeeper.framing import ZooKeeperProxy


def test_t4_a_break_in_doubt_leaves_no_claim_with_a_lower_token(
    client: Client, proxied: Client, zookeeper_proxy: ZooKeeperProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = []
    do = admin._break

    def enqueue_first(*arguments: object) -> bool:
        monkeypatch.setattr(admin, "_break", do)
        late.append(client.acquire("lock"))
        zookeeper_proxy.drop_reply(1)
        return do(*arguments)

    monkeypatch.setattr(admin, "_break", enqueue_first)
    client.acquire("lock")
    request = ask.Break("lock", draw_claim(), "operator", "a test")
    with pytest.raises(OutcomeUnknownError):
        proxied.perform(request)
    broken = proxied.perform(request)
    reply = client.poll("lock", late[0])
    assert isinstance(reply, ask.ClaimEnded) or reply.token > broken.token
    assert not proxied.perform(ask.Inspect("lock")).is_held
