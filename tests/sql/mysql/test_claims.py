"""The rules H4, H7 and H8 in MySQL, interleaving by interleaving: two connections and more, stepped one statement
at a time, and a server whose clock jumps.

A side transaction holds still what a statement needs, so that this one waits inside the server; what happens meanwhile
is the test's choice. Nothing here guesses by sleeping.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest

import fencelock
from fencelock import OutcomeUnknownError
from fencelock.clock import boottime_us
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.mysql.connection.client import FORKS, open_connection
from fencelock.stores.mysql.connection.url import parse_url
from fencelock.stores.mysql.source.codec import SQL
from fencelock.stores.mysql.source.store import MySQLSource
from tests.helpers import wait_until
from tests.rules.test_claims import ENDS
from tests.sources import LONG_MS
from tests.sql.fix_faketime import ClockedServer
from tests.sql.mysql.clients import Client
from tests.sql.mysql.fix_mysql import Database
from tests.sql.mysql.proxy import MySQLProxy as Proxy
from tests.sql.postgres.test_claims import SHORT_MS, YEAR_US, Asked, check_ended, end_claim

HOUR_S = 3600


@pytest.fixture
def url(mysql_url: str) -> str:
    return mysql_url


@pytest.fixture
def database(mysql_database: Database) -> Database:
    return mysql_database


@pytest.fixture
def proxy(mysql_proxy: Proxy) -> Proxy:
    return mysql_proxy


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    client = Client(url)
    yield client
    client.close()


@contextmanager
def holding(database: Database, statement: str) -> Iterator[None]:
    """Run a statement in a transaction that stays open for the block."""
    side = open_connection(parse_url(database.url()), 10.0)
    try:
        with side.cursor() as cursor:
            cursor.execute("begin")
            cursor.execute(statement)
        yield
        side.commit()
    finally:
        FORKS.close(side)


HOLD_LOCK = "select 1 from fencelock_lock where name = 'lock' for update"
CALLS = "select variable_value from information_schema.global_status where variable_name = 'com_call_procedure'"
ROWS_WAITED_FOR = (
    "select variable_value from information_schema.global_status where variable_name = 'innodb_row_lock_current_waits'"
)
"""Not `innodb_trx`, which shows the same again to whoever looks more often than ten times a second."""
HOLD_SOURCE = "select 1 from fencelock_source for update"


def blocked(database: Database) -> int:
    """Return how many statements wait inside the server for what another transaction holds."""
    return int(database.value(ROWS_WAITED_FOR))


def wait_until_blocked(database: Database, count: int) -> None:
    wait_until(lambda: blocked(database) == count)


class LateRequest:
    """An acquire that was sent now, and reaches the server whenever the test says, and as often."""

    def __init__(self, client: Client, claim: str) -> None:
        client.describe()
        self._url = client.url
        born_us = client.store.identity.clock.at(boottime_us())
        self._parameters = (b"lock", claim, "late", LONG_MS, born_us)
        self._seen = client.store.identity.seen

    def arrive(self, *modes: str) -> list[str]:
        """Return the outcomes that it has now."""
        connection = open_connection(parse_url(self._url), 10.0)
        try:
            return [self._outcome(connection, mode) for mode in modes or ("try",)]
        finally:
            FORKS.close(connection)

    def _outcome(self, connection: Any, mode: str) -> str:
        assert self._seen is not None
        with connection.cursor() as cursor:
            cursor.execute(SQL.acquire, (*self._parameters, mode, 1000, self._seen.epoch, self._seen.history_id))
            return str(cursor.fetchone()[0])


# --- what is shown of a lease's end ---------------------------------------------------------------
def test_h1_a_lock_that_is_shown_as_free_can_be_taken(client: Client) -> None:
    client.check_free_is_free()


# --- H4: a claim is granted once ------------------------------------------------------------------
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("is_fresh", [False, True], ids=["same process", "new process"])
def test_h4_claim_that_ended_is_never_granted_again(
    url: str, client: Client, end: Callable[[Client], None], is_fresh: bool
) -> None:
    client.one_token("another")
    request = LateRequest(client, "claim")
    end(client)
    late = Client(url) if is_fresh else client
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
    url: str, client: Client, database: Database
) -> None:
    """It waits for the row; its client goes; the release comes behind it, and both get their turn."""
    client.one_token()
    for may_wait in (False, True):
        claim = draw_claim()
        with holding(database, HOLD_LOCK):
            hasty = Client(url, request_timeout_s=30.0)
            hasty.describe()
            hasty.connection._request_timeout_s = 0.1  # The server goes on for longer.
            with pytest.raises(OutcomeUnknownError):
                hasty.acquire("lock", claim, may_wait=may_wait)
            hasty.close()
            wait_until_blocked(database, 1)
            repeated = Asked(Client(url).acquire, "lock", claim, may_wait=may_wait)
            wait_until_blocked(database, 2)
            released = Asked(client.release, "lock", claim)
            wait_until_blocked(database, 3)
        assert isinstance(repeated.reply(), ask.Granted | ask.ClaimEnded)
        released.reply()
        assert not client.ask(ask.Inspect("lock")).is_held
        assert Client(url).acquire("lock", claim, may_wait=may_wait) == ask.ClaimEnded()
        client.one_token()


def test_h4_a_request_and_its_repetition_get_one_token(url: str, client: Client, database: Database) -> None:
    client.one_token()
    request = LateRequest(client, "claim")
    with holding(database, HOLD_LOCK):
        pair = [Asked(request.arrive), Asked(request.arrive)]
        wait_until_blocked(database, 2)
    assert sorted(asked.reply() for asked in pair) == [["granted"], ["held"]]
    assert client.release("lock", "claim")


def test_t4_of_many_who_wait_for_a_free_row_one_is_granted(url: str, client: Client, database: Database) -> None:
    """All have seen the lock free, and drawn a token, when the first of them gets the row."""
    last = client.one_token()
    clients = [Client(url) for _ in range(6)]
    for each in clients:
        each.describe()
    with holding(database, HOLD_LOCK):
        asked = [Asked(each.acquire, "lock", draw_claim(), may_wait=True) for each in clients]
        wait_until_blocked(database, len(clients))
    replies = [each.reply() for each in asked]
    [granted] = [reply for reply in replies if isinstance(reply, ask.Granted)]
    assert granted.token > last
    assert sum(isinstance(reply, ask.Queued) for reply in replies) == len(clients) - 1
    assert len(client.ask(ask.Inspect("lock")).waiters) == len(clients) - 1


@pytest.mark.parametrize("may_wait", [False, True])
def test_h4_an_acquire_that_arrives_after_its_release_is_refused(
    url: str, client: Client, proxy: Proxy, database: Database, may_wait: bool
) -> None:
    """It hangs in the network while its client goes on: repeats it, releases, and lets others come and go."""
    client.one_token()
    claim = draw_claim()
    hasty = Client(proxy.url(url), request_timeout_s=0.5)
    hasty.describe()
    hasty.one_token("another")
    assert hasty.connection._native is not None
    number = hasty.connection._native.thread_id()
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
    calls = int(database.value(CALLS))
    fault.release()
    # It is under way in the server, which finds at its end that nobody is there to hear of it.
    wait_until(lambda: int(database.value(CALLS)) > calls)
    wait_until(lambda: database.value("select count(*) from information_schema.processlist where id = %s", number) == 0)
    assert client.describe() == before
    assert not client.ask(ask.Inspect("lock")).is_held
    assert client.ask(ask.Inspect("lock")).waiters == ()


def test_h4_a_claim_that_ends_while_a_purge_is_under_way_is_not_forgotten(
    url: str, client: Client, database: Database
) -> None:
    """The purge stands in its middle; a claim is drawn, granted and released, or waits for the purge to end."""
    client.one_token()
    with holding(database, HOLD_SOURCE):
        purging = Asked(client.ask, ask.Purge())
        wait_until_blocked(database, 1)
        other = Client(url)
        request = LateRequest(other, "claim")
        arriving = Asked(request.arrive)
        wait_until(lambda: not arriving.is_alive() or blocked(database) == 2)
        if has_ended := not arriving.is_alive():
            assert other.release("lock", "claim")
    assert purging.reply() == 1
    if not has_ended and arriving.reply() == ["granted"]:
        assert other.release("lock", "claim")
    assert request.arrive() == ["ended"]


def test_h4_a_lock_that_is_purged_under_a_waiting_acquire_is_made_anew(
    url: str, client: Client, database: Database
) -> None:
    last = client.one_token()
    request = LateRequest(client, "ended before")
    client.token("lock", "ended before")
    client.release("lock", "ended before")
    with holding(database, HOLD_SOURCE):
        purging = Asked(client.ask, ask.Purge())
        wait_until_blocked(database, 1)
        late, fresh = Asked(request.arrive), Asked(Client(url).token)
        wait_until_blocked(database, 3)
    assert purging.reply() == 1
    assert late.reply() == ["ended"]
    assert fresh.reply() > last


# --- H4: what any account may send -----------------------------------------------------------------
SENT = {
    "release": "call fencelock_release('lock', 'sent', {us})",
    "acquire": "call fencelock_acquire('lock', 'sent', 'x', {ttl_ms}, {us}, 'try', 1000, 0, '')",
    "wait": "call fencelock_acquire('lock', 'sent', 'x', {ttl_ms}, {us}, 'wait', 1000, 0, '')",
}
"""Calls for which an account needs no more than every holder has."""
NOW_US = "select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))"
TTL_LIMIT_MS = MySQLSource.capabilities.ttl_max_ms


def send(database: Database, call: str, **named: int) -> None:
    """Make a call as any client of any language may."""
    connection = open_connection(parse_url(database.url()), 10.0)
    try:
        with connection.cursor() as cursor:
            cursor.execute(SENT[call].format(**named))
    finally:
        FORKS.close(connection)


@pytest.mark.parametrize("far_us", [2**63 - 1, 2**63 - 2, 2**62])
def test_h4_no_account_spoils_a_lock_by_a_time_that_no_claim_is_drawn_after(
    url: str, client: Client, database: Database, far_us: int
) -> None:
    """A purge made it all locks' time."""
    client.one_token()
    for call in SENT:
        with pytest.raises(pymysql.Error, match="thousand years"):
            send(database, call, us=far_us, ttl_ms=1000)
    assert client.describe() == Client(url).describe()
    Client(url).one_token()
    assert client.ask(ask.Purge()) == 1
    Client(url).one_token("another")


