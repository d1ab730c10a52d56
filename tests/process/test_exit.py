"""The interpreter's end: leases are released, waiters learn of it, and neither the exit code nor the time changes."""

import sqlite3
import subprocess
import sys
import time

import pytest

import fencelock
from fencelock._keeper import lifecycle
from tests.process.actors import Stage
from tests.support.helpers import wait_until

pytestmark = [pytest.mark.process, pytest.mark.reduced]

EXIT_BOUND_S = 2.0
"""How long the end of a program waits for its source, as docs/reference/api.md promises."""
SLACK_S = 5.0
"""What a loaded machine may take on top, to end the process and to notice that."""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("pass", 0),
        ("sys.exit(7)", 7),
        ("raise KeyError", 1),
        ("def later(): raise KeyError\nimport atexit\natexit.register(later)", 0),
        ("sys.exit('words')", 1),
    ],
)
def test_leases_are_released_and_the_exit_code_is_the_programs_own(
    stage: Stage, source: fencelock.Source, ending: str, code: int
) -> None:
    actor = stage.actor(
        """
leases = [source.lock(name, ttl=600.0).acquire() for name in "abc"]
rlock = source.rlock("d", ttl=600.0)
rlock.acquire()
say("held")
"""
        + ending
    )
    assert actor.hear() == "held"
    assert actor.wait() == code
    assert [name for name in "abcd" if source.info(name).is_held] == []


def test_what_was_abandoned_a_moment_before_is_released_too(stage: Stage, source: fencelock.Source) -> None:
    actor = stage.actor("""
        for number in range(200):
            source.lock(str(number), ttl=600.0).acquire()
        say("dropped")
    """)
    assert actor.hear() == "dropped"
    assert actor.wait() == 0
    assert [info.name for info in source.locks() if info.is_held] == []


def test_a_thread_that_still_works_is_waited_for_with_its_lease(stage: Stage, source: fencelock.Source) -> None:
    """Python joins non-daemon threads first: until then renewals go on."""
    actor = stage.actor("""
        early_beats()
        has_lease = threading.Event()
        def work():
            with source.lock("a", ttl=1.9) as lease:
                has_lease.set()
                say("working")
                hear()
                say([lease.is_valid, lease.token])
        threading.Thread(target=work).start()
        has_lease.wait()  # From Python 3.12 on, nothing starts a thread after the main thread's end.
    """)
    assert actor.hear() == "working"
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        assert source.lock("a").acquire(blocking=False) is None
        time.sleep(0.02)
    actor.say()
    assert actor.hear() == [True, 1]
    assert actor.wait() == 0
    assert not source.info("a").is_held


def test_daemon_threads_that_wait_give_up_their_places(stage: Stage, source: fencelock.Source) -> None:
    with source.lock("a", ttl=600.0):
        actor = stage.actor("""
            def wait():
                # What it is told, it may not live to tell: Python ends daemon threads where they stand.
                source.lock("a", ttl=600.0).acquire()
            for _ in range(100):
                threading.Thread(target=wait, daemon=True).start()
            hear()
        """)
        wait_until(lambda: len(source.info("a").waiters) == 100)
        actor.say()
        assert actor.wait() == 0
        assert source.info("a").waiters == ()


def test_a_daemon_thread_inside_a_block_is_cut_off_and_its_lease_released(
    stage: Stage, source: fencelock.Source
) -> None:
    actor = stage.actor("""
        def work():
            with source.lock("a", ttl=600.0):
                say("inside")
                time.sleep(600)
        threading.Thread(target=work, daemon=True).start()
        hear()
    """)
    assert actor.hear() == "inside"
    actor.say()
    assert actor.wait() == 0
    assert not source.info("a").is_held


def test_a_source_that_hangs_holds_up_the_end_for_a_bounded_time(stage: Stage, source: fencelock.Source) -> None:
    """Another process is frozen inside a write transaction: the ttl will end the leases."""
    actor = stage.actor("""
        leases = [source.lock(str(number), ttl=600.0).acquire() for number in range(5)]
        say("held")
        hear()
        say(time.monotonic())
    """)
    assert actor.hear() == "held"
    native = sqlite3.connect(stage.path, isolation_level=None)
    native.execute("BEGIN IMMEDIATE")
    actor.say()
    began = actor.hear()
    assert actor.wait(20) == 0
    assert time.monotonic() - began < EXIT_BOUND_S + SLACK_S
    native.execute("ROLLBACK")
    native.close()
    assert source.info("0").is_held


def test_the_end_waits_for_two_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds: list[float] = []
    monkeypatch.setattr(lifecycle.keeper(), "stop", bounds.append)
    monkeypatch.setattr(lifecycle.SHUTDOWN, "begin", lambda: None)
    lifecycle._at_exit()
    assert bounds == [EXIT_BOUND_S]


def test_a_lease_can_be_given_back_by_an_exit_handler(stage: Stage, source: fencelock.Source) -> None:
    """Handlers run last in, first out: one that was registered later than fencelock's finds its lease alive."""
    actor = stage.actor("""
        import atexit
        lease = source.lock("a", ttl=600.0).acquire()
        def handler():
            say([lease.is_valid, lease.release()])
        atexit.register(handler)
    """)
    assert actor.hear() == [True, True]
    assert actor.wait() == 0


EARLY_HANDLER = """
import atexit, sys
def handler():
    with source.lock("a", ttl=600.0, timeout=0) as lease:
        print("inside", lease.is_valid, flush=True)
atexit.register(handler)
import fencelock
source = fencelock.connect(sys.argv[1])
with source.lock("b"):
    pass
"""


def test_an_exit_handler_from_before_fencelock_can_still_use_a_lock(stage: Stage, source: fencelock.Source) -> None:
    command = [sys.executable, "-c", EARLY_HANDLER, stage.url]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "inside True\n", "")
    assert not source.info("a").is_held


def test_a_program_that_only_imports_it_starts_no_thread_and_makes_no_file(stage: Stage) -> None:
    actor = stage.actor("""
        say([threading.active_count(), os.path.exists(URL.removeprefix("sqlite:///"))])
        lock = source.lock("a")
        say([threading.active_count(), os.path.exists(URL.removeprefix("sqlite:///"))])
    """)
    assert actor.hear() == [1, False]
    assert actor.hear() == [1, False]
    assert actor.wait() == 0


def test_asyncio_run_ends_with_leases_held_and_tasks_waiting(stage: Stage, source: fencelock.Source) -> None:
    actor = stage.actor("""
        import asyncio
        import fencelock.aio
        async def main():
            source = fencelock.aio.connect(URL)
            held = await source.lock("a", ttl=600.0).acquire()
            waiting = asyncio.create_task(source.lock("a", ttl=600.0).acquire())
            while not (await source.info("a")).waiters:
                await asyncio.sleep(0.01)
            say("waiting")
            return held
        lease = asyncio.run(main())
        say([lease.is_valid, lease.token])
    """)
    assert actor.hear() == "waiting"
    assert actor.hear() == [True, 1]
    assert actor.wait() == 0
    assert not source.info("a").is_held
    assert source.info("a").waiters == ()
    assert actor.errors == ""
