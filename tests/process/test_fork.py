"""Forks: of a process that holds a lease, of one whose threads are inside SQLite and hold locks, by multiprocessing.

Each forking process is an actor of its own, so that a child that hangs is killed and reported, and never blocks the
tests.
"""

import pytest

import fencelock
from tests.process.actors import Stage
from tests.support.helpers import wait_until

pytestmark = pytest.mark.process

FORKING = """
import faulthandler, warnings
faulthandler.register(signal.SIGUSR2)
warnings.simplefilter("ignore", DeprecationWarning)  # That forks and threads are a bad match is why this is tested.

def in_child(function, seconds=20):
    # Return what the function returns in a forked child, "hung" if that does not end.
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            result = function()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        os.write(writer, json.dumps(result).encode())
        os._exit(0)
    os.close(writer)
    give_up = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > give_up:
            os.kill(child, signal.SIGUSR2)
            time.sleep(0.5)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hung"
        time.sleep(0.002)
    with os.fdopen(reader) as stream:
        return json.loads(stream.read() or '"died"')

def outcome(function):
    try:
        return function()
    except fencelock.FencelockError as error:
        return type(error).__name__
"""


@pytest.mark.reduced
def test_a_child_inherits_no_lease(stage: Stage, source: fencelock.Source) -> None:
    actor = stage.actor(
        FORKING
        + """
lease = source.lock("a", ttl=30.0).acquire()
text = str(lease.sequencer)
def look():
    return {
        "token": lease.token,
        "same": str(lease.sequencer) == text,
        "inherited": lease.is_inherited,
        "repr": repr(lease),
        "refused": [outcome(ask) for ask in (
            lambda: lease.is_valid, lease.remaining, lambda: lease.lost, lease.release, lease.release_soon,
            lease.check_valid, lambda: lease.deadline_ms, lambda: lease.enter_guarded(lease),
        )],
    }
say(in_child(look))
say([lease.is_valid, lease.is_inherited])
hear()
"""
    )
    seen = actor.hear()
    assert seen == {
        "token": 1,
        "same": True,
        "inherited": True,
        "repr": "<Lease lock='a' token=1 inherited>",
        "refused": ["LeaseInheritedError"] * 8,
    }
    assert actor.hear() == [True, False]
    assert source.info("a").is_held


@pytest.mark.reduced
@pytest.mark.parametrize(
    "ending", ["sys.exit(0)", "os._exit(0)", "lock.release()", "del lease, lock", "raise KeyError"]
)
def test_however_a_child_ends_its_parents_lease_is_untouched(
    stage: Stage, source: fencelock.Source, ending: str
) -> None:
    actor = stage.actor(
        FORKING
        + f"""
early_beats()
lost = []
lock = source.lock("a", ttl=30.0, on_lost=lost.append)
lease = lock.acquire()
child = os.fork()
if not child:
    os.close(2)
    {ending}
    sys.exit(0)
os.waitpid(child, 0)
before = lease.deadline_ms
until(lambda: lease.deadline_ms > before)
say([lease.is_valid, lost])
hear()
lock.release()
say("released")
"""
    )
    assert actor.hear() == [True, []]
    assert source.info("a").token == 1
    assert source.info("a").is_held
    actor.say()
    assert actor.hear() == "released"
    assert not source.info("a").is_held


@pytest.mark.reduced
def test_a_child_leaves_its_parents_block_with_an_error_and_its_lease_alone(
    stage: Stage, source: fencelock.Source
) -> None:
    actor = stage.actor(
        FORKING
        + """
def leave(kind):
    lock = getattr(source, kind)("a", ttl=30.0)
    with lock as lease:
        result = in_child(lambda: outcome(lambda: lock.__exit__(None, None, None)))
        return [result, lease.is_valid]
say([leave("lock"), leave("rlock")])
"""
    )
    assert actor.hear() == [["LeaseInheritedError", True], ["LeaseInheritedError", True]]


@pytest.mark.reduced
def test_a_child_acquires_renews_and_loses_leases_of_its_own(stage: Stage, source: fencelock.Source) -> None:
    actor = stage.actor(
        FORKING
        + """
early_beats()
held = source.lock("held", ttl=30.0).acquire()
lock, rlock = source.lock("a", ttl=30.0), source.rlock("b", ttl=30.0)
with lock, rlock:
    pass
def use():
    lost = []
    with lock as first, rlock as second:
        before = first.deadline_ms, second.deadline_ms
        until(lambda: first.deadline_ms > before[0] and second.deadline_ms > before[1])
    third = source.lock("c", ttl=30.0, on_lost=lost.append).acquire()
    source.break_lock("c", reason="test")
    until(lambda: lost)
    return [first.token, source.lock("held").acquire(blocking=False), first.holder.split(":")[1] == str(os.getpid())]
say(in_child(use))
say(in_child(lambda: in_child(use)))
say(held.is_valid)
"""
    )
    first = actor.hear()
    assert first == [4, None, True]
    grandchild = actor.hear()
    assert grandchild[1:] == [None, True]
    assert grandchild[0] > first[0]
    assert actor.hear() is True


@pytest.mark.reduced
def test_a_child_waits_for_its_parents_lock_and_is_handed_it(stage: Stage, source: fencelock.Source) -> None:
    actor = stage.actor(
        FORKING
        + """
lock = source.lock("a", ttl=30.0)
lease = lock.acquire()
child = os.fork()
if not child:
    with lock as mine:
        say(["child", mine.token])
    os._exit(0)
until(lambda: source.info("a").waiters)
lease.release()
os.waitpid(child, 0)
say(["parent", lease.token])
"""
    )
    assert actor.hear() == ["child", 2]
    assert actor.hear() == ["parent", 1]


