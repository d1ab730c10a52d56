"""The rule H4 on an SQL server, by interleaving: two connections and more, stepped one statement at a time.

Nothing here guesses by sleeping: a step waits inside the server until the test lets it go on.
"""

from collections.abc import Callable
from typing import Any

import pytest

from fencelock import OutcomeUnknownError
from fencelock.clock import boottime_us
from fencelock.model import digest_of_claim, draw_claim
from fencelock.protocol import source_requests as ask
from tests.rules.test_claims import ENDS
from tests.sql.clients import SqlClient
from tests.sql.dialect import SqlDialect, run
from tests.sql.guarded import Step
from tests.sql.interleaving import LateRequest, holding, purging, wait_until_blocked
from tests.sql.marks import one_version
from tests.support.helpers import wait_until
from tests.support.leaders import Leaders, brief_pauses  # noqa: F401 - a fixture of the class
from tests.support.losses_at_release import LossesAtRelease

pytestmark = pytest.mark.server_wide

YEAR_US = 31_556_952_000_000


# --- what is shown of a lease's end ---------------------------------------------------------------
@one_version
def test_h1_a_lock_that_is_shown_as_free_can_be_taken(client: SqlClient) -> None:
    client.check_free_is_free()


# --- H4: a claim is granted once ------------------------------------------------------------------
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("is_fresh", [False, True], ids=["same process", "new process"])
@one_version
def test_h4_claim_that_ended_is_never_granted_again(
    sql: SqlDialect, url: str, client: SqlClient, end: Callable[[SqlClient], None], is_fresh: bool
) -> None:
    client.one_token("another")
    request = LateRequest(sql, client, "claim")
    end(client)
    late = SqlClient(url) if is_fresh else client
    before = late.describe()
    assert request.arrive("try", "wait") == ["ended", "ended"]
    assert late.ask(ask.Poll("lock", "claim")) == ask.ClaimEnded()
    assert "claim" in late.ask(ask.Renew((("lock", "claim"),))).lost
    late.release("lock", "claim")
    assert late.describe() == before
    assert late.ask(ask.Inspect("lock")).waiters == ()
    assert late.token() > before.last_token
    late.close()


def test_h4_an_acquire_that_was_given_up_inside_the_server_is_ended_by_its_release(
    sql: SqlDialect, url: str, client: SqlClient, database: Any
) -> None:
    """It waits for the row; its client goes; the release comes behind it, and both get their turn."""
    client.one_token()
    for may_wait in (False, True):
        claim = draw_claim()
        with holding(sql, database, sql.hold_lock):
            hasty = sql.impatient(url)
            with pytest.raises(OutcomeUnknownError):
                hasty.acquire("lock", claim, may_wait=may_wait)
            hasty.close()
            wait_until_blocked(sql, database, 1)
            repeated = Step(SqlClient(url).acquire, "lock", claim, may_wait=may_wait)
            wait_until_blocked(sql, database, 2)
            released = Step(client.release, "lock", claim)
            wait_until_blocked(sql, database, 3)
        assert isinstance(repeated.end(), ask.Granted | ask.ClaimEnded)
        released.end()
        assert not client.ask(ask.Inspect("lock")).is_held
        assert SqlClient(url).acquire("lock", claim, may_wait=may_wait) == ask.ClaimEnded()
        client.one_token()


def test_h4_a_request_and_its_repetition_get_one_token(
    sql: SqlDialect, url: str, client: SqlClient, database: Any
) -> None:
    client.one_token()
    request = LateRequest(sql, client, "claim")
    with holding(sql, database, sql.hold_lock):
        pair = [Step(request.arrive), Step(request.arrive)]
        wait_until_blocked(sql, database, 2)
    assert sorted(asked.end() for asked in pair) == [["granted"], ["held"]]
    assert client.release("lock", "claim")


def test_t4_of_many_acquires_that_wait_for_a_free_row_one_is_granted(
    sql: SqlDialect, url: str, client: SqlClient, database: Any
) -> None:
    """All have seen the lock free, and drawn a token, when the first of them gets the row."""
    last = client.one_token()
    clients = [SqlClient(url) for _ in range(6)]
    for each in clients:
        each.describe()
    with holding(sql, database, sql.hold_lock):
        asked = [Step(each.acquire, "lock", draw_claim(), may_wait=True) for each in clients]
        wait_until_blocked(sql, database, len(clients))
    replies = [each.end() for each in asked]
    [granted] = [reply for reply in replies if isinstance(reply, ask.Granted)]
    assert granted.token > last
    assert sum(isinstance(reply, ask.Queued) for reply in replies) == len(clients) - 1
    assert len(client.ask(ask.Inspect("lock")).waiters) == len(clients) - 1


@pytest.mark.parametrize("may_wait", [False, True])
def test_h4_an_acquire_that_arrives_after_its_release_is_refused(
    sql: SqlDialect, url: str, client: SqlClient, proxy: Any, database: Any, may_wait: bool
) -> None:
    """It hangs in the network while its client goes on: repeats it, releases, and lets others come and go."""
    client.one_token()
    claim = draw_claim()
    hasty = SqlClient(proxy.url(url))
    hasty.describe()
    hasty.one_token("another")  # PostgreSQL's client has prepared the statements by now.
    hasty.connection._request_timeout_s = 0.1
    number = sql.number_of(hasty.native)
    born_us = boottime_us()
    fault = proxy.hold_request()
    with pytest.raises(OutcomeUnknownError):
        hasty.acquire("lock", claim, may_wait=may_wait, born_us=born_us)
    fault.wait()
    assert isinstance(client.acquire("lock", claim, born_us=born_us), ask.Granted | ask.ClaimEnded)
    client.release("lock", claim)
    for _ in range(3):
        client.one_token()
    before = client.describe()
    arrivals = sql.arrivals(database, proxy)
    fault.release()
    wait_until(lambda: sql.arrivals(database, proxy) > arrivals)
    sql.wait_for_abandoned(database, number)
    assert client.describe() == before
    assert not client.ask(ask.Inspect("lock")).is_held
    assert client.ask(ask.Inspect("lock")).waiters == ()


