"""Tokens after etcd's state went back: restoring a snapshot needs an operator's step (T7)."""

import pytest

import fencelock
from fencelock.errors import SchemaError, SourceError
from fencelock.model import EPOCH_STRIDE, draw_claim
from fencelock.protocol import source_requests as ask
from fencelock_lab.servers.etcd import EtcdCluster
from fencelock_lab.servers.programs import give
from tests.etcd.clients import Client, installed
from tests.etcd.fix_etcd import Corner
from tests.etcd.guarded import Direct
from tests.support.helpers import wait_until


def restored(cluster: EtcdCluster) -> None:
    """Restore the one member from the snapshot that `saved` made, as the manual says."""
    (server,) = cluster.servers
    server.kill()
    server.data.rename(server.folder / f"old-{len(list(server.folder.iterdir()))}")
    cluster.ctl(
        "snapshot", "restore", server.folder / "snapshot", f"--data-dir={server.data}", f"--name={server.name}",
        f"--initial-cluster={server.name}={server.peer_url}", f"--initial-advertise-peer-urls={server.peer_url}",
    )  # fmt: skip
    for path in [server.data, *server.data.rglob("*")]:
        give(path)
    cluster.start()


def saved(cluster: EtcdCluster) -> None:
    cluster.ctl("snapshot", "save", cluster.servers[0].folder / "snapshot")


def test_a_client_that_saw_more_refuses_a_restored_source_until_its_epoch_is_raised(own_etcd: EtcdCluster):
    client = installed(own_etcd.url())
    first = client.one_token()
    saved(own_etcd)
    tokens = [client.one_token() for _ in range(5)]
    restored(own_etcd)
    wait_until(lambda: is_answered(client))
    fresh = Client(own_etcd.url())
    assert fresh.one_token() <= tokens[-1], "a fresh process cannot know: that is why it is an operator's step"
    for _ in range(len(tokens) * 4):  # Also after the revision has passed every revision seen before.
        claim = draw_claim()
        with pytest.raises(SourceError, match="went back"):
            client.acquire("lock", claim)
        client.release("lock", claim)
        fresh.one_token()
    after = Client(own_etcd.url()).raise_epoch("a restore")
    assert after.last_token % EPOCH_STRIDE == 0
    assert client.one_token() > after.last_token > tokens[-1] > first
    assert fresh.one_token() > after.last_token


def test_the_process_that_saw_more_can_raise_the_epoch_itself(own_etcd: EtcdCluster):
    client = installed(own_etcd.url())
    saved(own_etcd)
    token = client.one_token()
    restored(own_etcd)
    wait_until(lambda: is_answered(client))
    with pytest.raises(SourceError, match="went back"):
        client.acquire()
    assert client.raise_epoch("a restore").last_token > token
    assert client.one_token() > token


def test_a_reused_revision_is_no_token_for_its_former_holder(own_etcd: EtcdCluster):
    """The last revision that the process has seen is issued again, to the same process."""
    client = installed(own_etcd.url())
    saved(own_etcd)
    client.token("one")
    restored(own_etcd)
    wait_until(lambda: is_answered(client))
    with pytest.raises(SourceError, match="went back"):
        client.acquire("another")


def test_two_histories_from_one_snapshot_share_no_token(own_etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch):
    """A snapshot from before a raise does not contain the raise; the clock tells the histories apart."""
    client = installed(own_etcd.url())
    client.one_token()
    saved(own_etcd)
    first = Client(own_etcd.url()).raise_epoch("a test")
    restored(own_etcd)
    monkeypatch.setattr("fencelock.stores.source_clock.YEAR_2026_S", 0)  # Later than it was.
    wait_until(lambda: is_answered(Client(own_etcd.url())))
    assert Client(own_etcd.url()).raise_epoch("a restore").last_token > first.last_token


def test_a_lock_held_in_a_snapshot_is_held_for_its_ttl_after_the_restore(own_etcd: EtcdCluster):
    holder = installed(own_etcd.url())
    holder.token("long", ttl_ms=60_000)
    holder.token("brief", ttl_ms=1000)
    saved(own_etcd)
    restored(own_etcd)
    fresh = Client(own_etcd.url())
    assert wait_until(lambda: fresh.ask(ask.Inspect("long"))).is_held
    wait_until(lambda: not fresh.ask(ask.Inspect("brief")).is_held)
    assert fresh.ask(ask.Inspect("long")).is_held


def is_answered(client: Client) -> bool:
    """Return whether the member can be reached again, whatever it answers."""
    try:
        client.describe()
    except SourceError as error:
        return error.definite and "reached" not in str(error)
    return True


def test_a_source_that_was_not_installed_names_the_command(etcd: Corner):
    with pytest.raises(SchemaError, match="fencelock install"):
        Client(etcd.url).acquire()
    with fencelock.connect(etcd.url) as source:
        for look in (lambda: list(source.locks()), source.purge, lambda: source.info("a")):
            with pytest.raises(SchemaError, match=r"holds no source of tokens .*fencelock install --source etcd://"):
                look()


def test_installing_twice_changes_nothing(etcd: Corner):
    first, written = installed(etcd.url).describe(), etcd.dump()
    second = installed(etcd.url).describe()
    assert etcd.dump() == written
    # Not the counter, which is the cluster's revision: other tests write there too.
    assert (second.source_id, second.epoch, second.history_id) == (first.source_id, first.epoch, first.history_id)


def test_a_record_of_another_format_is_refused(etcd: Corner):
    installed(etcd.url)
    etcd.cluster.ctl("put", f"{etcd.prefix}/.fencelock/source/record", '{"format": 1}')
    with pytest.raises(SchemaError, match="with schema 1, and this version of fencelock has schema 3"):
        Client(etcd.url).acquire()


RECORD = '{"format": 3, "source_id": "s", "epoch": 1, "history_id": "h", "floor": "0"}'


@pytest.mark.parametrize(
    "value",
    [
        "", "[]", "other", '{"format": 3}', '{"format": "x"}', "[" * 5000, RECORD.replace('"0"', "0"),
        RECORD.replace('"0"', '"-1"'), RECORD.replace('"epoch": 1', '"epoch": "1"'), RECORD.replace('"s"', "null"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_a_record_is_refused(etcd: Corner, value: str):
    Direct(etcd.url).put(f"{etcd.prefix}/.fencelock/source/record", value)
    client = Client(etcd.url)
    for attempt in (client.acquire, client.describe, client.store.install):
        with pytest.raises(SchemaError, match="put the record back"):
            attempt()
    assert [one.code for one in client.store.examine()] == ["source-refused"]


def test_a_raised_epoch_ends_other_processes_leases(etcd: Corner):
    holder, operator = installed(etcd.url), Client(etcd.url)
    claim = draw_claim()
    token = holder.token("lock", claim)
    assert holder.ask(ask.Renew((("lock", claim),))).remaining_ms
    operator.raise_epoch("a test")
    assert not operator.ask(ask.Inspect("lock")).is_held
    assert operator.token("lock") > token + EPOCH_STRIDE - 1
    assert holder.ask(ask.Renew((("lock", claim),))).lost


def test_all_members_restarted_forget_neither_tokens_nor_holders(own_etcd_three: EtcdCluster):
    client = installed(own_etcd_three.url())
    claim = draw_claim()
    token = client.token("lock", claim)
    own_etcd_three.crash()
    wait_until(lambda: is_answered(client))
    fresh = Client(own_etcd_three.url())
    info = wait_until(lambda: fresh.ask(ask.Inspect("lock")))
    assert (info.token, info.is_held) == (token, True)
    assert fresh.token("another") > token
