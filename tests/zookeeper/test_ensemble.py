"""On three servers: the rules, a leader that is killed or frozen, all servers killed at once, and what leases learn of
it.
"""

from collections.abc import Iterator

import pytest

import fencelock
from fencelock.stores.zookeeper.source.store import ZooKeeperSource
from fencelock.testing import AsyncSourceConformance, SourceConformance
from fencelock.testing.conformance import source_rig
from fencelock_lab.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from tests.support.helpers import wait_until
from tests.zookeeper.fix_zookeeper import fresh_base

TTL = 4.0


class OnEnsemble:
    short_ttl_ms = 1600
    many_names = 100
    shows_spent_tokens = False
    break_keeps_queue = False
    counts_alone = False
    renewal_lag_ms = 4000
    ends_unrenewed_leases = False

    def setup_method(self) -> None:
        """The servers come first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _on_ensemble(self, zookeeper_ensemble: ZooKeeperEnsemble) -> None:
        self.servers = zookeeper_ensemble
        super().setup_method()

    def make_url(self) -> str:
        url = self.servers.url(fresh_base())
        ZooKeeperSource(url).install()
        return url


def _fewer(kit: type[source_rig.SourceRig], *words: str) -> dict[str, None]:
    """Return what takes all checks of a kit away whose names have none of these words."""
    names = (name for name in dir(kit) if name.startswith("test_"))
    return {name: None for name in names if not any(word in name for word in words)}


TestOnThree = pytest.mark.campaign(type("TestOnThree", (OnEnsemble, SourceConformance), {}))
TestAsyncOnThree = type(
    "TestAsyncOnThree",
    (OnEnsemble, AsyncSourceConformance),
    _fewer(AsyncSourceConformance, "contention", "two_threads", "served_in_the_order", "lost_reply"),
)


@pytest.fixture
def source(own_ensemble: ZooKeeperEnsemble) -> Iterator[fencelock.Source]:
    url = own_ensemble.url()
    ZooKeeperSource(url).install()
    with fencelock.connect(url) as made:
        yield made


def acquired(source: fencelock.Source, name: str = "lock", *, timeout: float = 30.0) -> fencelock.Lease:
    lease = source.lock(name, ttl=TTL).acquire(timeout=timeout)
    assert lease is not None
    return lease


def serving(ensemble: ZooKeeperEnsemble, source: fencelock.Source) -> ZooKeeperServer:
    """Return the server that the source's session is connected to."""
    (session,) = source._store.sessions.open_sessions()  # type: ignore[attr-defined]
    port = session.client._connection._socket.getpeername()[1]
    return next(server for server in ensemble.servers if server.port == port)


@pytest.mark.campaign
@pytest.mark.process
@pytest.mark.slow
def test_a_lease_outlives_the_server_that_it_is_connected_to(
    own_ensemble: ZooKeeperEnsemble, source: fencelock.Source
) -> None:
    """Killed, or frozen, which nobody reports: the client leaves a silent server within a fifth of the ttl."""
    lease = source.lock("lock", ttl=10.0).acquire()
    assert lease is not None
    for harm in ("kill", "freeze"):
        victim = serving(own_ensemble, source)
        before = lease.deadline_ms
        getattr(victim, harm)()
        wait_until(lambda before=before: lease.deadline_ms > before + 4000)
        assert lease.is_valid
        victim.thaw() if harm == "freeze" else victim.start()
        own_ensemble.wait_until_ready()
    assert lease.release()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("crashes", [1, pytest.param(3, marks=pytest.mark.campaign)])
def test_all_servers_killed_and_started_again_forget_no_token(
    own_ensemble: ZooKeeperEnsemble, source: fencelock.Source, crashes: int
) -> None:
    tokens = []
    for _ in range(crashes):
        lease = acquired(source)
        tokens.append(lease.token)
        own_ensemble.crash()
        if lease.is_valid:
            lease.release()
    last = wait_until(lambda: _tried(source))
    tokens.append(last.token)
    last.release()
    assert tokens == sorted(set(tokens))


def _tried(source: fencelock.Source) -> fencelock.Lease | None:
    try:
        return source.lock("lock", ttl=TTL).acquire(timeout=5)
    except fencelock.SourceError:
        return None


@pytest.mark.campaign
@pytest.mark.process
@pytest.mark.slow
def test_without_a_quorum_leases_end_in_time_and_nothing_is_granted(
    own_ensemble: ZooKeeperEnsemble, source: fencelock.Source
) -> None:
    lease = acquired(source)
    first, second, _ = own_ensemble.servers
    first.freeze()
    second.freeze()
    # The leader, and sessions with it, go on until it notices that the others are missing.
    assert lease.lost.wait(3 * TTL)
    with pytest.raises(fencelock.SourceError):
        source.lock("other", ttl=TTL).acquire(timeout=1)
    first.thaw()
    second.thaw()
    own_ensemble.wait_until_ready()
    fresh = wait_until(lambda: _tried(source))
    assert fresh.token > lease.token
    fresh.release()
