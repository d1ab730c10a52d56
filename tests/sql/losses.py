"""A source whose requests may be lost, and the flows that a test runs over it."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import fencelock
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from tests.sql.clients import PublicSource, SqlClient
from tests.sql.dialect import SqlDialect
from tests.support.helpers import wait_until

TTL = 30.0
"""No test outlives it: a lock that is free again was released, and has not expired."""


class LossScene:
    """A source whose requests may be lost, and a referee who has a connection that loses nothing."""

    def __init__(self, sql: SqlDialect, kind: str, url: str, proxy: Any, database: Any) -> None:
        self.sql = sql
        self.public = PublicSource(kind, proxy.url(url))
        self.source = self.public.source
        self.proxy = proxy
        self.database = database
        self.referee = SqlClient(url)
        self.claim = draw_claim()
        self.tokens: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.public.__exit__(None, None, None)
        self.referee.close()

    def do(self, result: Any) -> Any:
        return self.public.do(result)

    def lock(self, timeout: float = 60.0) -> Any:
        return self.source.lock("lock", ttl=TTL, timeout=timeout, holder="actor")

    def note(self, token: int) -> None:
        """Note a token that was granted: it is above all that were granted before."""
        assert token > max(self.tokens, default=0), f"token {token} came after {self.tokens}"
        self.tokens.append(token)

    def check_usable(self) -> None:
        """Assert that nobody has the lock or waits for it, soon enough, and that it can be taken."""
        wait_until(lambda: not self.info().is_held and not self.info().waiters)
        self.note(self.referee.one_token())

    def info(self) -> fencelock.LockInfo:
        return self.referee.ask(ask.Inspect("lock"))

    def released_when_waited_for(self) -> threading.Thread:
        """Start a thread in which the referee releases its lease as soon as there is a waiter."""

        def release() -> None:
            wait_until(lambda: self.info().waiters or self.is_over)
            self.referee.release("lock", self.claim)

        self.is_over = False
        thread = threading.Thread(target=release)
        thread.start()
        return thread


OpenScene = Callable[[], LossScene]


# --- the flows ------------------------------------------------------------------------------------
Flow = Callable[[LossScene], Iterator[None]]
"""Prepares, yields, acts while something is lost, yields once more, and checks."""


def acquire_free(scene: LossScene) -> Iterator[None]:
    yield
    lease = scene.do(scene.lock().acquire())
    yield
    scene.note(lease.token)
    assert scene.info().holder == "actor"
    scene.do(lease.release())


def acquire_and_release_on_a_known_connection(scene: LossScene) -> Iterator[None]:
    scene.note(scene.do(hold(scene)))
    yield
    token = scene.do(hold(scene))
    yield
    scene.note(token)


def hold(scene: LossScene) -> Any:
    """Acquire and release, and return the token."""
    lock = scene.lock()
    if isinstance(scene.source, fencelock.Source):
        with lock as lease:
            return lease.token

    async def run() -> int:
        async with lock as lease:
            return lease.token

    return run()


def try_busy(scene: LossScene) -> Iterator[None]:
    scene.note(scene.referee.token("lock", scene.claim))
    yield
    assert scene.do(scene.lock().acquire(blocking=False)) is None
    yield
    assert scene.info().waiters == ()
    scene.referee.release("lock", scene.claim)


def acquire_waiting(scene: LossScene) -> Iterator[None]:
    scene.note(scene.referee.token("lock", scene.claim))
    releasing = scene.released_when_waited_for()
    yield
    try:
        lease = scene.do(scene.lock().acquire())
    finally:
        scene.is_over = True
        releasing.join()
    yield
    scene.note(lease.token)
    scene.do(lease.release())


def give_up_waiting(scene: LossScene) -> Iterator[None]:
    scene.note(scene.referee.token("lock", scene.claim))
    yield
    assert scene.do(scene.lock().acquire(timeout=0.05)) is None
    yield
    assert scene.info().waiters == ()
    scene.referee.release("lock", scene.claim)


def release(scene: LossScene) -> Iterator[None]:
    lease = scene.do(scene.lock().acquire())
    scene.note(lease.token)
    yield
    assert scene.do(lease.release())
    yield
    assert not scene.info().is_held


def begin_a_history_after_a_crash(scene: LossScene) -> Iterator[None]:
    scene.note(scene.referee.one_token())
    before = scene.referee.describe()
    # Do what a recovery of the server does: its unlogged table is empty.
    scene.database.rows("TRUNCATE fencelock.witness")
    yield
    lease = scene.do(scene.lock().acquire())
    yield
    scene.note(lease.token)
    scene.do(lease.release())
    after = scene.referee.describe()
    assert after.epoch == before.epoch + 1, "one history for one crash"
    assert lease.sequencer.history_id == after.history_id


def break_lock(scene: LossScene) -> Iterator[None]:
    scene.note(scene.referee.token("lock", scene.claim))
    yield
    broken = scene.do(scene.source.break_lock("lock", reason="a test"))
    yield
    scene.note(broken.token)
    assert broken.holder == "tester"
    audited = scene.database.rows(scene.sql.audited, scene.tokens[0])
    assert audited == [(broken.token,)], "it was broken once"


def purge(scene: LossScene) -> Iterator[None]:
    for name in ("lock", "b", "c"):
        scene.note(scene.referee.one_token(name))
    yield
    assert scene.do(scene.source.purge()) in {0, 3}, "asked again, it finds nothing left"
    yield
    assert scene.referee.ask(ask.ListLocks(None)) == ()


def inspect(scene: LossScene) -> Iterator[None]:
    token = scene.referee.token("lock", scene.claim)
    scene.note(token)
    yield
    info = scene.do(scene.source.info("lock"))
    yield
    assert (info.token, info.holder) == (token, "tester")
    scene.referee.release("lock", scene.claim)


REPEATED: list[Flow] = [
    acquire_free,
    acquire_and_release_on_a_known_connection,
    try_busy,
    acquire_waiting,
    give_up_waiting,
    release,
    break_lock,
    purge,
    inspect,
]
