"""Processes that are frozen past their ttl, killed, or stopped between any two statements: no rule may break."""

import itertools
import os
import random
import time
from typing import Any

import pytest

import fencelock
from fencelock._drivers.sync import SyncDriver
from tests.process.actors import Actor, Stage
from tests.support.helpers import wait_until

pytestmark = pytest.mark.process

TTL = 0.4
LONG_TTL = 30.0


def taken_over(source: fencelock.Source, name: str = "a", *, ttl: float = LONG_TTL) -> fencelock.Lease:
    """Return a lease on a lock whose holder does not give it back."""
    lease = source.lock(name, ttl=ttl).acquire(timeout=30)
    assert lease is not None, "the holder's ttl did not end its lease"
    return lease


# --- frozen while holding -------------------------------------------------------------------------
OVERSLEEPER = """
told = []
lock = source.lock("a", ttl=0.4, on_lost=told.append)
try:
    with lock as lease:
        say(lease.token)
        # What it hears was said while it was frozen, so that this is its first look.
        hear()
        say([lease.is_valid, lease.lost.is_set(), lease.remaining()])
        ENDING
except BaseException as error:
    say([type(error).__name__, getattr(error, "__notes__", [])])
else:
    say("nothing was raised")
say(until(lambda: told))
say(lease.release())
"""


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        ("pass", None),
        ("raise KeyError('mine')", "KeyError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("sys.exit(3)", "SystemExit"),
    ],
)
@pytest.mark.reduced
def test_a_holder_frozen_past_its_ttl_knows_at_once_that_it_is_over(
    stage: Stage, source: fencelock.Source, ending: str, outcome: str | None
) -> None:
    actor = stage.actor(OVERSLEEPER.replace("ENDING", ending))
    first = actor.hear()
    actor.freeze()
    lease = taken_over(source)
    assert lease.token > first
    actor.say()
    actor.thaw()
    assert actor.hear() == [False, True, 0.0]
    raised, notes = actor.hear()
    if outcome is None:
        assert raised in {"LeaseExpiredError", "LeaseLostError"}
    else:
        assert raised == outcome
        assert len(notes) == 1
        assert notes[0].startswith(f"fencelock: the lease on lock 'a' with token {first} ")
    (reason,) = actor.hear()
    assert reason
    assert actor.hear() is False, "the lease was no longer its own"
    assert lease.is_valid
    assert source.info("a").token == lease.token
    assert lease.release()


def test_a_freeze_that_nobody_used_is_a_loss_all_the_same(stage: Stage, source: fencelock.Source) -> None:
    """T4: a lease that expired is not renewed, even when nobody took over."""
    actor = stage.actor(OVERSLEEPER.replace("ENDING", "pass"))
    actor.hear()
    actor.freeze()
    wait_until(lambda: not source.info("a").is_held)
    actor.say()
    actor.thaw()
    assert actor.hear() == [False, True, 0.0]
    assert actor.hear()[0] in {"LeaseExpiredError", "LeaseLostError"}


def test_a_freeze_shorter_than_the_ttl_costs_nothing(stage: Stage, source: fencelock.Source) -> None:
    actor = stage.actor("""
        with source.lock("a", ttl=20.0) as lease:
            say(lease.token)
            hear()
            say(lease.is_valid)
    """)
    actor.hear()
    actor.freeze()
    assert source.lock("a").acquire(timeout=0.05) is None
    actor.thaw()
    actor.say()
    assert actor.hear() is True


# --- killed ---------------------------------------------------------------------------------------
@pytest.mark.reduced
def test_killed_while_holding_the_lock_is_free_after_the_ttl(stage: Stage, source: fencelock.Source) -> None:
    actor = stage.actor("""
        lease = source.lock("a", ttl=0.4).acquire()
        say(lease.token)
        hear()
    """)
    first = actor.hear()
    actor.kill()
    lease = taken_over(source)
    assert lease.token > first
    lease.release()


WAITER = """
lock = source.lock("a", ttl=TTL, holder=sys.argv[1] and "HOLDER")
say("waiting")
with lock as lease:
    say(lease.token)
    hear()
say("released")
"""


def waiter(stage: Stage, source: fencelock.Source, name: str, ttl: float) -> Actor:
    """Start a waiter, and return once it is queued."""
    actor = stage.actor(WAITER.replace("HOLDER", name).replace("TTL", str(ttl)))
    assert actor.hear() == "waiting"
    wait_until(lambda: name in source.info("a").waiters)
    return actor


@pytest.mark.reduced
@pytest.mark.parametrize("victims", [("first",), ("second",), ("first", "second")])
def test_killed_while_waiting_the_queue_goes_on(
    stage: Stage, source: fencelock.Source, victims: tuple[str, ...]
) -> None:
    holder = source.lock("a", ttl=LONG_TTL)
    holder.acquire()
    # The others wait for as long as a victim's place lasts.
    ttls = {name: 2.0 if name in victims else LONG_TTL for name in ("first", "second", "third")}
    waiters = {name: waiter(stage, source, name, ttl) for name, ttl in ttls.items()}
    assert source.info("a").waiters == ("first", "second", "third")
    for name in victims:
        waiters.pop(name).kill()
    holder.release()
    tokens = []
    for actor in waiters.values():
        tokens.append(actor.hear())
        actor.say()
        assert actor.hear() == "released"
    assert tokens == sorted(tokens)


