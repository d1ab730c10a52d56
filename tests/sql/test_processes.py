"""Real processes with the lock on an SQL server, the guarded table in SQLite: frozen, killed, forked, interrupted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import fencelock
from tests.process.test_fork import FORKING
from tests.sql.dialect import SqlDialect
from tests.sql.marks import one_version
from tests.sql.stage import SqlStage, freeze
from tests.support.guards import LOCK, RESOURCE, make_file, url_of, value_in, write
from tests.support.helpers import wait_until

pytestmark = [pytest.mark.process, one_version]


@pytest.fixture
def source(stage: SqlStage) -> Iterator[fencelock.Source]:
    with fencelock.connect(stage.url) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_file(tmp_path / "app.db")


# --- frozen and killed ----------------------------------------------------------------------------
@pytest.mark.reduced
def test_a_holder_frozen_past_its_ttl_is_refused_by_the_table(
    stage: SqlStage, source: fencelock.Source, file: Path
) -> None:
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    guard.protect("reports")
    old = stage.actor(f"""
guard = fencelock.guard({url_of(file)!r}, resource={RESOURCE!r}, lock={LOCK!r})
while True:
    lease = source.lock({LOCK!r}, ttl=1.0).acquire()
    try:
        with guard.transaction(lease) as connection:
            value = connection.execute("SELECT value FROM reports").fetchone()[0]
        break
    except fencelock.LeaseError:
        pass  # The machine stood still for longer than the ttl.
say(lease.token)
hear()
for credential in (lease.sequencer, lease):
    try:
        with guard.transaction(credential) as connection:
            connection.execute("UPDATE reports SET value = ?", (value + 1,))
        say("written")
    except fencelock.FencelockError as error:
        say(type(error).__name__)
""")
    first = old.hear()
    freeze(old)
    with source.lock(LOCK, timeout=20) as lease:
        assert lease.token > first
        write(guard, lease, 10)
        old.thaw()
        old.say()
        assert old.hear() == "StaleTokenError"
        assert old.hear() in {"LeaseExpiredError", "LeaseLostError"}
        write(guard, lease, 11)
    assert value_in(file) == 11


@pytest.mark.reduced
def test_a_killed_holders_lock_is_free_after_its_ttl_and_a_killed_waiter_blocks_nobody(
    stage: SqlStage, source: fencelock.Source
) -> None:
    actors = [stage.actor(HOLD_WHEN_TOLD.format(name=name)) for name in ("holder", "killed", "patient")]
    # All are there before the first one has a lease, which a busy machine might not renew while others start.
    for actor in actors:
        assert actor.hear() == "ready"
    for number, actor in enumerate(actors):
        actor.say()
        wait_until(lambda: source.info("a").is_held and len(source.info("a").waiters) == number)  # noqa: B023
    holder, killed, patient = actors
    first = holder.hear()
    killed.kill()
    holder.kill()
    assert patient.hear() > first
    assert patient.wait() == 0
    assert not source.info("a").is_held


HOLD_WHEN_TOLD = """
source.describe()
say("ready")
hear()
with source.lock("a", ttl=1.0, holder="{name}") as lease:
    say(lease.token)
    if "{name}" == "holder": hear()
"""


def test_killed_anywhere_between_acquire_and_release_no_token_comes_twice(
    stage: SqlStage, source: fencelock.Source
) -> None:
    tokens: list[int] = []
    for turns in (1, 20, 50):
        actors = [stage.actor(CYCLES) for _ in range(2)]
        told: list[int] = []
        while len(told) < turns:
            told.extend(actor.hear() for actor in actors)
        for actor in actors:
            actor.kill()
        lease = source.lock("a").acquire(timeout=30)
        assert lease is not None, "a killed process keeps the lock"
        assert len({*tokens, *told, lease.token}) == len(tokens) + len(told) + 1
        assert lease.token > max(told)
        tokens += [*told, lease.token]
        lease.release()


CYCLES = """
while True:
    try:
        with source.lock("a", ttl=0.5) as lease:
            say(lease.token)
    except fencelock.LeaseError:
        pass  # The machine stood still for longer than the ttl.
"""


# --- forks ----------------------------------------------------------------------------------------
@pytest.mark.reduced
@pytest.mark.parametrize("ending", ["os._exit(0)", "sys.exit(0)", "source.close(); sys.exit(0)", "del lease, source"])
def test_h6_a_child_neither_uses_nor_ends_its_parents_connections(
    stage: SqlStage, sql: SqlDialect, ending: str
) -> None:
    """One is idle, one is the keeper's, and on PostgreSQL one listens; the child has as many of its own."""
    actor = stage.actor(
        FORKING
        + f"""
from fencelock.stores.postgres.source import wakeup
wakeup.LINGER_S = 600.0  # Or the listening connection might close before the test has looked again.
lease = source.lock("a", ttl=600.0).acquire()
busy = source.lock("b", ttl=600.0)
held = busy.acquire()
assert source.lock("b").acquire(timeout=0.1) is None
say("ready")
hear()
child = os.fork()
if not child:
    import gc
    try:
        lease.release()
    except fencelock.LeaseInheritedError:
        pass
    with source.lock("c", ttl=600.0) as own:
        assert source.lock("b").acquire(timeout=0.1) is None
        assert own.token > held.token
    gc.collect()
    {ending}
    os._exit(0)
say(os.waitpid(child, 0)[1])
hear()
say([lease.is_valid, held.release(), lease.release()])
hear()
"""
    )
    assert actor.hear() == "ready"
    before = stage.backends(actor)
    assert len(before) >= (2 if sql.name == "postgres" else 1)
    actor.say()
    assert actor.hear() == 0, actor.errors
    wait_until(lambda: stage.backends(actor) == before)
    actor.say()
    assert actor.hear() == [True, True, True]
    assert stage.backends(actor) == before, "the parent's connections are those that it had"


