"""The rules H1, H7 and H8 in the queue of an SQL server: first in, first out, and the dead are passed over."""

from typing import Any

import pytest

from fencelock.protocol import source_requests as ask
from tests.sql.clients import SqlClient
from tests.sql.dialect import SqlDialect
from tests.sql.guarded import Step
from tests.sql.interleaving import LateRequest, holding, wait_until_blocked
from tests.sql.marks import on_mysql
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide

SHORT_MS = 100


def test_h7_first_in_first_out_over_twenty(url: str, client: SqlClient) -> None:
    client.token("lock", "0")
    others = [SqlClient(url) for _ in range(4)]
    for number in range(1, 21):
        assert isinstance(others[number % 4].acquire("lock", str(number), may_wait=True), ask.Queued)
    for number in range(20):
        assert client.release("lock", str(number))
        for later in range(20, number + 1, -1):
            assert isinstance(client.ask(ask.Poll("lock", str(later))), ask.Queued)
        # Not Busy for certain: a claim that is drawn in the moment of a release may count as one that came before it.
        assert not isinstance(client.acquire("lock"), ask.Granted)
        assert isinstance(client.ask(ask.Poll("lock", str(number + 1))), ask.Granted)


@on_mysql
def test_h7_waiters_near_the_front_look_soon(client: SqlClient) -> None:
    """A lock whose turns are short would otherwise change hands only as often as the last in the queue looks."""
    client.token("lock", "holder")
    queued = [client.acquire("lock", f"waiter{number}", may_wait=True) for number in range(60)]
    places = [5 * (1 + number) for number in range(60)]
    # While the first one has to wait for long, nobody looks sooner than it does.
    assert all(place <= reply.wait_ms <= max(place, 250) for place, reply in zip(places, queued, strict=True))


@on_mysql
def test_h7_places_that_others_have_left_count_for_nothing(client: SqlClient) -> None:
    client.token("lock", "holder")
    client.acquire("lock", "first", may_wait=True)
    for number in range(60):
        client.acquire("lock", f"leaver{number}", may_wait=True)
        client.release("lock", f"leaver{number}")
    assert client.acquire("lock", "second", may_wait=True).wait_ms <= 250


def test_h7_the_dead_in_front_are_passed_over(client: SqlClient) -> None:
    client.token("lock", "holder")
    for number in range(5):
        client.acquire("lock", f"dead{number}", ttl_ms=SHORT_MS, may_wait=True)
    client.acquire("lock", "living", may_wait=True)
    client.release("lock", "holder")
    wait_until(lambda: isinstance(client.ask(ask.Poll("lock", "living")), ask.Granted))
    for number in range(5):
        assert client.ask(ask.Poll("lock", f"dead{number}")) == ask.ClaimEnded()


@pytest.mark.parametrize("is_free", [False, True])
@pytest.mark.parametrize("in_front", [(), ("patient",)], ids=["first", "second"])
def test_h8_a_waiter_whose_place_expired_does_not_get_the_lock(
    sql: SqlDialect, client: SqlClient, is_free: bool, in_front: tuple[str, ...]
) -> None:
    client.token("lock", "holder")
    for claim in in_front:
        client.acquire("lock", claim, may_wait=True)
    request = LateRequest(sql, client, "sleeper")
    client.acquire("lock", "sleeper", ttl_ms=SHORT_MS, may_wait=True)
    wait_until(lambda: len(client.ask(ask.Inspect("lock")).waiters) == len(in_front))
    if is_free:
        client.release("lock", "holder")
    for _ in range(2):
        assert client.ask(ask.Poll("lock", "sleeper")) == ask.ClaimEnded()
        assert request.arrive("wait") == ["ended"]


def test_h1_a_waiter_that_slept_inside_the_server_is_judged_by_the_time_when_it_woke(
    sql: SqlDialect, url: str, client: SqlClient, database: Any
) -> None:
    """Its place expired while its poll waited for the row: the clock is read after that."""
    client.token("lock", "holder")
    client.acquire("lock", "sleeper", ttl_ms=SHORT_MS, may_wait=True)
    with holding(sql, database, sql.hold_lock):
        polling = Step(SqlClient(url).ask, ask.Poll("lock", "sleeper"))
        renewing = Step(SqlClient(url).ask, ask.Renew((("lock", "holder"),)))
        wait_until_blocked(sql, database, 2)
        wait_until(lambda: not client.ask(ask.Inspect("lock")).waiters)
    assert polling.end() == ask.ClaimEnded()
    assert set(renewing.end().remaining_ms) == {"holder"}


def test_h1_a_lease_that_expired_while_its_renewal_waited_is_not_renewed(
    sql: SqlDialect, url: str, client: SqlClient, database: Any
) -> None:
    client.token("lock", "holder", ttl_ms=SHORT_MS)
    with holding(sql, database, sql.hold_lock):
        renewing = Step(SqlClient(url).ask, ask.Renew((("lock", "holder"),)))
        wait_until(lambda: sql.blocked(database) == 1 or renewing.is_done())
        wait_until(lambda: not client.ask(ask.Inspect("lock")).is_held)
    assert "expired" in renewing.end().lost["holder"]
