"""A node that the servers refuse to remove, because of the access list of its parent: the process tries again."""

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_acl

from fencelock.errors import SourceError
from fencelock.protocol import source_requests as ask
from tests.zookeeper.fix_client import Client

READ_ONLY = [*READ_ACL_UNSAFE, make_acl("world", "anyone", read=True, admin=True)]


def test_h4_a_release_that_was_refused_is_made_up_for_while_the_session_lives(
    client: Client, kazoo: KazooClient
) -> None:
    claims = {lock: client.acquire(lock) for lock in ("kept", "barred", "expired")}
    queue = client.store.layout.lock("barred")
    kazoo.set_acls(queue, READ_ONLY)
    with pytest.raises(SourceError, match="does not permit it"):
        client.perform(ask.Release("barred", claims["barred"]))
    for lock in ("barred", "expired"):
        client.session.entries[_digest(client, lock)].deadline_ms = 0
    client.session._earliest_ms = 0
    assert not client.perform(ask.Inspect("expired")).is_held
    assert len(client.session.entries) == 2
    assert client.perform(ask.Inspect("barred")).is_held
    kazoo.set_acls(queue, OPEN_ACL_UNSAFE)
    client.session.entries[_digest(client, "barred")].deadline_ms = 0
    client.session._earliest_ms = 0
    assert not client.perform(ask.Inspect("barred")).is_held
    assert client.renew(("kept", claims["kept"])).remaining_ms.keys() == {claims["kept"]}


def _digest(client: Client, lock: str) -> str:
    (digest,) = (one.digest for one in client.session.entries.values() if one.lock == lock)
    return digest
