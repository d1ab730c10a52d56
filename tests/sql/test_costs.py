"""What each flow of a source on an SQL server costs, request by request and row by row."""

import itertools
from typing import Any

import pytest

from fencelock._flows import renewal
from fencelock.protocol import source_requests as ask
from tests.sql.clients import SqlClient
from tests.sql.dialect import SqlDialect
from tests.sql.losses import TTL, LossScene, OpenScene, acquire_waiting, hold
from tests.sql.marks import on_mysql, one_version
from tests.support.helpers import DEADLINE_S


def trips(proxy: Any, before: Any) -> int:
    return (proxy.counts - before)["round trips"]


def warm(scene: LossScene) -> None:
    """Have the connection prepare the statements that it repeats."""
    for _ in range(2):
        scene.do(hold(scene))


@one_version
def test_one_round_trip_to_acquire_and_one_to_release(open_scene: OpenScene, proxy: Any) -> None:
    with open_scene() as scene:
        warm(scene)
        before = proxy.counts
        lease = scene.do(scene.lock().acquire())
        assert trips(proxy, before) == 1
        assert scene.do(scene.lock().acquire(blocking=False)) is None
        assert trips(proxy, before) == 2
        scene.do(lease.release())
        assert trips(proxy, before) == 3
        another = scene.do(scene.source.lock("another", ttl=TTL).acquire())
        assert trips(proxy, before) == 4
        del another  # Until here: one that is dropped is released by a trip of the keeper's.


@one_version
def test_h2_a_beat_is_one_round_trip_for_any_number_of_leases(open_scene: OpenScene, proxy: Any) -> None:
    with open_scene() as scene:
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


@pytest.mark.parametrize("open_scene", ["sync"], indirect=True)
@pytest.mark.parametrize("sql_server", ["postgres18"], indirect=True)
def test_a_waiter_asks_once_to_queue_once_more_to_be_sure_and_once_when_notified(
    open_scene: OpenScene, proxy: Any
) -> None:
    with open_scene() as scene:
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


@on_mysql
def test_a_connection_asks_once_what_source_it_is(open_scene: OpenScene, proxy: Any) -> None:
    with open_scene() as scene:
        for _ in range(2):
            scene.do(scene.source.info("lock"))
        asked = [text.partition("(")[0] for request in proxy.requests for text in request.statements]
        assert asked == ["CALL fencelock_describe", "CALL fencelock_inspect", "CALL fencelock_inspect"]


@one_version
def test_h7_a_hand_off_costs_the_same_however_many_wait(sql: SqlDialect, client: SqlClient, database: Any) -> None:
    """Release and the next one's look: two requests, which touch as many rows with 200 waiters as with two."""
    touched = {}
    for waiters in (2, 20, 200):
        lock = f"lock{waiters}"
        queue = [f"{lock}-{number}" for number in range(waiters)]
        client.token(lock, queue[0])
        for claim in queue[1:]:
            assert isinstance(client.acquire(lock, claim, may_wait=True), ask.Queued)
        before = sql.rows_touched(client.native, database)
        client.release(lock, queue[0])
        assert isinstance(client.ask(ask.Poll(lock, queue[1])), ask.Granted)
        touched[waiters] = sql.rows_touched(client.native, database) - before
    assert len(set(touched.values())) == 1, touched


@pytest.mark.parametrize("sql_server", ["postgres18"], indirect=True)
def test_h7_a_release_notifies_the_head_of_the_queue_only(client: SqlClient, database: Any) -> None:
    with database.connect() as listening:
        listening.execute(f"listen {client.store.listener.name}")
        client.one_token()
        client.token("lock", "holder")
        for number in range(3):
            client.acquire("lock", f"waiter{number}", may_wait=True)
        client.release("lock", "holder")
        listening.execute("notify the_end")
        told = list(itertools.islice(listening.notifies(timeout=DEADLINE_S), 1))
        assert len(told) == 1
        assert "waiter" not in told[0].payload, "a claim is never sent"
        assert not list(listening.notifies(timeout=0.1))