@pytest.mark.parametrize("call", ["acquire", "release"])
def test_h4_a_lock_whose_time_is_centuries_ahead_is_had_at_the_second_try(
    url: str, client: Client, database: Database, call: str
) -> None:
    client.one_token()
    ahead_us = database.value(NOW_US) + 999 * YEAR_US
    send(database, call, us=ahead_us, ttl_ms=1000)
    send(database, "release", us=0)
    late = LateRequest(client, "late")
    client.release("lock", "late")
    for _ in range(3):
        client.one_token()
        Client(url).one_token()
        assert late.arrive("try", "wait") == ["ended", "ended"]


@pytest.mark.parametrize("call", ["acquire", "wait"])
def test_no_account_spoils_a_lock_by_a_ttl_that_cannot_be_counted(
    url: str, client: Client, database: Database, call: str
) -> None:
    """Nor a waiter: the holder's release looks at the queue, and failed by it."""
    client.token("lock" if call == "wait" else "another", "holder")
    now_us = database.value(NOW_US)
    for ttl_ms in ((2**63 - 1 - now_us) // 1000 - 1000, TTL_LIMIT_MS + 1, -1):
        with pytest.raises(pymysql.Error, match="ttl_is_a_day_at_most"):
            send(database, call, us=now_us, ttl_ms=ttl_ms)
    client.release("lock", "holder")
    Client(url).token(ttl_ms=TTL_LIMIT_MS)


# --- T7: nobody slips through a raise -------------------------------------------------------------
@pytest.mark.parametrize("lock", ["lock", "a new lock"])
def test_t7_a_grant_that_a_raise_has_to_wait_for_is_ended_by_it(
    url: str, client: Client, database: Database, lock: str
) -> None:
    """It has decided, and waits for its token, when the raise comes: it gets its token first."""
    last = client.one_token()
    before = client.describe()
    with holding(database, HOLD_SOURCE):
        granting = Asked(Client(url).token, lock, "slow")
        wait_until_blocked(database, 1)
        raising = Asked(Client(url).raise_epoch)
        wait_until_blocked(database, 2)
    assert granting.reply() == last + 1
    after = raising.reply()
    assert after.epoch == before.epoch + 1
    assert not client.ask(ask.Inspect(lock)).is_held
    assert "epoch was raised: a test" in client.ask(ask.Renew(((lock, "slow"),))).lost["slow"]


@pytest.mark.parametrize("lock", ["lock", "a new lock"])
def test_t7_a_grant_that_waits_for_a_raise_is_of_the_new_history(
    url: str, client: Client, database: Database, lock: str
) -> None:
    """It has decided in the old history, and waits for its token; the raise is before it."""
    client.one_token()
    with holding(database, HOLD_SOURCE):
        raising = Asked(Client(url).raise_epoch)
        wait_until_blocked(database, 1)
        waiting = Asked(Client(url).token, lock)
        wait_until_blocked(database, 2)
    assert raising.reply().epoch == 2
    assert waiting.reply() > 2**40
    assert client.describe().epoch == 2


def test_t7_who_waited_in_the_old_epoch_waits_no_more(url: str, client: Client) -> None:
    client.token("lock", "holder")
    for number in range(3):
        client.acquire("lock", f"waiter{number}", may_wait=True)
    client.raise_epoch()
    assert client.ask(ask.Inspect("lock")).waiters == ()
    assert client.token() > 2**40
    for number in range(3):
        assert client.ask(ask.Poll("lock", f"waiter{number}")) == ask.ClaimEnded()


# --- H7, H8: the queue ----------------------------------------------------------------------------
def test_h7_first_in_first_out_over_twenty(url: str, client: Client) -> None:
    client.token("lock", "0")
    others = [Client(url) for _ in range(4)]
    for number in range(1, 21):
        assert isinstance(others[number % 4].acquire("lock", str(number), may_wait=True), ask.Queued)
    for number in range(20):
        assert client.release("lock", str(number))
        for later in range(20, number + 1, -1):
            assert isinstance(client.ask(ask.Poll("lock", str(later))), ask.Queued)
        assert client.acquire("lock") == ask.Busy()
        assert isinstance(client.ask(ask.Poll("lock", str(number + 1))), ask.Granted)


def test_h7_whoever_is_near_the_front_looks_soon(client: Client) -> None:
    """A lock whose turns are short would otherwise change hands only as often as the last in the queue looks."""
    client.token("lock", "holder")
    queued = [client.acquire("lock", f"waiter{number}", may_wait=True) for number in range(60)]
    places = [5 * (1 + number) for number in range(60)]
    # While the first one has to wait for long, nobody looks sooner than it does.
    assert all(place <= reply.wait_ms <= max(place, 250) for place, reply in zip(places, queued, strict=True))


def test_h7_places_that_others_have_left_count_for_nothing(client: Client) -> None:
    client.token("lock", "holder")
    client.acquire("lock", "first", may_wait=True)
    for number in range(60):
        client.acquire("lock", f"leaver{number}", may_wait=True)
        client.release("lock", f"leaver{number}")
    assert client.acquire("lock", "second", may_wait=True).wait_ms <= 250


def test_h7_the_dead_in_front_are_passed_over(client: Client) -> None:
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
    client: Client, is_free: bool, in_front: tuple[str, ...]
) -> None:
    client.token("lock", "holder")
    for claim in in_front:
        client.acquire("lock", claim, may_wait=True)
    request = LateRequest(client, "sleeper")
    client.acquire("lock", "sleeper", ttl_ms=SHORT_MS, may_wait=True)
    wait_until(lambda: len(client.ask(ask.Inspect("lock")).waiters) == len(in_front))
    if is_free:
        client.release("lock", "holder")
    for _ in range(2):
        assert client.ask(ask.Poll("lock", "sleeper")) == ask.ClaimEnded()
        assert request.arrive("wait") == ["ended"]


