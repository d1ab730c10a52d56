"""Histories: a raised epoch, an ensemble restored from old data, a missing or unknown schema."""

import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

import fencelock
from fencelock import SchemaError, SourceError
from fencelock.model import EPOCH_STRIDE
from fencelock.protocol import source_requests as ask
from fencelock.stores import source_clock as identity
from fencelock.stores.zookeeper.source.layout import SCHEMA_NUMBER, new_record
from fencelock.stores.zookeeper.source.store import ZooKeeperSource
from fencelock_lab.servers.programs import copy_folder
from fencelock_lab.servers.zookeeper import ZooKeeperFleet, ZooKeeperServer
from tests.support.helpers import DEADLINE_S, wait_until
from tests.zookeeper.fix_client import TTL_MS, Client
from tests.zookeeper.fix_zookeeper import fresh_base

TTL = 2.0


@pytest.fixture
def source(zookeeper_url: str) -> Iterator[fencelock.Source]:
    with fencelock.connect(zookeeper_url) as made:
        yield made


def acquired(source: fencelock.Source, name: str = "lock", ttl: float = TTL) -> fencelock.Lease:
    lease = source.lock(name, ttl=ttl).acquire(timeout=20)
    assert lease is not None
    return lease


@pytest.mark.usefixtures("early_beats")
def test_t7_a_raise_ends_the_leases_of_other_processes_and_frees_their_locks(
    source: fencelock.Source, zookeeper_url: str
) -> None:
    held = acquired(source, ttl=30.0)
    with fencelock.connect(zookeeper_url) as operator:
        raised = operator.raise_epoch(reason="a restore")
        fresh = acquired(operator, ttl=30.0)
        assert fresh.token > raised.last_token >= EPOCH_STRIDE > held.token
        assert held.lost.wait(DEADLINE_S)
        with pytest.raises(fencelock.LeaseLostError, match="a restore"):
            held.check_valid()
        assert acquired(source, "other").token > raised.last_token
        fresh.release()


def test_a_queue_that_is_too_long_to_be_broken_leads_to_a_raise(source: fencelock.Source, kazoo: KazooClient) -> None:
    """A server drops the connection of a client that sends too much at once, and with it all leases of the session."""
    name = "%" * 500
    # The server answers its renewal after all that came before it: a short ttl would run out meanwhile.
    held = source.lock(name, ttl=60).acquire()
    assert held is not None
    place = f"{source._store.layout.lock(name)}/{'0' * 32}__lock__"
    for _ in range(7):
        transaction = kazoo.transaction()
        for _ in range(100):
            transaction.create(place, ephemeral=True, sequence=True)
        transaction.commit()
    with pytest.raises(fencelock.SourceError, match=r"all 701 who hold it or wait takes 1\d+ bytes") as caught:
        source.break_lock(name, reason="a test")
    assert caught.value.definite
    assert held.is_valid
    source.raise_epoch(reason="a test")
    assert acquired(source, name).token > held.token


def test_t7_tokens_rise_over_every_epoch(source: fencelock.Source) -> None:
    tokens = []
    for number in range(4):
        with source.lock("lock", ttl=30.0) as lease:
            tokens.append(lease.token)
        info = source.raise_epoch(reason=f"number {number}")
        assert info.epoch == number + 2
        assert info.last_token % EPOCH_STRIDE == 0
        tokens.append(info.last_token)
    assert tokens == sorted(set(tokens))


def test_without_install_nothing_is_granted_and_nothing_is_made(zookeeper: ZooKeeperServer) -> None:
    base = fresh_base()
    with fencelock.connect(zookeeper.url(base)) as source:
        for attempt in (lambda: source.lock("a", ttl=TTL).acquire(), source.describe, lambda: source.info("a")):
            with pytest.raises(SchemaError, match="fencelock install"):
                attempt()
    client = zookeeper.client()
    assert client.exists(base) is None
    client.stop()
    client.close()


def test_install_may_be_run_again_and_changes_nothing(source: fencelock.Source, zookeeper_url: str) -> None:
    before = source.describe()
    ZooKeeperSource(zookeeper_url).install()
    after = source.describe()
    assert (after.source_id, after.history_id, after.epoch) == (before.source_id, before.history_id, before.epoch)


RECORD = new_record().value()


@pytest.mark.parametrize(
    "value",
    [
        b"", b"[]", b"{}", b"other", b'{"schema": 3}', b"[" * 5000, RECORD.replace(b'"0"', b"0"),
        RECORD.replace(b'"0"', b'"x"'), RECORD.replace(b'"epoch": 1', b'"epoch": null'),
    ],
)  # fmt: skip
def test_a_value_that_is_not_a_record_is_refused(zookeeper: ZooKeeperServer, value: bytes) -> None:
    _require_refused(zookeeper, value, "name another base")