def test_killed_anywhere_between_acquire_and_release_the_lock_comes_back(
    stage: Stage, source: fencelock.Source
) -> None:
    """Hundreds of cycles and a kill at some moment of one of them, again and again."""
    last = 0
    for round_number in range(5):
        actors = [stage.actor(CYCLES) for _ in range(2)]
        for actor in actors:
            actor.hear()
        time.sleep(random.Random(round_number).uniform(0, 0.05))
        for actor in actors:
            actor.kill()
        lease = taken_over(source)
        assert lease.token > last
        last = lease.token
        lease.release()


CYCLES = """
lock = source.lock("a", ttl=0.3)
say("begun")
while True:
    with lock:
        pass
"""


# --- stopped between any two statements -----------------------------------------------------------
STEPPER = """
from fencelock._drivers.pool import Pool
from fencelock.stores.sqlite.connection.database import Database

passed, stop_at, armed = 0, 0, None

def step(*_):
    # A step is the beginning of a request, each of its statements, and its end.
    global passed
    if threading.get_ident() == armed:
        passed += 1
        if passed == stop_at:
            os.kill(os.getpid(), signal.SIGSTOP)

opened = Database._open
def traced(self):
    native = opened(self)
    native.set_trace_callback(step)
    return native
Database._open = traced

performed = Pool.perform
def perform(self, request):
    step()
    try:
        return performed(self, request)
    finally:
        step()
Pool.perform = perform

MAIN = threading.get_ident()

def arm(thread, number):
    global passed, stop_at, armed
    passed, stop_at, armed = 0, number, thread

def described(lease):
    return lease and [lease.token, lease.is_valid]

lock = source.lock("a", ttl=0.3, timeout=2.0)
while True:
    operation, number = hear()
    lease = None
    if operation == "open":
        source._driver.close()
        source = fencelock.connect(URL)
        lock = source.lock("a", ttl=0.3, timeout=2.0)
    if operation in ("open", "acquire", "wait"):
        arm(MAIN, number)
        try:
            lease = lock.acquire(timeout=0.7 if operation == "wait" else 0.2)
        except fencelock.FencelockError as error:
            say([passed, type(error).__name__])
        else:
            say([passed, described(lease)])
    else:
        lease = lock.acquire()
        keeper = fencelock._keeper.lifecycle.keeper()
        arm(until(lambda: keeper._background._thread).ident if operation == "renew" else MAIN, number)
        before = lease.deadline_ms
        if operation == "release":
            lease.release()
        else:
            until(lambda: not lease.is_valid or lease.deadline_ms > before)
        say([passed, described(lease)])
    arm(None, 0)
    hear()
    if lease:
        lease.release()
    say("ready")
"""


class Referee:
    """The other process in the game: takes the lock from one that is stopped, and checks that nobody else has it."""

    def __init__(self, stage: Stage, source: fencelock.Source) -> None:
        self.actor = stage.actor(STEPPER)
        self.source = source
        source.install()
        source._driver = SyncDriver(source._store, request_timeout_s=0.05)
        self.tokens: list[int] = []

    def play(self, operation: str, number: int) -> bool:
        """Stop the actor at a step of its operation; return whether there is such a step."""
        mine = self.source.lock("a", ttl=LONG_TTL).acquire(timeout=30) if operation == "wait" else None
        self.actor.say([operation, number])
        if mine is not None:
            wait_until(lambda: self.source.info("a").waiters or self._is_stopped())
            mine.release()
        wait_until(lambda: self._is_stopped() or not self.actor.is_silent())
        was_stopped = self._is_stopped()
        lease = self._take_over() if was_stopped else None
        self.actor.thaw()
        _, outcome = self.actor.hear()
        self._check(outcome, lease)
        if lease is not None:
            assert lease.is_valid
            assert self.source.info("a").token == lease.token
            assert lease.release()
        self.actor.say()
        assert self.actor.hear() == "ready"
        return was_stopped

    def _is_stopped(self) -> bool:
        return bool(os.waitid(os.P_PID, self.actor.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT))

    def _take_over(self) -> fencelock.Lease | None:
        """Take the lock from the stopped actor; None if it stands inside a write transaction, and has the file."""
        give_up = time.monotonic() + 30
        locked_since = None
        while time.monotonic() < give_up:
            try:
                lease = self.source.lock("a", ttl=LONG_TTL).acquire(timeout=0.05)
            except fencelock.SourceUnavailableError:
                locked_since = locked_since or time.monotonic()
                if time.monotonic() - locked_since > 0.4:
                    return None
                continue
            locked_since = None
            if lease is not None:
                self._check_token(lease.token)
                return lease
        raise AssertionError("a stopped process keeps the lock for ever")

    def _check(self, outcome: Any, lease: fencelock.Lease | None) -> None:
        """No process believes that it holds the lock while the referee holds it; each grant has a new token."""
        if isinstance(outcome, list):
            token, is_valid = outcome
            assert not (is_valid and lease is not None), f"two hold the lock: {token} and {lease}"
            if is_valid:
                self._check_token(token)

    def _check_token(self, token: int) -> None:
        assert token > max(self.tokens, default=0), f"token {token} after {self.tokens[-5:]}"
        self.tokens.append(token)


# A wait has many steps, and at most of them the ttl has to end: twenty seconds.
@pytest.mark.parametrize(
    "operation", ["open", "acquire", pytest.param("wait", marks=pytest.mark.campaign), "release", "renew"]
)
def test_stopped_between_any_two_statements_no_rule_is_broken(
    stage: Stage, source: fencelock.Source, operation: str
) -> None:
    """Others wait, or are told that the file is not to be had; a process that wakes later finds that it is too late."""
    referee = Referee(stage, source)
    steps = 0
    for number in itertools.count(1):
        if not referee.play(operation, number):
            break
        steps = number
    assert steps >= 3