def test_h4_a_claim_that_ends_while_a_purge_is_under_way_is_not_forgotten(
    sql: SqlDialect, url: str, client: SqlClient, database: Any
) -> None:
    """The purge stands in its middle; a claim is drawn, granted and released, or waits for the purge to end."""
    client.one_token()
    with holding(sql, database, sql.hold_source):
        purge = Step(client.ask, ask.Purge())
        wait_until_blocked(sql, database, 1)
        other = SqlClient(url)
        request = LateRequest(sql, other, "claim")
        arriving = Step(request.arrive)
        wait_until(lambda: arriving.is_done() or sql.blocked(database) == 2)
        if has_ended := arriving.is_done():
            assert other.release("lock", "claim")
    assert purge.end() == 1
    if not has_ended and arriving.end() == ["granted"]:
        assert other.release("lock", "claim")
    assert request.arrive() == ["ended"]


def test_h4_a_lock_that_is_purged_under_a_waiting_acquire_is_made_anew(
    sql: SqlDialect, url: str, client: SqlClient, database: Any
) -> None:
    last = client.one_token()
    request = LateRequest(sql, client, "ended before")
    client.token("lock", "ended before")
    client.release("lock", "ended before")
    with purging(sql, database, client) as waiting:
        late, fresh = Step(request.arrive), Step(SqlClient(url).token)
        wait_until_blocked(sql, database, waiting + 2)
    assert late.end() == ["ended"]
    assert fresh.end() > last


# --- H4: what any account may send ----------------------------------------------------------------
SENT = {
    "release": "{call}release('lock', 'sent', {us})",
    "acquire": "{call}acquire('lock', '{digest}', 'x', {ttl_ms}, {us}, 'try', {tail})",
    "wait": "{call}acquire('lock', '{digest}', 'x', {ttl_ms}, {us}, 'wait', {tail})",
}
"""Calls for which an account needs no more than every holder has."""


def send(sql: SqlDialect, database: Any, call: str, **named: int) -> None:
    """Make a call as any client of any language may."""
    with sql.session(database.url()) as native:
        run(native, SENT[call].format(call=sql.call, tail=sql.acquire_tail, digest=digest_of_claim("sent"), **named))


@pytest.mark.parametrize("far_us", [2**63 - 1, 2**63 - 2, 2**62])
@one_version
def test_h4_no_account_spoils_a_lock_by_a_time_that_no_claim_is_drawn_after(
    sql: SqlDialect, url: str, client: SqlClient, database: Any, far_us: int
) -> None:
    """A purge once made it the time of all locks."""
    client.one_token()
    for call in SENT:
        with pytest.raises(sql.invalid_parameter, match="thousand years"):
            send(sql, database, call, us=far_us, ttl_ms=1000)
    assert client.describe() == SqlClient(url).describe()
    SqlClient(url).one_token()
    assert client.ask(ask.Purge()) == 1
    SqlClient(url).one_token("another")


@pytest.mark.parametrize("call", ["acquire", "release"])
@one_version
def test_h4_a_lock_whose_time_is_centuries_ahead_is_granted_at_the_second_try(
    sql: SqlDialect, url: str, client: SqlClient, database: Any, call: str
) -> None:
    client.one_token()
    ahead_us = database.value(sql.now_us) + 999 * YEAR_US
    send(sql, database, call, us=ahead_us, ttl_ms=1000)
    send(sql, database, "release", us=0)
    late = LateRequest(sql, client, "late")
    client.release("lock", "late")
    for _ in range(3):
        client.one_token()
        SqlClient(url).one_token()
        assert late.arrive("try", "wait") == ["ended", "ended"]


@pytest.mark.parametrize("call", ["acquire", "wait"])
@one_version
def test_no_account_spoils_a_lock_by_a_ttl_that_cannot_be_counted(
    sql: SqlDialect, url: str, client: SqlClient, database: Any, call: str
) -> None:
    """Nor a waiter: the holder's release looks at the queue, and once failed by it."""
    client.token("lock" if call == "wait" else "another", "holder")
    now_us = database.value(sql.now_us)
    limit_ms = client.store.capabilities.ttl_max_ms
    for ttl_ms in ((2**63 - 1 - now_us) // 1000 - 1000, limit_ms + 1, -1):
        with pytest.raises(sql.check_violation, match="ttl_is_a_day_at_most"):
            send(sql, database, call, us=now_us, ttl_ms=ttl_ms)
    client.release("lock", "holder")
    SqlClient(url).token(ttl_ms=limit_ms)


@one_version
class TestLeaders(Leaders):
    @pytest.fixture
    def installed_url(self, url: str) -> str:
        return url


@one_version
class TestLossesAtRelease(LossesAtRelease):
    @pytest.fixture
    def installed_url(self, url: str) -> str:
        return url
