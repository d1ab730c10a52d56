"""kazoo's own locks on the same path and fencelock's locks exclude each other."""

import threading
from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

import fencelock
from fencelock import SourceError
from fencelock.stores.zookeeper.source import layout
from tests.cli.program import Program, program
from tests.support.helpers import DEADLINE_S, wait_until

__all__ = ["program"]

NAME = "nightly-report"
TTL = 10.0
ROUNDS = 15


@pytest.fixture
def source(zookeeper_url: str) -> Iterator[fencelock.Source]:
    with fencelock.connect(zookeeper_url) as made:
        yield made


@pytest.fixture
def path(zookeeper_url: str) -> str:
    """The path of the lock for kazoo."""
    base = zookeeper_url.partition("://")[2].partition("/")[2].partition("?")[0]
    return f"/{base}/{NAME}"


def test_kazoos_lock_excludes_fencelock_and_is_shown(source: fencelock.Source, kazoo: KazooClient, path: str) -> None:
    lock = source.lock(NAME, ttl=TTL)
    theirs = kazoo.Lock(path, "the other program")
    with theirs:
        assert lock.acquire(blocking=False) is None
        info = source.info(NAME)
        assert (info.holder, info.ttl, info.is_held) == ("the other program", None, True)
        assert theirs.contenders() == ["the other program"], "an attempt that does not wait leaves nothing behind"
    assert lock.acquire(blocking=False) is not None


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"", "somebody"),
        (b"\xff", "\ufffd"),
        (b'{"holder": "\\ud800x", "ttl_ms": 1000}', "\\ud800x"),
        (b'{"holder": "x", "ttl_ms": Infinity}', '{"holder"'),
        (b'{"holder": "x", "ttl_ms": 1' + b"0" * 400 + b"}", '{"holder"'),
        (b'{"holder": ' + b"[" * 5000, '{"holder"'),
        (b'{"holder": "' + b"\x1b" * 900_000, '{"holder": "\x1b'),
    ],
    ids=range(7),
)
def test_a_foreign_holder_is_shown_and_broken_whatever_its_value(
    source: fencelock.Source, kazoo: KazooClient, path: str, value: bytes, shown: str
) -> None:
    kazoo.ensure_path(path)
    kazoo.create(f"{path}/theirs__lock__", value, ephemeral=True, sequence=True)
    lock = source.lock(NAME, ttl=TTL)
    assert lock.acquire(blocking=False) is None
    holder = source.info(NAME).holder
    assert holder is not None
    assert holder.startswith(shown)
    assert len(holder.encode()) < 10_000
    assert source.break_lock(NAME, reason="a test").holder == holder
    with lock:
        pass


@pytest.mark.usefixtures("early_beats")
@pytest.mark.parametrize(
    "value",
    [
        b'{"by": 1, "why": 2, "lock": "x", "holder": null, "nodes": [3], "at": "", "offset": "0"}',
        b'{"by": "\\ud800", "why": "", "lock": "x", "holder": null, "nodes": ["a"], "at": "", "offset": "0"}',
        b'{"by": "", "why": "", "lock": "x", "holder": null, "nodes": ["a"], "at": "", "offset": "9e9"}',
        b'{"nodes": []}',
        b"[" * 5000,
    ],
)
def test_a_loss_is_reported_whatever_the_locks_node_contains(
    source: fencelock.Source, kazoo: KazooClient, path: str, value: bytes
) -> None:
    lease = source.lock(NAME, ttl=30.0).acquire()
    assert lease is not None
    kazoo.set(path, value)
    (node,) = kazoo.get_children(path)
    kazoo.delete(f"{path}/{node}")
    assert lease.lost.wait(DEADLINE_S)
    assert source.info(NAME).holder is None


def test_a_lock_that_nobody_holds_is_known_until_it_is_purged(source: fencelock.Source) -> None:
    assert not source.info(NAME).is_known
    with source.lock(NAME, ttl=TTL) as lease:
        assert source.info(NAME).is_known
    info = source.info(NAME)
    assert (info.token, info.is_kept, info.is_known) == (None, True, True)
    assert list(source.locks()) == [info]
    assert source.break_lock(NAME, reason="a test").token > lease.token
    source.purge()
    assert not source.info(NAME).is_known


def test_fencelock_excludes_kazoos_lock(source: fencelock.Source, kazoo: KazooClient, path: str) -> None:
    with source.lock(NAME, ttl=TTL) as lease:
        assert not kazoo.Lock(path).acquire(blocking=False)
        assert lease.is_valid
    theirs = kazoo.Lock(path)
    assert theirs.acquire(timeout=DEADLINE_S)
    theirs.release()


def test_kazoo_lists_fencelocks_contenders_with_their_holders(
    source: fencelock.Source, kazoo: KazooClient, path: str
) -> None:
    with source.lock(NAME, ttl=TTL, holder="host:4711:import"):
        assert kazoo.Lock(path).contenders() == ['{"holder": "host:4711:import", "ttl_ms": 10000}']


