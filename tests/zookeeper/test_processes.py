"""Real processes with the lock in ZooKeeper: frozen, killed, forked, ended.

They follow the same scripts as PostgreSQL's tests, where a ttl of a second allows that.
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencelock
from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.process.actors import Actor, Stage
from tests.process.test_fork import FORKING
from tests.sql import test_processes as shared
from tests.support.guards import make_file
from tests.support.helpers import DEADLINE_S, wait_until

pytestmark = [pytest.mark.process, pytest.mark.server_wide]


class ZooKeeperStage(Stage):
    """Actors that share one ZooKeeper source."""

    def __init__(self, server: ZooKeeperServer, url: str, folder: Path) -> None:
        super().__init__(folder / "unused.db")
        self.server = server
        self.url = url

    def actor(self, script: str, *, options: tuple[str, ...] = ()) -> Actor:
        """Start an actor; `source` is the ZooKeeper source."""
        named = f"URL = {self.url!r}\nsource = fencelock.connect(URL)\n"
        return super().actor(named + textwrap.dedent(script), options=options)


@pytest.fixture
def stage(zookeeper: ZooKeeperServer, zookeeper_url: str, tmp_path: Path) -> Iterator[ZooKeeperStage]:
    with ZooKeeperStage(zookeeper, zookeeper_url, tmp_path) as made:
        yield made


@pytest.fixture
def source(stage: ZooKeeperStage) -> Iterator[fencelock.Source]:
    with fencelock.connect(stage.url) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_file(tmp_path / "app.db")


test_frozen = shared.test_a_holder_frozen_past_its_ttl_is_refused_by_the_table
test_killed = shared.test_a_killed_holders_lock_is_free_after_its_ttl_and_a_killed_waiter_blocks_nobody

CYCLES = """
lock = source.lock("a", ttl=1.0)
while True:
    try:
        with lock as lease:
            say(lease.token)
    except fencelock.LeaseError:
        pass  # The machine stood still for longer than the ttl.
"""


def test_killed_anywhere_between_acquire_and_release_no_token_comes_twice(
    stage: ZooKeeperStage, source: fencelock.Source
) -> None:
    tokens: list[int] = []
    for turns in (1, 20, 50):
        actors = [stage.actor(CYCLES) for _ in range(2)]
        told: list[int] = []
        while len(told) < turns:
            told.extend(actor.hear() for actor in actors)
        for actor in actors:
            actor.kill()
        lease = source.lock("a", ttl=2.0).acquire(timeout=30)
        assert lease is not None, "a killed process keeps the lock"
        assert len({*tokens, *told, lease.token}) == len(tokens) + len(told) + 1
        assert lease.token > max(told)
        tokens += [*told, lease.token]
        lease.release()


def test_the_interpreters_end_releases_held_locks_at_once_and_silently(
    stage: ZooKeeperStage, source: fencelock.Source
) -> None:
    for ending in ("", "sys.exit(0)", "del source", "source.close()", "raise KeyboardInterrupt"):
        actor = stage.actor(f"""
            lease = source.lock("a", ttl=600.0).acquire()
            threading.Thread(target=source.lock("a", ttl=500.0).acquire, daemon=True).start()
            until(lambda: source.info("a").waiters)
            say(lease.token)
            {ending}
        """)
        actor.hear()
        actor.wait()
        lines = [line for line in actor.errors.splitlines() if "KeyboardInterrupt" not in line]
        assert "kazoo" not in actor.errors, lines
        lease = source.lock("a", ttl=2.0).acquire(timeout=DEADLINE_S)
        assert lease is not None, f"after {ending!r} the lock is free before its ttl has passed"
        lease.release()


@pytest.mark.parametrize("ending", ["os._exit(0)", "sys.exit(0)", "source.close(); sys.exit(0)", "del lease, source"])
def test_h6_a_child_neither_uses_nor_ends_its_parents_session(
    stage: ZooKeeperStage, source: fencelock.Source, ending: str
) -> None:
    actor = stage.actor(
        FORKING
        + f"""
lease = source.lock("a", ttl=600.0).acquire()
waiting = threading.Thread(target=source.lock("a", ttl=600.0).acquire, kwargs={{"timeout": 60}}, daemon=True)
waiting.start()
until(lambda: source.info("a").waiters)
child = os.fork()
if not child:
    import gc
    try:
        lease.release()
    except fencelock.LeaseInheritedError:
        pass
    with source.lock("c", ttl=600.0) as own:
        assert source.lock("a", ttl=600.0).acquire(timeout=0.1) is None
        assert own.token > lease.token
    assert len(source._store.sessions.open_sessions()) == 1, "it is kept for the next lease"
    gc.collect()
    {ending}
    os._exit(0)
say(os.waitpid(child, 0)[1])
hear()
say([lease.is_valid, lease.release()])
waiting.join(20)
say(waiting.is_alive())
hear()
"""
    )
    assert actor.hear() == 0, actor.errors
    assert source.info("a").is_held
    assert len(source.info("a").waiters) == 1
    actor.say()
    assert actor.hear() == [True, True]
    assert actor.hear() is False, "the parent's waiter is told of the release"


def test_h6_a_killed_parents_lock_is_free_though_its_child_lives(
    stage: ZooKeeperStage, source: fencelock.Source
) -> None:
    actor = stage.actor("""
        lease = source.lock("a", ttl=1.0).acquire()
        child = os.fork()
        if not child:
            with source.lock("b", ttl=600.0):
                say("child")
                hear()
            os._exit(0)
        time.sleep(600)
    """)
    assert actor.hear() == "child"
    actor.kill()
    lease = source.lock("a", ttl=2.0).acquire(timeout=30)
    assert lease is not None
    assert source.info("b").is_held
    lease.release()


def test_a_process_that_is_done_leaves_no_session_behind(stage: ZooKeeperStage) -> None:
    def sessions() -> set[str]:
        return set(re.findall("0x[0-9a-f]+", stage.server.ask("dump")))

    before = sessions()
    actor = stage.actor("""
        with source:
            for ttl in (10.0, 20.0, 30.0):
                with source.lock("a", ttl=ttl), source.lock("b", ttl=ttl):
                    pass
            say()
            hear()
        say()
        hear()
    """)
    actor.hear()
    assert len(sessions() - before) == 3
    actor.say()
    actor.hear()
    wait_until(lambda: sessions() <= before)