def test_h1_a_waiter_that_slept_inside_the_server_is_judged_by_the_time_when_it_woke(
    url: str, client: Client, database: Database
) -> None:
    """Its place expired while its poll waited for the row: the clock is read after that."""
    client.token("lock", "holder")
    client.acquire("lock", "sleeper", ttl_ms=SHORT_MS, may_wait=True)
    with holding(database, HOLD_LOCK):
        polling = Asked(Client(url).ask, ask.Poll("lock", "sleeper"))
        renewing = Asked(Client(url).ask, ask.Renew((("lock", "holder"),)))
        wait_until_blocked(database, 2)
        wait_until(lambda: not client.ask(ask.Inspect("lock")).waiters)
    assert polling.reply() == ask.ClaimEnded()
    assert set(renewing.reply().remaining_ms) == {"holder"}


def test_h1_a_lease_that_expired_while_its_renewal_waited_is_not_renewed(
    url: str, client: Client, database: Database
) -> None:
    client.token("lock", "holder", ttl_ms=SHORT_MS)
    with holding(database, HOLD_LOCK):
        renewing = Asked(Client(url).ask, ask.Renew((("lock", "holder"),)))
        wait_until(lambda: blocked(database) == 1 or not renewing.is_alive())
        wait_until(lambda: not client.ask(ask.Inspect("lock")).is_held)
    assert "expired" in renewing.reply().lost["holder"]


