"""Signal handlers: those that raise in the middle of an acquire, of a block's begin or end, and those that give a lease
back.

Each test sends hundreds of signals at random moments. Whatever they hit, the exception comes out, no lease outlives
it, and nothing hangs. The ttl is so long that only the keeper can have freed a lock in time.
"""

import signal

import pytest

import fencelock
from tests.process.actors import Stage
from tests.support.helpers import wait_until

pytestmark = pytest.mark.process

SHOOTING = """
import gc, random
random.seed(1)
TTL = 600.0

class Shot(BaseException):
    pass

fired = 0
def shoot(number, frame):
    global fired
    fired += 1
    raise Shot
signal.signal(signal.SIGALRM, shoot)

# What a handler raises inside a finalizer, Python itself can only report here.
swallowed = []
sys.unraisablehook = lambda unraisable: swallowed.append(repr(unraisable.object))

def shot_at(function, longest):
    # Run the function with a shot at some moment; return the exception if it came out.
    hit = None
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, longest))
        function()
    except Shot as shot:
        hit = shot
    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            try:
                return hit
            finally:
                del hit  # A frame that holds the exception which holds the frame would wait for the collector.
        except Shot as shot:
            hit = shot

def opened(what):
    # A connection has the log open once; of the file itself SQLite may keep descriptors for later.
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sum(what in os.readlink(link) for link in links if os.path.islink(link))
"""

BLOCK = """
lock = source.KIND("a", ttl=TTL, timeout=20)

def act():
    with lock:
        pass

def clean_up():
    # Python looks for signals before the first line of `__exit__`: what it raises there, no code of ours can catch, and
    # the block has not been left then. Anywhere else, the lease is over.
    if ENTERED:
        lock.__exit__(None, None, None)
        return 1
    return 0
"""

CALLS = """
lock = source.KIND("a", ttl=TTL, timeout=20)

def act():
    if lock.acquire() is None:
        raise SystemExit("an orphan holds the lock")
    lock.release()

def clean_up():
    # Between the two calls, the handle has the lease, and whoever has the handle can give it back.
    if lock.current is not None:
        lock.release()
    return 0
"""

ROUNDS = """
# The first acquire starts the keeper: what a handler raises inside `Thread.start`, Python's own locks may replace.
act()
hits = holes = 0
for _ in range(500):
    # The exception, and with it every frame that it came through, is kept until the next one.
    shot = shot_at(act, 4e-4)
    hits += shot is not None
    holes += clean_up()
shot = None
gc.collect()
until(lambda: not source.info("a").is_held and not source.info("a").waiters)
say([fired, hits, holes, len(swallowed), opened("-wal"), opened("-wake/")])
"""

CONNECTIONS = 2
"""What a process with one working thread has open to a file: its own connection, and the keeper's."""


@pytest.mark.parametrize(
    ("kind", "entered", "script"),
    [
        ("lock", "lock._of_thread.own.innermost_block()", BLOCK),
        ("rlock", "lock.current is not None", BLOCK),
        ("lock", "", CALLS),
        ("rlock", "", CALLS),
    ],
    ids=["lock block", "rlock block", "lock calls", "rlock calls"],
)
def test_a_handler_that_raises_anywhere_leaves_no_orphan_and_is_never_swallowed(
    stage: Stage, kind: str, entered: str, script: str
) -> None:
    actor = stage.actor(SHOOTING + script.replace("KIND", kind).replace("ENTERED", entered) + ROUNDS)
    fired, hits, holes, swallowed, connections, _ = actor.hear(100)
    assert fired > 100
    assert hits == fired - swallowed, "an exception was taken for something else"
    assert swallowed <= fired // 20
    assert holes <= fired // 20
    assert connections <= CONNECTIONS + swallowed, "more is open than finalizers left that were broken off"


WAITING = """
holder = source.lock("a", ttl=TTL).acquire()
lock = source.lock("a", ttl=TTL, timeout=20)

def act():
    lock.acquire(timeout=0.002)

def clean_up():
    return 0
"""


def test_a_handler_that_raises_in_the_middle_of_a_wait_gives_up_the_place(stage: Stage) -> None:
    rounds = ROUNDS.replace("4e-4", "3e-3").replace('not source.info("a").is_held and ', "")
    actor = stage.actor(SHOOTING + WAITING + rounds)
    fired, hits, _, swallowed, connections, pipes = actor.hear(100)
    assert fired > 100
    assert hits == fired - swallowed
    assert connections <= CONNECTIONS + swallowed
    assert pipes == 0, "pipes of waiters stay open"
    wake = stage.path.parent / "locks.db-wake"
    assert len(list(wake.iterdir())) <= swallowed, "more pipes are left behind than finalizers were broken off"


RELEASING = """
import random
lease = None
def give_back(number, frame):
    if lease is not None:
        lease.release_soon()
signal.signal(signal.SIGALRM, give_back)
lock = source.KIND("a", ttl=600.0, timeout=20)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
lost = 0
end = time.monotonic() + 3
while time.monotonic() < end:
    with lock as lease:
        lost += not lease.is_valid
        lease.lost.wait(0.0005)
    lease = lock.acquire()
    lease.release()
    if KIND == "rlock":
        lock.release()
signal.setitimer(signal.ITIMER_REAL, 0)
until(lambda: not source.info("a").is_held)
say(lost)
"""


@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_release_soon_in_a_handler_at_any_moment_neither_hangs_nor_harms(
    stage: Stage, source: fencelock.Source, kind: str
) -> None:
    actor = stage.actor(RELEASING.replace("KIND ==", f"{kind!r} ==").replace("KIND", kind))
    actor.hear(60)
    assert actor.wait() == 0
    assert not source.info("a").is_held


def test_a_handler_that_returns_does_not_end_a_wait(stage: Stage, source: fencelock.Source) -> None:
    actor = stage.actor("""
        count = 0
        def handler(number, frame):
            global count
            count += 1
        signal.signal(signal.SIGUSR1, handler)
        say("ready")
        with source.lock("a", ttl=30.0) as lease:
            say([count, lease.token])
    """)
    with source.lock("a", ttl=30.0):
        actor.hear()
        wait_until(lambda: source.info("a").waiters)
        for _ in range(20):
            actor.send(signal.SIGUSR1)
        assert source.info("a").waiters
        assert actor.is_silent()
    count, token = actor.hear()
    assert count >= 1
    assert token == 2


@pytest.mark.reduced
@pytest.mark.parametrize("where", ["waiting", "inside"])
def test_control_c_frees_the_lock_on_the_way_out(stage: Stage, source: fencelock.Source, where: str) -> None:
    holder = source.lock("a", ttl=600.0)
    if where == "waiting":
        holder.acquire()
    actor = stage.actor("""
        with source.lock("a", ttl=600.0):
            say("inside")
            hear()
    """)
    if where == "waiting":
        wait_until(lambda: source.info("a").waiters)
    else:
        assert actor.hear() == "inside"
    actor.send(signal.SIGINT)
    assert actor.wait() == -signal.SIGINT
    wait_until(lambda: "KeyboardInterrupt" in actor.errors)
    assert source.info("a").waiters == ()
    assert source.info("a").is_held is (where == "waiting")
