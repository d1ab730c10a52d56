"""Exactly one reply, or exactly one request, is lost: each in turn, of every flow, by the sync and the async source.

A request whose outcome is unknown is asked again under the same claim, so one loss is never seen by a caller, but for
the two that nobody repeats. Whatever was lost, the lock is usable at once, and no token comes twice. The second half
counts what each flow costs, request by request.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

import fencelock
from fencelock import OutcomeUnknownError
from fencelock._flows import renewal
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.postgres.source.store import PostgresSource
from tests.helpers import wait_until
from tests.sql.postgres.clients import Client, Voice
from tests.sql.postgres.fix_postgres import Database, only
from tests.sql.postgres.proxy import Fault, Proxy

pytestmark = only("18")

TTL = 30.0
"""No test outlives it: what is free again was given back, and has not expired."""
MAX_LOST = 100
"""More requests than any flow has."""


@pytest.fixture
def url(database: Database) -> str:
    """Return the address of a source, past the proxy."""
    PostgresSource(database.url()).install()
    return database.url()


class Scene:
    """A source whose requests may be lost, and a referee who has a connection that loses nothing."""

    def __init__(self, kind: str, url: str, proxy: Proxy, database: Database) -> None:
        self.voice = Voice(kind, proxy.url(url))
        self.source = self.voice.source
        self.proxy = proxy
        self.database = database
        self.referee = Client(url)
        self.claim = draw_claim()
        self.tokens: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.voice.__exit__(None, None, None)
        self.referee.close()

    def do(self, said: Any) -> Any:
        return self.voice.do(said)

    def lock(self, timeout: float = 60.0) -> Any:
        return self.source.lock("lock", ttl=TTL, timeout=timeout, holder="actor")

    def note(self, token: int) -> None:
        """A token was told: it is above all that were told before."""
        assert token > max(self.tokens, default=0), f"token {token} came after {self.tokens}"
        self.tokens.append(token)

    def check_usable(self) -> None:
        """Assert that nobody has the lock or waits for it, soon enough, and that it can be taken."""
        wait_until(lambda: not self.info().is_held and not self.info().waiters)
        self.note(self.referee.one_token())

    def info(self) -> fencelock.LockInfo:
        return self.referee.ask(ask.Inspect("lock"))

    def crash(self) -> None:
        """Do to the source what a recovery of the server does: its unlogged table is empty."""
        self.database.rows("truncate fencelock.witness")

    def released_when_waited_for(self) -> threading.Thread:
        """Start a thread in which the referee gives its lease back as soon as somebody waits."""

        def release() -> None:
            wait_until(lambda: self.info().waiters or self.is_over)
            self.referee.release("lock", self.claim)

        self.is_over = False
        thread = threading.Thread(target=release)
        thread.start()
        return thread


# --- the flows ------------------------------------------------------------------------------------
Flow = Callable[[Scene], Iterator[None]]
"""Prepares, yields, acts while something is lost, yields once more, and checks."""


def acquire_free(scene: Scene) -> Iterator[None]:
    yield
    lease = scene.do(scene.lock().acquire())
    yield
    scene.note(lease.token)
    assert scene.info().holder == "actor"
    scene.do(lease.release())


def acquire_and_release_on_a_known_connection(scene: Scene) -> Iterator[None]:
    scene.note(scene.do(hold(scene)))
    yield
    token = scene.do(hold(scene))
    yield
    scene.note(token)


def hold(scene: Scene) -> Any:
    """Acquire and release, and return the token."""
    lock = scene.lock()
    if isinstance(scene.source, fencelock.Source):
        with lock as lease:
            return lease.token

    async def run() -> int:
        async with lock as lease:
            return lease.token

    return run()


def try_busy(scene: Scene) -> Iterator[None]:
    scene.note(scene.referee.token("lock", scene.claim))
    yield
    assert scene.do(scene.lock().acquire(blocking=False)) is None
    yield
    assert scene.info().waiters == ()
    scene.referee.release("lock", scene.claim)


def acquire_waiting(scene: Scene) -> Iterator[None]:
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


def give_up_waiting(scene: Scene) -> Iterator[None]:
    scene.note(scene.referee.token("lock", scene.claim))
    yield
    assert scene.do(scene.lock().acquire(timeout=0.05)) is None
    yield
    assert scene.info().waiters == ()
    scene.referee.release("lock", scene.claim)


def release(scene: Scene) -> Iterator[None]:
    lease = scene.do(scene.lock().acquire())
    scene.note(lease.token)
    yield
    assert scene.do(lease.release())
    yield
    assert not scene.info().is_held


def begin_a_history_after_a_crash(scene: Scene) -> Iterator[None]:
    scene.note(scene.referee.one_token())
    before = scene.referee.describe()
    scene.crash()
    yield
    lease = scene.do(scene.lock().acquire())
    yield
    scene.note(lease.token)
    scene.do(lease.release())
    after = scene.referee.describe()
    assert after.epoch == before.epoch + 1, "one history for one crash"
    assert lease.sequencer.history_id == after.history_id


def break_lock(scene: Scene) -> Iterator[None]:
    scene.note(scene.referee.token("lock", scene.claim))
    yield
    broken = scene.do(scene.source.break_lock("lock", reason="a test"))
    yield
    scene.note(broken.token)
    assert broken.holder == "tester"
    statement = "select token from fencelock.source_audit where action = 'break' and token > %s"
    audited = scene.database.rows(statement, scene.tokens[0])
    assert audited == [(broken.token,)], "it was broken once"


def purge(scene: Scene) -> Iterator[None]:
    for name in ("lock", "b", "c"):
        scene.note(scene.referee.one_token(name))
    yield
    assert scene.do(scene.source.purge()) in {0, 3}, "asked again, it finds nothing left"
    yield
    assert scene.referee.ask(ask.ListLocks(None)) == ()


def inspect(scene: Scene) -> Iterator[None]:
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
    begin_a_history_after_a_crash,
    break_lock,
    purge,
    inspect,
]


def lose(scene: Scene, loss: str, nth: int) -> Fault:
    return scene.proxy.drop_reply(nth) if loss == "reply" else scene.proxy.drop_request(nth)


kinds = pytest.mark.parametrize("kind", ["sync", "async"])
losses = pytest.mark.parametrize("loss", ["reply", "request"])


@losses
@kinds
@pytest.mark.parametrize("flow", REPEATED, ids=lambda flow: flow.__name__)
def test_h5_whatever_is_lost_once_is_asked_again(
    flow: Flow, kind: str, loss: str, url: str, proxy: Proxy, database: Database
) -> None:
    for nth in range(1, MAX_LOST):
        with Scene(kind, url, proxy, database) as scene:
            steps = flow(scene)
            next(steps)
            fault = lose(scene, loss, nth)
            next(steps)
            has_happened = fault.has_happened
            assert next(steps, "done") == "done"
            scene.check_usable()
        if not has_happened:
            assert nth > 1
            return
    pytest.fail("the flow did not end")


# --- what nobody repeats --------------------------------------------------------------------------
@losses
@kinds
def test_raising_the_epoch_says_when_its_outcome_is_unknown(
    kind: str, loss: str, url: str, proxy: Proxy, database: Database
) -> None:
    """What it reads first is asked again; the raise itself is not, and either happened or did not."""
    unknown = []
    for nth in range(1, MAX_LOST):
        with Scene(kind, url, proxy, database) as scene:
            scene.note(scene.referee.token("lock", scene.claim))
            before = scene.referee.describe()
            fault = lose(scene, loss, nth)
            try:
                info = scene.do(scene.source.raise_epoch(reason="a test"))
            except OutcomeUnknownError:
                unknown.append(nth)
                was_raised = loss == "reply"
            else:
                was_raised = True
                assert info == scene.referee.describe()
            assert scene.referee.describe().epoch == before.epoch + was_raised
            assert scene.info().is_held != was_raised
            scene.referee.release("lock", scene.claim)
            scene.check_usable()
            if not fault.has_happened:
                break
    assert unknown == list(range(min(unknown), nth)), "only the last of its requests is not asked again"
    assert min(unknown) > 1


@losses
@kinds
def test_h2_a_lost_renewal_is_doubt_and_the_next_beat_settles_it(
    kind: str, loss: str, url: str, proxy: Proxy, database: Database
) -> None:
    with Scene(kind, url, proxy, database) as scene:
        claims = tuple((f"lock{number}", f"claim{number}") for number in range(5))
        for lock, claim in claims:
            scene.note(scene.referee.token(lock, claim))
        assert not scene.do(scene.source._driver.run(renewal.renew(claims))).reply.lost
        lose(scene, loss, 1)
        with pytest.raises(OutcomeUnknownError):
            scene.do(scene.source._driver.run(renewal.renew(claims)))
        beat = scene.do(scene.source._driver.run(renewal.renew(claims)))
        assert set(beat.reply.remaining_ms) == {claim for _, claim in claims}
        assert not beat.reply.lost


@losses
@kinds
def test_h5_an_acquire_that_gets_no_answer_at_all_leaves_no_orphan(
    kind: str, loss: str, url: str, proxy: Proxy, database: Database
) -> None:
    """It gives up after a few tries; the keeper goes on until the claim is released, long before its ttl."""
    with Scene(kind, url, proxy, database) as scene:
        scene.note(scene.do(hold(scene)))
        faults = [lose(scene, loss, nth) for nth in range(1, 13)]
        with pytest.raises(OutcomeUnknownError):
            scene.do(scene.lock().acquire())
        assert scene.info().is_held == (loss == "reply")
        scene.check_usable()
        wait_until(lambda: all(fault.has_happened for fault in faults))
        scene.do(scene.do(scene.lock().acquire()).release())


# --- what it costs --------------------------------------------------------------------------------
def trips(proxy: Proxy, before: Any) -> int:
    return (proxy.counts - before)["round trips"]


def warm(scene: Scene) -> None:
    """Have the connection prepare the statements that it repeats."""
    for _ in range(2):
        scene.do(hold(scene))


@kinds
def test_one_round_trip_to_acquire_and_one_to_release(kind: str, url: str, proxy: Proxy, database: Database) -> None:
    with Scene(kind, url, proxy, database) as scene:
        warm(scene)
        before = proxy.counts
        lease = scene.do(scene.lock().acquire())
        assert trips(proxy, before) == 1
        assert scene.do(scene.lock().acquire(blocking=False)) is None
        assert trips(proxy, before) == 2
        scene.do(lease.release())
        assert trips(proxy, before) == 3
        scene.do(scene.source.lock("another", ttl=TTL).acquire())
        assert trips(proxy, before) == 4


@kinds
def test_h2_a_beat_is_one_round_trip_for_any_number_of_leases(
    kind: str, url: str, proxy: Proxy, database: Database
) -> None:
    with Scene(kind, url, proxy, database) as scene:
        counted = []
        for count in (1, 1, 10, 500):
            leases = tuple((f"lock{number}", f"claim{count}-{number}-{len(counted)}") for number in range(count))
            for lease in leases:
                scene.referee.token(*lease)
            before = proxy.counts
            beat = scene.do(scene.source._driver.run(renewal.renew(leases)))
            assert len(beat.reply.remaining_ms) == count
            counted.append(trips(proxy, before))
            for lease in leases:
                scene.referee.release(*lease)
        assert counted[1:] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["sync"])
def test_a_waiter_asks_once_to_queue_once_more_to_be_sure_and_once_when_told(
    kind: str, url: str, proxy: Proxy, database: Database
) -> None:
    with Scene(kind, url, proxy, database) as scene:
        # The listening connection is there already, and so are the prepared statements.
        for _ in range(3):
            for step in acquire_waiting(scene):
                assert step is None
        scene.note(scene.referee.token("lock", scene.claim))
        before = proxy.counts
        releasing = scene.released_when_waited_for()
        lease = scene.do(scene.lock().acquire())
        releasing.join()
        assert trips(proxy, before) in {2, 3}, "two when the release came before the second look"
        scene.note(lease.token)


READ_ROWS = """
    select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) + n_tup_ins + n_tup_upd + n_tup_del)
    from pg_stat_user_tables where schemaname = 'fencelock'