# --- H1: the server's clock is set back and forward -----------------------------------------------
@pytest.fixture
def clock(clocked_mysql: ClockedServer) -> ClockedServer:
    MySQLSource(clocked_mysql.url).install()
    return clocked_mysql


jumps = pytest.mark.parametrize("hours", [1, -1], ids=["forward", "back"])


@jumps
def test_h1_a_jump_of_the_clock_keeps_no_lock_longer_than_its_ttl(clock: ClockedServer, hours: int) -> None:
    """With a holder that died, and a queue of dead waiters, whose ttls are not waited for one after the other."""
    url = clock.url
    client = Client(url)
    tokens = [client.token("lock", "holder", ttl_ms=2000), client.token("free", "holder", ttl_ms=SHORT_MS)]
    for number in range(20):
        client.acquire("lock", f"dead{number}", ttl_ms=2000, may_wait=True)
    clock.jump(hours * HOUR_S)
    info = client.ask(ask.Inspect("lock"))
    assert info.remaining <= 2.0
    with fencelock.connect(url) as source:
        for name in ("free", "lock"):
            # Each of the dead counted for itself would be forty seconds.
            with source.lock(name, ttl=60.0, timeout=30.0) as lease:
                tokens.append(lease.token)
    assert tokens == sorted(set(tokens))


