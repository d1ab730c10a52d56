"""The rules H4, H7 and H8 in PostgreSQL, interleaving by interleaving: two connections and more, stepped one statement
at a time, and a server whose clock jumps.

A side transaction holds still what a statement needs, so that this one waits inside the server; what happens meanwhile
is the test's choice. Nothing here guesses by sleeping.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

import fencelock
from fencelock import OutcomeUnknownError
from fencelock.clock import boottime_us
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.postgres.source.codec import SQL
from fencelock.stores.postgres.source.store import PostgresSource
from tests.helpers import wait_until
from tests.rules.test_claims import ENDS
from tests.sources import LONG_MS
from tests.sql.fix_faketime import ClockedServer
from tests.sql.postgres.clients import Client
from tests.sql.postgres.fix_postgres import Database, only
from tests.sql.postgres.proxy import Proxy

HOUR_S = 3600
SHORT_MS = 100


@pytest.fixture
def url(database: Database) -> str:
    PostgresSource(database.url()).install()
    return database.url()


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    client = Client(url)
    yield client
    client.close()


class Asked(threading.Thread):
    """A request that is made in a thread, and what came of it."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        super().__init__(daemon=True)
        self._call = lambda: function(*arguments, **named)
        self._reply: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._reply = self._call()
        except BaseException as error:
            self._error = error

    def reply(self) -> Any:
        """Wait for the reply, and return it or raise what was raised."""
        self.join(30)
        assert not self.is_alive(), "it waits still"
        if self._error is not None:
            raise self._error
        return self._reply


@contextmanager
def holding(database: Database, statement: str) -> Iterator[None]:
    """Run a statement in a transaction that stays open for the block."""
    with database.connect() as side, side.transaction():
        side.execute(statement)
        yield


HOLD_LOCK = "select from fencelock.lock where name = 'lock' for update"
HOLD_SOURCE = "select from fencelock.source for update"


def blocked(database: Database) -> int:
    """Return how many statements wait inside the server for what another transaction holds."""
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    return int(database.value(waiting))


def wait_until_blocked(database: Database, count: int) -> None:
    wait_until(lambda: blocked(database) == count)


class LateRequest:
    """An acquire that was sent now, and reaches the server whenever the test says, and as often."""

    def __init__(self, client: Client, claim: str) -> None:
        client.describe()
        self._url = client.url
        born_us = client.store.identity.clock.at(boottime_us())
        self._parameters = (b"lock", claim, "late", LONG_MS, born_us)

    def arrive(self, *modes: str) -> list[str]:
        """Return the outcomes that it has now."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            return [self._outcome(connection, mode) for mode in modes or ("try",)]

    def _outcome(self, connection: psycopg.Connection, mode: str) -> str:
        row = connection.execute(SQL.acquire, (*self._parameters, mode, None, 1000, 1000)).fetchone()
        assert row is not None
        return str(row[0])


# --- what is shown of a lease's end ---------------------------------------------------------------
@only("18")
def test_h1_a_lock_that_is_shown_as_free_can_be_taken(client: Client) -> None:
    client.check_free_is_free()


# --- H4: a claim is granted once ------------------------------------------------------------------
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("is_fresh", [False, True], ids=["same process", "new process"])
@only("18")
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
            hasty = Client(url, request_timeout_s=0.5)
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
    hasty.one_token("another")  # The statements are prepared.
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
    trips = proxy.counts["round trips"]
    fault.release()
    wait_until(lambda: proxy.counts["round trips"] > trips)
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
    with holding(database, "select fencelock.purge()"):
        late, fresh = Asked(request.arrive), Asked(Client(url).token)
        wait_until_blocked(database, 2)
    assert late.reply() == ["ended"]
    assert fresh.reply() > last


# --- H4: what any role may send -------------------------------------------------------------------
SENT = {
    "release": "select fencelock.release('lock', 'sent', {us})",
    "acquire": "select fencelock.acquire('lock', 'sent', 'x', {ttl_ms}, {us}, 'try', null, 1000, 1000)",
    "wait": "select fencelock.acquire('lock', 'sent', 'x', {ttl_ms}, {us}, 'wait', null, 1000, 1000)",
}
"""Calls for which a role needs no more than USAGE."""
YEAR_US = 31_556_952_000_000
TTL_LIMIT_MS = PostgresSource.capabilities.ttl_max_ms


@pytest.mark.parametrize("far_us", [2**63 - 1, 2**63 - 2, 2**62])
@only("18")
def test_h4_no_role_spoils_a_lock_by_a_time_that_no_claim_is_drawn_after(
    url: str, client: Client, database: Database, far_us: int
) -> None:
    """A purge made it all locks' time."""
    client.one_token()
    for call in SENT.values():
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="thousand years"):
            database.rows(call.format(us=far_us, ttl_ms=1000))
    assert client.describe() == Client(url).describe()
    Client(url).one_token()
    assert client.ask(ask.Purge()) == 1
    Client(url).one_token("another")


@pytest.mark.parametrize("call", ["acquire", "release"])
@only("18")
def test_h4_a_lock_whose_time_is_centuries_ahead_is_had_at_the_second_try(
    url: str, client: Client, database: Database, call: str
) -> None:
    client.one_token()
    ahead_us = database.value("select fencelock.now_us()") + 999 * YEAR_US
    database.rows(SENT[call].format(us=ahead_us, ttl_ms=1000))
    database.rows(SENT["release"].format(us=0))
    late = LateRequest(client, "late")
    client.release("lock", "late")
    for _ in range(3):
        client.one_token()
        Client(url).one_token()
        assert late.arrive("try", "wait") == ["ended", "ended"]