"""


def test_h7_a_hand_off_costs_the_same_however_many_wait(url: str, database: Database) -> None:
    """Release and the next one's look: two statements, which touch as many rows with 200 waiters as with two."""
    client = Client(url)
    touched = {}
    for waiters in (2, 20, 200):
        lock = f"lock{waiters}"
        queue = [f"{lock}-{number}" for number in range(waiters)]
        client.token(lock, queue[0])
        for claim in queue[1:]:
            assert isinstance(client.acquire(lock, claim, may_wait=True), ask.Queued)
        before = rows_touched(client, database)
        client.release(lock, queue[0])
        assert isinstance(client.ask(ask.Poll(lock, queue[1])), ask.Granted)
        touched[waiters] = rows_touched(client, database) - before
    assert len(set(touched.values())) == 1, touched
    client.close()


def rows_touched(client: Client, database: Database) -> int:
    """Return how many rows of fencelock's tables were read or written until now."""
    assert client.connection._native is not None
    client.connection._native.execute("select pg_stat_force_next_flush()")
    return int(database.value(READ_ROWS))


def test_h7_a_release_tells_the_head_of_the_queue_and_nobody_else(url: str, database: Database) -> None:
    client = Client(url)
    with database.connect() as listening:
        listening.execute(f"listen {client.store.listener.name}")
        client.one_token()
        client.token("lock", "holder")
        for number in range(3):
            client.acquire("lock", f"waiter{number}", may_wait=True)
        client.release("lock", "holder")
        listening.execute("notify the_end")
        told = list(itertools.islice(listening.notifies(timeout=1.0), 1))
        assert len(told) == 1
        assert "waiter" not in told[0].payload, "a claim is never sent"
        assert not list(listening.notifies(timeout=0.1))
    client.close()
