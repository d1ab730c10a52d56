"""Exactly one reply, or exactly one request, is lost: each in turn, of every flow, by the sync and the async source.

The flows, and what they must leave behind, are those of PostgreSQL's tests. The second half counts what each flow
costs, request by request.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from fencelock import OutcomeUnknownError
from fencelock._flows import renewal
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from tests.helpers import wait_until
from tests.sql.mysql.clients import Client
from tests.sql.mysql.fix_mysql import Database
from tests.sql.mysql.proxy import MySQLProxy
from tests.sql.postgres import test_dropped_replies as flows
from tests.sql.postgres.clients import Voice
from tests.sql.postgres.test_dropped_replies import MAX_LOST, TTL, Flow, hold, kinds, lose, losses, trips


class Scene(flows.Scene):
    """A source whose requests may be lost, and a referee who has a connection that loses nothing."""

    def __init__(self, kind: str, url: str, proxy: MySQLProxy, database: Database) -> None:
        self.voice = Voice(kind, proxy.url(url))
        self.source = self.voice.source
        self.proxy = proxy
        self.database = database
        self.referee = Client(url)
        self.claim = draw_claim()
        self.tokens: list[int] = []


def break_lock(scene: Scene) -> Iterator[None]:
    scene.note(scene.referee.token("lock", scene.claim))
    yield
    broken = scene.do(scene.source.break_lock("lock", reason="a test"))
    yield
    scene.note(broken.token)
    assert broken.holder == "tester"
    statement = "select token from fencelock_source_audit where what = 'break' and token > %s"
    audited = scene.database.rows(statement, scene.tokens[0])
    assert audited == [(broken.token,)], "it was broken once"


REPEATED: list[Flow] = [
    flows.acquire_free,
    flows.acquire_and_release_on_a_known_connection,
    flows.try_busy,
    flows.acquire_waiting,
    flows.give_up_waiting,
    flows.release,
    break_lock,
    flows.purge,
    flows.inspect,
]


@losses
@kinds
@pytest.mark.parametrize("flow", REPEATED, ids=lambda flow: flow.__name__)
def test_h5_whatever_is_lost_once_is_asked_again(
    flow: Flow, kind: str, loss: str, mysql_url: str, mysql_proxy: MySQLProxy, mysql_database: Database
) -> None:
    for nth in range(1, MAX_LOST):
        with Scene(kind, mysql_url, mysql_proxy, mysql_database) as scene:
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


@losses
@kinds
def test_raising_the_epoch_says_when_its_outcome_is_unknown(
    kind: str, loss: str, mysql_url: str, mysql_proxy: MySQLProxy, mysql_database: Database
) -> None:
    """What it reads first is asked again; the raise itself is not, and either happened or did not."""
    unknown = []
    for nth in range(1, MAX_LOST):
        with Scene(kind, mysql_url, mysql_proxy, mysql_database) as scene:
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
    kind: str, loss: str, mysql_url: str, mysql_proxy: MySQLProxy, mysql_database: Database
) -> None:
    with Scene(kind, mysql_url, mysql_proxy, mysql_database) as scene:
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
    kind: str, loss: str, mysql_url: str, mysql_proxy: MySQLProxy, mysql_database: Database
) -> None:
    """It gives up after a few tries; the keeper goes on until the claim is released, long before its ttl."""
    with Scene(kind, mysql_url, mysql_proxy, mysql_database) as scene:
        scene.note(scene.do(hold(scene)))
        faults = [lose(scene, loss, nth) for nth in range(1, 13)]
        with pytest.raises(OutcomeUnknownError):
            scene.do(scene.lock().acquire())
        assert scene.info().is_held == (loss == "reply")
        scene.check_usable()
        wait_until(lambda: all(fault.has_happened for fault in faults))
        scene.do(scene.do(scene.lock().acquire()).release())


# --- what it costs --------------------------------------------------------------------------------
@kinds
def test_one_round_trip_to_acquire_and_one_to_release(
    kind: str, mysql_url: str, mysql_proxy: MySQLProxy, mysql_database: Database
) -> None:
    with Scene(kind, mysql_url, mysql_proxy, mysql_database) as scene:
        flows.warm(scene)
        before = mysql_proxy.counts
        lease = scene.do(scene.lock().acquire())
        assert trips(mysql_proxy, before) == 1
        assert scene.do(scene.lock().acquire(blocking=False)) is None
        assert trips(mysql_proxy, before) == 2
        scene.do(lease.release())
        assert trips(mysql_proxy, before) == 3
        scene.do(scene.source.lock("another", ttl=TTL).acquire())
        assert trips(mysql_proxy, before) == 4


@kinds
def test_a_connection_asks_once_what_source_it_is(
    kind: str, mysql_url: str, mysql_proxy: MySQLProxy, mysql_database: Database
) -> None:
    with Scene(kind, mysql_url, mysql_proxy, mysql_database) as scene:
        for _ in range(2):
            scene.do(scene.source.info("lock"))
        asked = [text.partition("(")[0] for request in mysql_proxy.requests for text in request.statements]
        assert asked == ["CALL fencelock_describe", "CALL fencelock_inspect", "CALL fencelock_inspect"]


@kinds
def test_h2_a_beat_is_one_round_trip_for_any_number_of_leases(
    kind: str, mysql_url: str, mysql_proxy: MySQLProxy, mysql_database: Database
) -> None:
    with Scene(kind, mysql_url, mysql_proxy, mysql_database) as scene:
        counted = []
        for count in (1, 1, 10, 500):
            leases = tuple((f"lock{number}", f"claim{count}-{number}-{len(counted)}") for number in range(count))
            for lease in leases:
                scene.referee.token(*lease)
            before = mysql_proxy.counts
            beat = scene.do(scene.source._driver.run(renewal.renew(leases)))
            assert len(beat.reply.remaining_ms) == count
            counted.append(trips(mysql_proxy, before))
            for lease in leases:
                scene.referee.release(*lease)
        assert counted[1:] == [1, 1, 1]


READ_ROWS = """
    select sum(variable_value) from information_schema.session_status
    where variable_name in ('Handler_read_key', 'Handler_read_next', 'Handler_read_first', 'Handler_read_rnd_next',
                            'Handler_read_prev', 'Handler_write', 'Handler_update', 'Handler_delete')
"""


def test_h7_a_hand_off_costs_the_same_however_many_wait(mysql_url: str) -> None:
    """Release and the next one's look: two calls, which touch as many rows with 200 waiters as with two."""
    client = Client(mysql_url)
    touched = {}
    for waiters in (2, 20, 200):
        lock = f"lock{waiters}"
        queue = [f"{lock}-{number}" for number in range(waiters)]
        client.token(lock, queue[0])
        for claim in queue[1:]:
            assert isinstance(client.acquire(lock, claim, may_wait=True), ask.Queued)
        before = _rows_touched(client)
        client.release(lock, queue[0])
        assert isinstance(client.ask(ask.Poll(lock, queue[1])), ask.Granted)
        touched[waiters] = _rows_touched(client) - before
    assert len(set(touched.values())) == 1, touched
    client.close()


def _rows_touched(client: Client) -> int:
    """Return how many rows this connection has read or written until now."""
    native: Any = client.connection._native
    with native.cursor() as cursor:
        cursor.execute("flush local status")
        cursor.execute(READ_ROWS)
        return int(cursor.fetchone()[0])