@pytest.mark.reduced
def test_h6_the_server_sees_the_parent_go_though_the_child_lives(stage: SqlStage, source: fencelock.Source) -> None:
    actor = stage.actor("""
        lease = source.lock("a", ttl=1.0).acquire()
        child = os.fork()
        if not child:
            source = fencelock.connect(URL)
            with source.lock("b", ttl=600.0):
                say("child")
                hear()
            os._exit(0)
        time.sleep(600)
    """)
    assert actor.hear() == "child"
    before = stage.backends(actor)
    assert before
    actor.kill()
    wait_until(lambda: not before & stage.sql.sessions(stage.database))
    assert source.lock("a").acquire(timeout=30) is not None
    assert source.info("b").is_held


def test_h6_forks_of_a_busy_process_never_hang(stage: SqlStage) -> None:
    """Other threads are in the client library, in the listener and in the keeper at the moment of the fork."""
    actor = stage.actor(
        FORKING
        + """
stop = threading.Event()

def cycle(name):
    while not stop.is_set():
        with source.lock(name, ttl=5.0):
            pass

def wait_in_line():
    while not stop.is_set():
        source.lock("held", ttl=5.0).acquire(timeout=0.02)

held = source.lock("held", ttl=600.0).acquire()
assert source.lock("held").acquire(timeout=0.01) is None
threads = [threading.Thread(target=cycle, args=(f"cycle{n % 2}",)) for n in range(3)]
threads.append(threading.Thread(target=wait_in_line))
for thread in threads:
    thread.start()

def child_works():
    with source.lock("child", ttl=5.0, timeout=15.0) as lease:
        token = lease.token
    assert source.lock("held", ttl=5.0).acquire(timeout=0.01) is None
    return token

for _ in range(15):
    say(in_child(child_works))
stop.set()
for thread in threads:
    thread.join()
say(held.is_valid)
"""
    )
    tokens = [actor.hear(60) for _ in range(15)]
    assert all(isinstance(token, int) for token in tokens), f"{tokens}\n{actor.errors[-3000:]}"
    assert tokens == sorted(set(tokens))
    assert actor.hear(60) is True
    assert actor.wait() == 0


# --- signals and the interpreter's end ------------------------------------------------------------
TERMINATED = """
def end(number, frame):
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
say("begun")
"""


@pytest.mark.reduced
@pytest.mark.parametrize("state", ["holding", "waiting", "cycling"])
def test_h5_sigterm_in_the_middle_gives_back_what_there_is(
    stage: SqlStage, source: fencelock.Source, state: str
) -> None:
    """The ttl is so long that only the process itself can have given it back."""
    bodies = {
        # Short sleeps: a signal that comes just before a sleep begins does not end it.
        "holding": "with source.lock('a', ttl=600.0):\n    say('in')\n    while True: time.sleep(0.05)",
        "waiting": "with source.lock('b', ttl=600.0): pass",
        "cycling": "while True:\n    with source.lock('a', ttl=600.0): pass",
    }
    with source.lock("b", ttl=600.0):
        for _ in range(3):
            actor = stage.actor(TERMINATED + bodies[state])
            assert actor.hear() == "begun"
            if state == "holding":
                assert actor.hear() == "in"
            elif state == "waiting":
                wait_until(lambda: source.info("b").waiters)
            else:
                wait_until(lambda: (source.info("a").token or 0) > 1)
            actor.send(15)
            assert actor.wait() == 3, actor.errors
            assert not source.info("a").is_held
            assert source.info("b").waiters == ()


@pytest.mark.reduced
@pytest.mark.parametrize(("ending", "code"), [("pass", 0), ("sys.exit(7)", 7), ("raise KeyError", 1)])
def test_the_interpreters_end_releases_what_is_held(
    stage: SqlStage, source: fencelock.Source, ending: str, code: int
) -> None:
    actor = stage.actor(
        f"""
import asyncio
import fencelock.aio
leases = [source.lock(name, ttl=600.0).acquire() for name in "abc"]
async def take():
    return await fencelock.aio.connect(URL).lock("d", ttl=600.0).acquire()
lease = asyncio.run(take())
threading.Thread(target=lambda: source.lock("a", ttl=600.0).acquire(), daemon=True).start()
until(lambda: source.info("a").waiters)
say("held")
{ending}
"""
    )
    assert actor.hear() == "held"
    assert actor.wait() == code, actor.errors
    assert [info.name for info in source.locks() if info.is_held] == []
    assert source.info("a").waiters == ()


# --- many of them ---------------------------------------------------------------------------------
def test_ten_processes_and_their_threads_never_meet(stage: SqlStage, file: Path) -> None:
    """Each reads a number and writes the next, in two transactions under one lease: none is lost."""
    fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK).protect("reports")
    actors = [stage.actor(COUNTING.format(url=url_of(file), resource=RESOURCE, lock=LOCK)) for _ in range(4)]
    tokens = [token for actor in actors for token in actor.hear(100)]
    assert len(set(tokens)) == 4 * 2 * 5
    assert value_in(file) == 4 * 2 * 5


COUNTING = """
tokens = []
def count():
    guard = fencelock.guard({url!r}, resource={resource!r}, lock={lock!r})
    for _ in range(5):
        with source.lock({lock!r}, ttl=10.0) as lease:
            tokens.append(lease.token)
            with guard.transaction(lease) as connection:
                value = connection.execute("SELECT value FROM reports").fetchone()[0]
            with guard.transaction(lease) as connection:
                connection.execute("UPDATE reports SET value = ?", (value + 1,))
threads = [threading.Thread(target=count) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
say(tokens)
"""