@jumps
def test_h4_holds_over_jumps_of_the_clock(clock: ClockedServer, hours: int) -> None:
    """There and back again, with a purge, and with others who know the one time or the other."""
    url = clock.url
    client = Client(url)
    client.one_token()
    requests = []
    for offset in (hours * HOUR_S, 0, hours * HOUR_S):
        for end in ("release", "purge", "release before it comes", "give up waiting"):
            request = LateRequest(client, claim := draw_claim())
            end_claim(client, claim, end)
            requests.append(request)
            Client(url).one_token()
            check_ended(requests[-1:])
        clock.jump(offset)
        check_ended(requests)
        Client(url).one_token()
        client.one_token()
        check_ended(requests)


def test_h4_a_waiter_that_died_before_the_clock_was_set_back_is_not_forgotten_by_a_purge(clock: ClockedServer) -> None:
    client = Client(clock.url)
    client.token("lock", "holder", ttl_ms=SHORT_MS)
    request = LateRequest(client, "waiter")
    client.acquire("lock", "waiter", ttl_ms=SHORT_MS, may_wait=True)
    clock.jump(-HOUR_S)
    looking = Client(clock.url)
    looking.acquire("lock", may_wait=False)  # From here on, the time left to all of them is their ttl at most.
    wait_until(lambda: not client.ask(ask.Inspect("lock")).is_held and not client.ask(ask.Inspect("lock")).waiters)
    assert looking.ask(ask.Purge()) == 1
    assert request.arrive("wait") == ["ended"]


def test_t4_a_lease_that_a_jump_forward_ended_is_lost_and_one_that_a_jump_back_prolonged_is_not(
    clock: ClockedServer,
) -> None:
    client = Client(clock.url)
    client.token("lock", "holder")
    clock.jump(-HOUR_S)
    renewed = client.ask(ask.Renew((("lock", "holder"),)))
    assert renewed.remaining_ms == {"holder": LONG_MS}
    clock.jump(0)
    assert "expired" in client.ask(ask.Renew((("lock", "holder"),))).lost["holder"]
    assert client.token() > 1
