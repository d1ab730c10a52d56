"""Waiting: first in, first out over processes and threads, by notifications, at a bounded cost, without busy loops."""

import select
import shutil
import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock.clock import boottime_ms
from fencelock.model import digest_of_claim, draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.sqlite.source import wakeup
from fencelock.stores.sqlite.source.queue import MAX_WAITERS
from fencelock.stores.sqlite.source.store import SQLiteSourceConnection
from tests.process.actors import Actor, Stage
from tests.support.helpers import wait_until
from tests.support.sources import Client
from tests.support.waiting import is_asleep_in_queue

pytestmark = pytest.mark.process

TTL = 30.0
CROWD = 1000

WAITER = """
lock = source.lock("a", ttl={ttl}, holder={name!r})
with lock as lease:
    say([{name!r}, lease.token])
    {inside}
"""


def waiter(stage: Stage, source: fencelock.Source, name: str, *, ttl: float = TTL, inside: str = "pass") -> Actor:
    """Start a process that waits for the lock, and return once it is queued."""
    actor = stage.actor(WAITER.format(name=name, ttl=ttl, inside=inside))
    wait_until(lambda: name in source.info("a").waiters)
    wait_until(lambda: len(bells(stage)) >= len(source.info("a").waiters))
    return actor


def bells(stage: Stage) -> list[Path]:
    """Return the pipes of the listening waiters."""
    folder = Path(f"{stage.path}-wake")
    return list(folder.iterdir()) if folder.exists() else []


def thread_waiter(source: fencelock.Source, name: str, served: list[str]) -> threading.Thread:
    """Start a thread that waits for the lock, and return once it is queued."""

    def wait() -> None:
        with source.lock("a", ttl=TTL, holder=name):
            served.append(name)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: name in source.info("a").waiters)
    return thread


# --- order ----------------------------------------------------------------------------------------
@pytest.mark.reduced
def test_processes_and_threads_are_served_in_one_order(stage: Stage, source: fencelock.Source) -> None:
    holder = source.lock("a", ttl=TTL)
    holder.acquire()
    served: list[str] = []
    actors, threads = {}, []
    for number in range(3):
        actors[f"process{number}"] = waiter(stage, source, f"process{number}")
        threads.append(thread_waiter(source, f"thread{number}", served))
    order = [f"{kind}{number}" for number in range(3) for kind in ("process", "thread")]
    assert list(source.info("a").waiters) == order
    holder.release()
    tokens = {name: actor.hear()[1] for name, actor in actors.items()}
    for thread in threads:
        thread.join(60)
    assert served == ["thread0", "thread1", "thread2"]
    assert list(tokens.values()) == [2, 4, 6], "a thread came between each two processes"


@pytest.mark.reduced
def test_a_thousand_threads_that_come_at_once_are_all_served(source: fencelock.Source) -> None:
    """They take turns at a few connections. All at the file's one lock, one in five got it within the patience."""
    barrier = threading.Barrier(CROWD)
    lock = source.lock("a", ttl=600.0)

    def take() -> int:
        barrier.wait(60)
        with lock as lease:
            return lease.token

    with ThreadPoolExecutor(CROWD) as crowd:
        tokens = [future.result() for future in [crowd.submit(take) for _ in range(CROWD)]]
    assert len(set(tokens)) == CROWD
    assert not source.info("a").is_held


def test_nobody_who_does_not_wait_overtakes_those_who_do(stage: Stage, source: fencelock.Source) -> None:
    """The first waiter has not polled yet, because it is frozen; the lock is free."""
    holder = source.lock("a", ttl=TTL)
    holder.acquire()
    first = waiter(stage, source, "first")
    first.freeze()
    holder.release()
    assert not source.info("a").is_held
    for _ in range(20):
        assert source.lock("a").acquire(blocking=False) is None
        assert source.lock("a").acquire(timeout=0) is None
    first.thaw()
    assert first.hear() == ["first", 2]


def test_a_waiter_frozen_past_its_ttl_queues_anew(stage: Stage, source: fencelock.Source) -> None:
    """H8: its old queue entry is gone, even if no process took the lock meanwhile; a later waiter is first."""
    holder = source.lock("a", ttl=TTL)
    holder.acquire()
    sleeper = waiter(stage, source, "sleeper", ttl=0.4)
    sleeper.freeze()
    wait_until(lambda: source.info("a").waiters == ())
    other = waiter(stage, source, "other", inside="hear()")
    sleeper.thaw()
    wait_until(lambda: source.info("a").waiters == ("other", "sleeper"))
    holder.release()
    assert other.hear() == ["other", 2]
    assert sleeper.is_silent()
    other.say()
    assert sleeper.hear() == ["sleeper", 3]