@pytest.mark.parametrize("call", ["acquire", "wait"])
@only("18")
def test_no_role_spoils_a_lock_by_a_ttl_that_cannot_be_counted(
    url: str, client: Client, database: Database, call: str
) -> None:
    """Nor a waiter: the holder's release looks at the queue, and failed by it."""
    client.token("lock" if call == "wait" else "another", "holder")
    now_us = database.value("select fencelock.now_us()")
    for ttl_ms in ((2**63 - 1 - now_us) // 1000 - 1000, TTL_LIMIT_MS + 1, -1):
        with pytest.raises(psycopg.errors.CheckViolation, match="a_ttl_is_a_day_at_most"):
            database.rows(SENT[call].format(us=now_us, ttl_ms=ttl_ms))
    client.release("lock", "holder")
    Client(url).token(ttl_ms=TTL_LIMIT_MS)


# --- T7: nobody slips through a raise -------------------------------------------------------------
def test_t7_a_grant_that_a_raise_has_to_wait_for_is_ended_by_it(url: str, client: Client, database: Database) -> None:
    client.one_token("other")
    before = client.describe()
    parameters = "'lock', 'slow', 'tester', 60000, 9000000000000000, 'try', null, 1000, 1000"
    with holding(database, f"select fencelock.acquire({parameters})"):
        raising = Asked(Client(url).raise_epoch)
        wait_until_blocked(database, 1)
    after = raising.reply()
    assert after.epoch == before.epoch + 1
    assert not client.ask(ask.Inspect("lock")).is_held
    assert "epoch was raised" in client.ask(ask.Renew((("lock", "slow"),))).lost["slow"]


@pytest.mark.parametrize("lock", ["lock", "a new lock"])
def test_t7_a_grant_that_waits_for_a_raise_is_of_the_new_history(
    url: str, client: Client, database: Database, lock: str
) -> None:
    client.one_token()
    history_id = client.describe().history_id
    with holding(database, f"select fencelock.raise_epoch('{history_id}', 0, 'tester', 'a test')"):
        waiting = Asked(Client(url).token, lock)
        wait_until_blocked(database, 1)
    assert waiting.reply() > client.describe().last_token - 2
    assert client.describe().epoch == 2


@only("18")
def test_t7_one_history_for_one_recovery_however_many_notice_it(url: str, client: Client, database: Database) -> None:
    last = client.one_token()
    clients = [Client(url) for _ in range(6)]
    for each in clients:
        each.describe()
    database.rows("truncate fencelock.witness")  # As any recovery does.
    with holding(database, HOLD_SOURCE):
        asked = [Asked(each.one_token, f"lock{number}") for number, each in enumerate(clients)]
        wait_until_blocked(database, len(clients))
    tokens = [each.reply() for each in asked]
    assert len(set(tokens)) == len(tokens)
    assert min(tokens) > last
    assert client.describe().epoch == 2


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
def clock(clocked_postgres: ClockedServer) -> ClockedServer:
    PostgresSource(clocked_postgres.server.url()).install()
    return clocked_postgres


jumps = pytest.mark.parametrize("hours", [1, -1], ids=["forward", "back"])


@only("18")
@jumps
def test_h1_a_jump_of_the_clock_keeps_no_lock_longer_than_its_ttl(clock: ClockedServer, hours: int) -> None:
    """With a holder that died, and a queue of dead waiters, whose ttls are not waited for one after the other."""
    url = clock.server.url()
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


@only("18")
@jumps
def test_h4_holds_over_jumps_of_the_clock(clock: ClockedServer, hours: int) -> None:
    """There and back again, with a purge, and with others who know the one time or the other."""
    url = clock.server.url()
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


def end_claim(client: Client, claim: str, end: str) -> None:
    if end == "release before it comes":
        client.release("lock", claim)
        return
    with ExitStack() as stack:
        if end == "give up waiting":
            holder = draw_claim()
            client.token("lock", holder)
            stack.callback(client.release, "lock", holder)
        while client.acquire("lock", claim, may_wait=True) == ask.ClaimEnded():
            assert not client.has_ended("lock", claim)
        client.release("lock", claim)
        if end == "purge":
            client.ask(ask.Purge())


def check_ended(requests: list[LateRequest]) -> None:
    assert {outcome for request in requests for outcome in request.arrive("try", "wait")} == {"ended"}


@only("18")
def test_h4_a_waiter_that_died_before_the_clock_was_set_back_is_not_forgotten_by_a_purge(clock: ClockedServer) -> None:
    client = Client(clock.server.url())
    client.token("lock", "holder", ttl_ms=SHORT_MS)
    request = LateRequest(client, "waiter")
    client.acquire("lock", "waiter", ttl_ms=SHORT_MS, may_wait=True)
    clock.jump(-HOUR_S)
    looking = Client(clock.server.url())
    looking.acquire("lock", may_wait=False)  # From here on, the time left to all of them is their ttl at most.
    wait_until(lambda: not client.ask(ask.Inspect("lock")).is_held and not client.ask(ask.Inspect("lock")).waiters)
    assert looking.ask(ask.Purge()) == 1
    assert request.arrive("wait") == ["ended"]


@only("18")
def test_t4_a_lease_that_a_jump_forward_ended_is_lost_and_one_that_a_jump_back_prolonged_is_not(
    clock: ClockedServer,
) -> None:
    client = Client(clock.server.url())
    client.token("lock", "holder")
    clock.jump(-HOUR_S)
    renewed = client.ask(ask.Renew((("lock", "holder"),)))
    assert renewed.remaining_ms == {"holder": LONG_MS}
    clock.jump(0)
    assert "expired" in client.ask(ask.Renew((("lock", "holder"),))).lost["holder"]
    assert client.token() > 1