def test_a_record_of_another_schema_is_refused(zookeeper: ZooKeeperServer) -> None:
    value = new_record().value().replace(b'"schema": 3', b'"schema": 1')
    assert SCHEMA_NUMBER == 3
    _require_refused(zookeeper, value, "an older version made it")


def _require_refused(zookeeper: ZooKeeperServer, value: bytes, remedy: str) -> None:
    base = fresh_base()
    client = zookeeper.client()
    client.create(f"{base}/.fencelock/source", value, makepath=True)
    client.stop()
    client.close()
    with fencelock.connect(zookeeper.url(base)) as source:
        with pytest.raises(SchemaError, match=remedy):
            source.describe()
        with pytest.raises(SchemaError, match=remedy):
            source.lock("a", ttl=TTL).acquire()
    with pytest.raises(SchemaError, match=remedy):
        ZooKeeperSource(zookeeper.url(base)).install()


def test_t7_data_that_went_back_is_refused_by_clients_that_saw_more_until_the_epoch_is_raised(
    zookeeper_fleet: ZooKeeperFleet,
) -> None:
    """A real server is stopped, and started again with an older data folder."""
    with zookeeper_fleet.new_server() as server:
        url = server.url()
        ZooKeeperSource(url).install()
        source = fencelock.connect(url)
        acquired(source).release()
        server.stop()
        copy_folder(server.data, server.folder / "backup")
        server.start()
        for _ in range(20):
            lease = acquired(source)
            lease.release()
        server.stop()
        server.data.rename(server.folder / "lost")
        (server.folder / "backup").rename(server.data)
        server.start()
        # The source cannot be reached at all until its old session is given up.
        refusal = wait_until(lambda: _refusal(source))
        assert "an older state was restored" in refusal
        with fencelock.connect(url) as operator:
            operator.raise_epoch(reason="restored from the backup")
        fresh = acquired(source)
        assert fresh.token > lease.token
        fresh.release()
        source.close()


def test_t7_a_backup_from_before_a_raise_does_not_begin_that_history_again(
    zookeeper_fleet: ZooKeeperFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup does not contain the raise. Only the clock tells, once 17 minutes have passed."""
    with zookeeper_fleet.new_server() as server:
        url = server.url()
        ZooKeeperSource(url).install()
        server.stop()
        copy_folder(server.data, server.folder / "backup")
        server.start()
        with fencelock.connect(url) as source:
            source.raise_epoch(reason="the first restore")
            lease = acquired(source)
        server.stop()
        server.data.rename(server.folder / "lost")
        (server.folder / "backup").rename(server.data)
        server.start()
        later_s = time.time() + EPOCH_STRIDE / identity.TOKENS_PER_S
        monkeypatch.setattr(identity.time, "time", lambda: later_s)
        with fencelock.connect(url) as source:
            source.raise_epoch(reason="the second restore")
            fresh = acquired(source)
            assert fresh.token > lease.token
            fresh.release()


def _refusal(source: fencelock.Source) -> str | None:
    """Return the error of a source that can be reached but must not be used."""
    try:
        source.describe()
    except fencelock.SourceUnavailableError:
        return None
    except SourceError as error:
        return str(error)
    raise AssertionError("a source that went back is used")


@pytest.mark.parametrize("how", ["asked", "renewed", "waited"])
def test_t7_tokens_of_others_that_were_seen_count_too(zookeeper_fleet: ZooKeeperFleet, how: str) -> None:
    """The client's own token is older than the backup, and each new session knows of no transaction."""
    with zookeeper_fleet.new_server() as server:
        url = server.url()
        ZooKeeperSource(url).install()
        mine, theirs = Client(url), Client(url)
        claim = mine.acquire("mine")
        theirs.acquire("theirs")
        waiting = mine.acquire("theirs")
        server.stop()
        copy_folder(server.data, server.folder / "backup")
        server.start()
        for _ in range(20):
            theirs.perform(ask.Release("other", theirs.acquire("other")))
        if how == "asked":
            mine.perform(ask.ReadSource())
        elif how == "renewed":
            mine.renew(("mine", claim))
        else:
            mine.session.lives_until_ms = 0
            mine.poll("theirs", waiting)
        server.stop()
        server.data.rename(server.folder / "lost")
        (server.folder / "backup").rename(server.data)
        server.start()
        with pytest.raises(SourceError, match="an older state was restored"):
            mine.acquire("again", ttl_ms=TTL_MS + 1)
        for one in (mine, theirs):
            one.close()