@pytest.mark.reduced
def test_the_place_of_a_waiter_that_gave_up_is_filled_at_once(stage: Stage, source: fencelock.Source) -> None:
    """The head leaves by its timeout while the lock is held: the next one is served by the release."""
    holder = source.lock("a", ttl=TTL)
    holder.acquire()
    impatient = threading.Thread(target=lambda: source.lock("a", ttl=600.0, holder="impatient").acquire(timeout=0.3))
    impatient.start()
    wait_until(lambda: source.info("a").waiters or not impatient.is_alive())
    second = waiter(stage, source, "second", ttl=600.0)
    impatient.join()
    assert source.info("a").waiters == ("second",)
    holder.release()
    assert second.hear() == ["second", 2]


# --- notification ---------------------------------------------------------------------------------
@pytest.mark.reduced
def test_without_the_folder_of_bells_waiters_are_served_all_the_same(stage: Stage, source: fencelock.Source) -> None:
    holder = source.lock("a", ttl=TTL)
    holder.acquire()
    early = waiter(stage, source, "early", ttl=600.0)
    shutil.rmtree(bells(stage)[0].parent)
    late = stage.actor(WAITER.format(name="late", ttl=600.0, inside="pass"))
    wait_until(lambda: source.info("a").waiters == ("early", "late"))
    wait_until(lambda: len(bells(stage)) == 1)
    holder.release()
    assert early.hear() == ["early", 2]
    assert late.hear() == ["late", 3]


@pytest.mark.parametrize("is_waiter_behind_link", [True, False])
def test_a_bell_is_heard_by_whichever_name_the_file_is_known(tmp_path: Path, is_waiter_behind_link: bool) -> None:
    path, link = tmp_path / "locks.db", tmp_path / "folder" / "link.db"
    path.touch()
    link.parent.mkdir()
    link.symlink_to(path)
    waits, rings = (link, path) if is_waiter_behind_link else (path, link)
    bell = wakeup.PipeWakeup(waits, "claim")
    wakeup.notify(rings, "claim")
    assert select.select([bell.fileno()], [], [], 0)[0]
    bell.close()
    assert not list(link.parent.glob("*-wake"))


@pytest.mark.reduced
def test_waiters_take_their_bells_away(stage: Stage, source: fencelock.Source) -> None:
    holder = source.lock("a", ttl=TTL)
    holder.acquire()
    actors = [waiter(stage, source, name) for name in ("first", "second")]
    assert len(bells(stage)) == 2
    assert {path.stat().st_mode & 0o777 for path in bells(stage)} == {stage.path.stat().st_mode & 0o666}
    holder.release()
    for actor in actors:
        actor.hear()
        assert actor.wait() == 0
    assert bells(stage) == []


def test_the_bell_of_a_killed_waiter_is_taken_away_by_the_next(stage: Stage, source: fencelock.Source) -> None:
    holder = source.lock("a", ttl=TTL)
    holder.acquire()
    waiter(stage, source, "victim", ttl=0.3).kill()
    assert len(bells(stage)) == 1
    wait_until(lambda: source.info("a").waiters == ())
    heir = waiter(stage, source, "heir")
    holder.release()
    assert heir.hear() == ["heir", 2]
    assert heir.wait() == 0
    assert bells(stage) == []


# --- cost -----------------------------------------------------------------------------------------
@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, source: fencelock.Source) -> Counter[str]:
    """Count the requests of this process to its source by their kind; what earlier tests left may go on beside it."""
    counter: Counter[str] = Counter()
    perform = SQLiteSourceConnection.perform

    def counting(self: Any, request: Any) -> Any:
        counter[type(request).__name__] += source.url.endswith(str(self._path))
        return perform(self, request)

    monkeypatch.setattr(SQLiteSourceConnection, "perform", counting)
    return counter


@pytest.mark.parametrize("count", [4, 40])
def test_a_hand_off_costs_the_same_however_many_wait(source: fencelock.Source, asked: Counter[str], count: int) -> None:
    """H7: one release and one look each. A loaded machine adds the looks that waiters take each second anyway."""
    holder = source.lock("a", ttl=600.0)
    holder.acquire()
    served: list[str] = []
    threads = []
    for number in range(count):
        threads.append(threading.Thread(target=serve, args=(source, str(number), served)))
        threads[-1].start()
    wait_until(lambda: len(source.info("a").waiters) == count)
    wait_until(lambda: all(map(is_asleep_in_queue, threads)))
    asked.clear()
    started = time.monotonic()
    holder.release()
    for thread in threads:
        thread.join(60)
    seconds = time.monotonic() - started
    assert len(served) == count
    assert asked["Release"] == count + 1
    assert asked["Poll"] <= 2 * count + 2 * seconds + 2
    assert asked["Acquire"] == 0