BUSY = """
import logging

class Formatting(logging.Handler):
    # A handler with a lock, and without a stream: a forked child may hang in one whose buffer another thread was using.
    def emit(self, record):
        self.format(record)

logging.getLogger("fencelock").addHandler(Formatting())
logging.getLogger("fencelock").setLevel(logging.DEBUG)
stop = threading.Event()

def cycle(name):
    while not stop.is_set():
        with source.lock(name, ttl=5.0) as lease:
            lease.is_valid

def wait_in_line():
    while not stop.is_set():
        source.lock("contended", ttl=5.0).acquire(timeout=0.02)

def drop():
    while not stop.is_set():
        source.lock("dropped", ttl=5.0).acquire()

def listen(lease):
    while not stop.is_set():
        lease.lost.wait(0.001)

early_beats()
contended = source.lock("contended", ttl=30.0)
held = contended.acquire()
# Everything that waiting needs is imported by now: a fork in the middle of an import is a trap of Python's own.
assert source.lock("contended").acquire(timeout=0.01) is None
threads = [threading.Thread(target=cycle, args=(f"cycle{n % 2}",)) for n in range(6)]
threads += [threading.Thread(target=target) for target in (wait_in_line, drop, lambda: listen(held))]
for thread in threads:
    thread.start()

def child_works():
    with source.lock("child", ttl=5.0, timeout=15.0) as lease:
        token = lease.token
    assert source.lock("contended", ttl=5.0).acquire(timeout=0.01) is None
    return token
"""


@pytest.mark.parametrize("forks", [20, pytest.param(60, marks=pytest.mark.campaign)])
def test_forks_of_a_busy_process_never_hang_or_harm(stage: Stage, source: fencelock.Source, forks: int) -> None:
    """Other threads are inside SQLite, in the keeper, in logging and in our own locks at the moment of the fork."""
    actor = stage.actor(
        FORKING
        + BUSY
        + f"""
for _ in range({forks}):
    say(in_child(child_works))
stop.set()
for thread in threads:
    thread.join()
say([held.is_valid, held.token])
"""
    )
    tokens = [actor.hear(60) for _ in range(forks)]
    assert all(isinstance(token, int) for token in tokens), f"{tokens}\n{actor.errors[-3000:]}"
    assert tokens == sorted(set(tokens))
    is_valid, token = actor.hear(60)
    assert is_valid
    assert source.info("contended").token == token
    assert actor.wait() == 0


@pytest.mark.parametrize("forks", [10, pytest.param(25, marks=pytest.mark.campaign)])
def test_two_threads_that_fork_at_the_same_time_do_not_harm_each_other(stage: Stage, forks: int) -> None:
    actor = stage.actor(
        FORKING
        + BUSY
        + f"""
found = []
def fork_again_and_again():
    for _ in range({forks}):
        found.append(in_child(child_works))
forkers = [threading.Thread(target=fork_again_and_again) for _ in range(2)]
for forker in forkers:
    forker.start()
for forker in forkers:
    forker.join()
stop.set()
say(found)
"""
    )
    tokens = actor.hear(100)
    assert all(isinstance(token, int) for token in tokens), f"{tokens}\n{actor.errors[-3000:]}"
    assert len(set(tokens)) == 2 * forks


@pytest.mark.reduced
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(stage: Stage, source: fencelock.Source, tmp_path: object, method: str) -> None:
    """A pool of processes under one lock: never two are inside at once, and each token is issued once."""
    script = stage.path.parent / "program.py"
    script.write_text(PROGRAM)
    actor = stage.actor(f"""
        import runpy
        sys.argv = [{str(script)!r}, URL, {method!r}]
        import subprocess
        done = subprocess.run([sys.executable, *sys.argv], capture_output=True, text=True)
        say([done.returncode, done.stdout, done.stderr])
    """)
    code, output, errors = actor.hear(60)
    assert code == 0, errors
    tokens = [int(token) for token in output.split()]
    assert len(tokens) == 12
    assert len(set(tokens)) == 12
    assert not source.info("a").is_held


PROGRAM = """
import multiprocessing, os, sys, warnings
import fencelock

def work(url, folder):
    with fencelock.connect(url).lock("a", ttl=5.0) as lease:
        inside = os.path.join(folder, "inside")
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
        os.unlink(inside)
        return lease.token

if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    url, method = sys.argv[1:]
    folder = os.path.dirname(url.removeprefix("sqlite:///"))
    with fencelock.connect(url).lock("a", ttl=5.0):
        pass
    with multiprocessing.get_context(method).Pool(3) as pool:
        print(*pool.starmap(work, [(url, folder)] * 12))
        pool.close()
        pool.join()
"""


def test_a_subprocess_of_a_holder_is_no_fork(stage: Stage, source: fencelock.Source) -> None:
    """`subprocess` execs: it closes nothing of ours, and the lease stays with its holder."""
    actor = stage.actor("""
        import subprocess
        with source.lock("a", ttl=30.0) as lease:
            for _ in range(20):
                subprocess.run(["/bin/true"], check=True)
            say(lease.is_valid)
    """)
    assert actor.hear() is True
    wait_until(lambda: not source.info("a").is_held)
