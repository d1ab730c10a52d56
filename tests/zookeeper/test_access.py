"""Access control: users, access lists, and secrets that are never displayed."""

import logging

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

import fencelock
from fencelock import ConfigError, SourceError
from fencelock.stores.zookeeper.connection.url import parse_url
from fencelock.stores.zookeeper.source.store import ZooKeeperSource
from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.zookeeper.fix_zookeeper import fresh_base

USER, PASSWORD = "worker", "s3cr:et@/?"
TTL = 30.0


def test_a_users_nodes_are_the_users_alone(zookeeper: ZooKeeperServer) -> None:
    base = fresh_base()
    url = zookeeper.url(base, user=USER, password=PASSWORD)
    ZooKeeperSource(url).install()
    stranger = zookeeper.client()
    with fencelock.connect(url) as source, source.lock("lock", ttl=TTL) as lease:
        assert lease.token == source.info("lock").token
        for attempt in (
            lambda: stranger.get_children(f"{base}/lock"),
            lambda: stranger.get(f"{base}/.fencelock/source"),
            lambda: stranger.create(f"{base}/other", b""),
            lambda: stranger.set(f"{base}/.fencelock/source", b""),
        ):
            with pytest.raises(NoAuthError):
                attempt()
        with fencelock.connect(zookeeper.url(base)) as other:
            with pytest.raises(SourceError, match="does not permit it"):
                other.lock("lock", ttl=TTL).acquire()
            with pytest.raises(SourceError, match="does not permit it"):
                other.describe()
        source.break_lock("broken", reason="a test")
    with fencelock.connect(url) as source:
        source.raise_epoch(reason="a test")
    stranger.stop()
    stranger.close()
    _remove(zookeeper, base)


def test_an_access_list_may_let_others_read(zookeeper: ZooKeeperServer) -> None:
    base = fresh_base()
    url = zookeeper.url(base, user=USER, password=PASSWORD) + "&acl=creator&acl=world:anyone:r"
    ZooKeeperSource(url).install()
    source, reader = fencelock.connect(url), fencelock.connect(zookeeper.url(base))
    with source, reader, source.lock("lock", ttl=TTL) as lease:
        assert reader.info("lock").token == lease.token
        assert reader.describe().source_id == source.describe().source_id
        with pytest.raises(SourceError, match="does not permit it"):
            reader.lock("lock", ttl=TTL).acquire()
    _remove(zookeeper, base)


def test_a_scheme_that_the_servers_do_not_know_is_refused(zookeeper: ZooKeeperServer) -> None:
    source = fencelock.connect(zookeeper.url(fresh_base(), auth="nonsense:x"))
    with source, pytest.raises(SourceError, match=r"does not permit it|cannot be reached"):
        source.describe()


def test_no_secret_is_shown_or_logged(zookeeper: ZooKeeperServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    url = zookeeper.url(fresh_base(), user=USER, password=PASSWORD) + "&auth=digest:other:hidden"
    ZooKeeperSource(url).install()
    with fencelock.connect(url) as source:
        with source.lock("lock", ttl=TTL) as lease:
            claim, proof = lease.claim, lease.sequencer.proof
        store = ZooKeeperSource(url)
        shown = " ".join([repr(source), source.url, repr(store.info), store.url, caplog.text])
        for secret in (PASSWORD, "s3cr", "hidden", USER, claim, proof):
            assert secret not in shown
    assert "digest" not in caplog.text


@pytest.mark.parametrize(
    ("url", "hosts", "base"),
    [
        ("zookeeper://host", "host:2181", "/fencelock"),
        ("zookeeper://a:1,b,[::1]:3/", "a:1,b:2181,[::1]:3", "/fencelock"),
        ("zookeeper://a/apps/locks/", "a:2181", "/apps/locks"),
        ("zookeeper://u:p%40@a/my%20locks?tick_ms=500", "a:2181", "/my locks"),
    ],
)
def test_a_url_is_parsed(url: str, hosts: str, base: str) -> None:
    info = parse_url(url)
    assert (info.hosts, info.base) == (hosts, base)
    assert "@" not in info.url
    KazooClient(info.hosts)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("zookeeper://", "names no host"),
        ("zookeeper://a:port", "a port is a number"),
        ("zookeeper://a:99999", "a port is a number"),
        ("zookeeper://[::1/p", "stands in brackets"),
        ("zookeeper://::1/p", "stands in brackets"),
        ("zookeeper://a/x?tick=1", "no parameter 'tick'"),
        ("zookeeper://a/x?tick_ms=fast", "tick_ms is"),
        ("zookeeper://a/x?tick_ms", "name=value"),
        ("zookeeper://a/../b", "cannot be a ZooKeeper path"),
        ("zookeeper://a/b%2Fc", "cannot be a ZooKeeper path"),
        ("zookeeper://a/b%00", "cannot be a ZooKeeper path"),
        ("zookeeper://a/" + "b" * 1001, "more than 1000"),
        ("zookeeper://a/?acl=creator", "acl=creator needs"),
        ("zookeeper://a/?acl=world:anyone:x", "letters of cdrwa"),
        ("zookeeper://a/?acl=nobody", "letters of cdrwa"),
        ("zookeeper://a/?auth=nobody", "scheme:credential"),
        ("zookeeper://a/?tls=maybe", "tls is true or false"),
        ("zookeeper://a/?tls=false&ca=x", "tls=false forbids"),
        ("zookeeper://a/?key=x", "key needs cert"),
        ("zookeeper://a/?sasl=PLAIN", "sasl is"),
    ],
)
def test_a_url_that_is_not_understood_says_why(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_url(url)
    assert "zookeeper://user:password@host:port" in str(caught.value)


def test_sasl_without_its_library_names_what_to_install() -> None:
    with pytest.raises(fencelock.MissingDependencyError, match="pip install pure-sasl"):
        parse_url("zookeeper://u:p@a/?sasl=DIGEST-MD5")


def _remove(zookeeper: ZooKeeperServer, base: str) -> None:
    client = KazooClient(zookeeper.address, auth_data=[("digest", f"{USER}:{PASSWORD}")])
    client.start()
    client.delete(base, recursive=True)
    client.stop()
    client.close()