def serve(source: fencelock.Source, name: str, served: list[str]) -> None:
    with source.lock("a", ttl=600.0, holder=name):
        served.append(name)


def test_an_idle_waiter_sleeps(stage: Stage, source: fencelock.Source) -> None:
    """The first in line looks once a second, the others three times in their ttl; in between nothing runs."""
    counting = """
from fencelock.stores.sqlite.source.store import SQLiteSourceConnection
asked = []
perform = SQLiteSourceConnection.perform
def counted(self, request):
    asked.append(type(request).__name__)
    return perform(self, request)
SQLiteSourceConnection.perform = counted
"""
    holder = source.lock("a", ttl=600.0)
    holder.acquire()
    actors = []
    for name in ("head", "second"):
        script = WAITER.format(name=name, ttl=60.0, inside="say(asked.count('Poll'))")
        actors.append(stage.actor(counting + script))
        wait_until(lambda name=name: name in source.info("a").waiters)
    time.sleep(0.3)
    before = [actor.cpu_s() for actor in actors]
    started = time.monotonic()
    time.sleep(3)
    used = [actor.cpu_s() - start for actor, start in zip(actors, before, strict=True)]
    seconds = time.monotonic() - started
    holder.release()
    head, second = ([actor.hear(), actor.hear()][1] for actor in actors)
    assert head <= seconds + 6
    assert second <= 6
    assert max(used) <= 0.1 * seconds


def vm_steps(client: Client, request: Any) -> int:
    """Return how many steps SQLite's machine took for a request: a count, where a time would be noise."""
    native: sqlite3.Connection = client.connection.database.native
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    native.set_progress_handler(step, 1)
    try:
        client.ask(request)
    finally:
        native.set_progress_handler(None, 0)
    return steps


def crowd(path: Path, count: int, *, dead: bool = False) -> list[str]:
    """Put this many waiters into the queue of `lock`, and return their claims."""
    claims = [draw_claim() for _ in range(count)]
    deadline_ms = boottime_ms() + (-1 if dead else 600_000)
    native = sqlite3.connect(path)
    with native:
        native.executemany(
            "INSERT INTO fencelock_waiter (lock, digest, holder, ttl_ms, deadline_ms) VALUES ('lock', ?, 'w', 9, ?)",
            [(digest_of_claim(claim), deadline_ms) for claim in claims],
        )
    native.close()
    return claims


@pytest.mark.parametrize("which", ["release", "acquire", "look of the first", "look of the last"])
def test_what_a_request_costs_does_not_grow_with_the_queue(stage: Stage, which: str) -> None:
    def steps(path: Path, count: int) -> int:
        client = Client(path)
        holder = draw_claim()
        client.token("lock", holder)
        claims = crowd(path, count)
        request = {
            "release": ask.Release("lock", holder),
            "look of the first": ask.Poll("lock", claims[0]),
            "look of the last": ask.Poll("lock", claims[-1]),
            "acquire": ask.Acquire("lock", draw_claim(), "me", 1000, 10**18, False),
        }[which]
        try:
            return vm_steps(client, request)
        finally:
            client.close()

    few = steps(stage.path.parent / "few.db", 10)
    many = steps(stage.path.parent / "many.db", 5_000)
    assert many <= 2 * few + 50


# --- the limit ------------------------------------------------------------------------------------
@pytest.mark.reduced
def test_one_waiter_more_than_the_limit_is_refused_with_the_number(stage: Stage, source: fencelock.Source) -> None:
    holder = source.lock("lock", ttl=TTL)
    holder.acquire()
    claims = crowd(stage.path, MAX_WAITERS)
    with pytest.raises(fencelock.SourceError, match=f"'lock' has {MAX_WAITERS} waiters"):
        source.lock("lock").acquire()
    assert source.lock("lock").acquire(blocking=False) is None, "who does not wait is not refused"
    client = Client(stage.path)
    client.release("lock", claims[0])
    assert isinstance(client.acquire(may_wait=True), ask.Queued)
    client.close()


@pytest.mark.reduced
def test_dead_waiters_do_not_fill_the_queue(stage: Stage, source: fencelock.Source) -> None:
    holder = source.lock("lock", ttl=TTL)
    holder.acquire()
    crowd(stage.path, MAX_WAITERS, dead=True)
    waiting = threading.Thread(target=lambda: source.lock("lock", ttl=TTL).acquire())
    waiting.start()
    wait_until(lambda: len(source.info("lock").waiters) == 1)
    holder.release()
    waiting.join(60)
    assert source.info("lock").token == 2