def test_the_commands_show_what_is_known_of_kazoos_lock(
    program: Program, zookeeper_url: str, kazoo: KazooClient, path: str
) -> None:
    """ZooKeeper tells nobody else how long its session lives; and its name may be anything."""
    with kazoo.Lock(path, "the other \x1b[2J program"):
        assert "unknown" in program("show", NAME, "--source", zookeeper_url).stdout
        assert program.json("show", NAME, "--source", zookeeper_url)["remaining"] is None
        assert "unknown" in program("locks", "--source", zookeeper_url).stdout
        done = program("run", NAME, "--source", zookeeper_url, "--wait", "0", "--", "true")
        assert done.returncode == 75, done.stderr
        assert "its time left is unknown" in done.stderr
        assert "\x1b" not in done.stderr


@pytest.mark.parametrize("kind", ["Lock", "WriteLock", "ReadLock"])
def test_each_waits_for_the_other_in_the_order_in_which_they_came(
    source: fencelock.Source, kazoo: KazooClient, path: str, kind: str
) -> None:
    order: list[str] = []
    first = source.lock(NAME, ttl=TTL).acquire()
    assert first is not None

    def theirs() -> None:
        lock = getattr(kazoo, kind)(path, "theirs")
        lock.acquire(timeout=DEADLINE_S)
        order.append("theirs")
        lock.release()

    def ours() -> None:
        with source.lock(NAME, ttl=TTL):
            order.append("ours")

    threads = []
    for work in (ours, theirs, ours):
        threads.append(threading.Thread(target=work, daemon=True))
        threads[-1].start()
        wait_until(lambda: len(source.info(NAME).waiters) == len(threads))
    first.release()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert order == ["ours", "theirs", "ours"]


def test_h9_under_contention_one_at_a_time_is_inside_and_tokens_rise(
    source: fencelock.Source, kazoo: KazooClient, path: str
) -> None:
    """Two threads of fencelock and two of kazoo, each pair on one session."""
    inside: list[str] = []
    tokens: list[int] = []
    clashes: list[list[str]] = []

    def enter(who: str) -> None:
        inside.append(who)
        if inside != [who]:
            clashes.append(list(inside))
        inside.remove(who)

    def ours(number: int) -> None:
        for _ in range(ROUNDS):
            with source.lock(NAME, ttl=TTL) as lease:
                enter(f"ours {number}")
                tokens.append(lease.token)

    def theirs(number: int) -> None:
        for _ in range(ROUNDS):
            with kazoo.Lock(path):
                enter(f"theirs {number}")

    _run([lambda: ours(1), lambda: theirs(1), lambda: ours(2), lambda: theirs(2)])
    assert not clashes
    assert len(tokens) == 2 * ROUNDS
    assert tokens == sorted(set(tokens))


def test_a_token_is_the_czxid_of_the_node(source: fencelock.Source, kazoo: KazooClient, path: str) -> None:
    with source.lock(NAME, ttl=TTL) as lease:
        (node,) = kazoo.get_children(path)
        stat = kazoo.exists(f"{path}/{node}")
        assert stat is not None
        assert lease.token == stat.czxid
        assert node.startswith(lease.sequencer.digest), "paths stand in servers' logs"


def test_near_the_end_of_the_counter_nobody_is_queued(
    source: fencelock.Source, kazoo: KazooClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real counter of the real parent is driven up to a limit that is lowered here."""
    lock = source.lock(NAME, ttl=TTL)
    for _ in range(20):
        with lock:
            pass
    monkeypatch.setattr(layout, "COUNTER_LIMIT", 20)
    with pytest.raises(SourceError, match="fencelock purge"):
        lock.acquire()
    wait_until(lambda: kazoo.get_children(path) == [])
    before = source.describe().last_token
    assert source.purge() == 1
    with lock as lease:
        assert lease.token > before


def test_names_that_the_counter_has_turned_negative_are_refused() -> None:
    # Of a shorter negative number, ZooKeeper counts the sign among its ten characters.
    assert [one.number for one in layout.parse_queue(["a__lock__-000000007", "b__lock__000000007"])] == [-7]
    queue = layout.parse_queue(["a__lock__-2147483640", "b__lock__2147483647", "no contender"])
    assert [one.number for one in queue] == [-2147483640, 2147483647]
    with pytest.raises(SourceError, match="32 bits"):
        layout.check_numbers(NAME, queue)
    layout.check_numbers(NAME, layout.parse_queue(["a__lock__0000000001"]))
    layout.check_numbers(NAME, [])


def test_purge_and_listing_leave_other_programs_nodes_alone(
    source: fencelock.Source, kazoo: KazooClient, path: str
) -> None:
    base = path.rpartition("/")[0]
    for name in ("theirs", "theirs.too"):
        kazoo.create(f"{base}/{name}", b"")
    kazoo.create(f"{base}/theirs.too/below", b"x")
    with source.lock(NAME, ttl=TTL):
        pass
    assert [info.name for info in source.locks()] == [NAME]
    assert source.purge() == 1
    assert sorted(kazoo.get_children(base)) == [".fencelock", "theirs", "theirs.too"]


def test_purge_removes_a_node_of_kazoos_only_after_a_break_was_written_into_it(
    source: fencelock.Source, kazoo: KazooClient, path: str
) -> None:
    with kazoo.Lock(path):
        pass
    assert (source.purge(), kazoo.get(path)[0]) == (0, b"")
    assert kazoo.Lock(path).acquire()
    source.break_lock(NAME, reason="a test")
    assert (source.purge(), kazoo.exists(path)) == (1, None)


def _run(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
