"""The rule H4 at the source: a claim is granted once, and its end affects no other claim.

The whole path from acquire to release is in test_leases.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

import fencelock
from fencelock import SourceError
from fencelock._drivers.sync import SyncDriver
from fencelock._flows import renewal
from fencelock.clock import boottime_us
from fencelock.model import Sequencer, draw_claim, one_way
from fencelock.protocol import source_requests as ask
from fencelock.stores.sqlite.source.store import SQLiteSource
from tests.support.helpers import wait_until
from tests.support.sources import LONG_MS, Client, installed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def client(path: Path) -> Client:
    return Client(path)


@pytest.fixture
def url(path: Path) -> str:
    return installed(path)


# --- what is shown of a lease's end ---
def test_h1_a_lock_that_is_shown_as_free_can_be_taken(client: Client) -> None:
    client.check_free_is_free()


# --- H4: a claim is granted once ---
def end_by_release(client: Client) -> None:
    client.token("lock", "claim")
    assert client.release("lock", "claim")


def end_by_release_and_go_on(client: Client) -> None:
    """With enough other claims in between to make a store with a short memory forget this one."""
    end_by_release(client)
    for _ in range(50):
        client.one_token("lock")
        client.one_token("other")


def end_before_it_came(client: Client) -> None:
    assert not client.release("lock", "claim")


def end_before_it_came_and_go_on(client: Client) -> None:
    client.one_token("lock")
    end_before_it_came(client)
    for _ in range(3):
        client.one_token("lock")


def end_by_expiry(client: Client) -> None:
    client.token("lock", "claim", ttl_ms=1)
    wait_until(lambda: not client.ask(ask.Inspect("lock")).is_held)


def end_by_take_over(client: Client) -> None:
    end_by_expiry(client)
    client.one_token("lock")


def end_by_take_over_of_a_waiter(client: Client) -> None:
    client.token("lock", "claim")
    client.acquire("lock", "waiter", may_wait=True)
    client.expire()
    wait_until(lambda: isinstance(client.ask(ask.Poll("lock", "waiter")), ask.Granted))
    client.release("lock", "waiter")


def end_by_purge(client: Client) -> None:
    end_by_release(client)
    client.ask(ask.Purge())
    assert client.ask(ask.Inspect("lock")).token is None


def end_by_expiry_and_purge(client: Client) -> None:
    end_by_expiry(client)
    client.ask(ask.Purge())
    assert client.ask(ask.Inspect("lock")).token is None


def end_by_expiry_and_purge_with_a_waiter(client: Client) -> None:
    """The lock's row stays because there is a waiter."""
    client.token("lock", "claim")
    client.acquire("lock", "waiter", may_wait=True)
    client.expire()
    wait_until(lambda: not client.ask(ask.Inspect("lock")).is_held)
    client.ask(ask.Purge())
    assert client.ask(ask.Inspect("lock")).token is not None
    client.release("lock", "waiter")


def end_by_break(client: Client) -> None:
    client.token("lock", "claim")
    client.ask(ask.Break("lock", "breaker", "operator", "a test"))


def end_by_break_and_go_on(client: Client) -> None:
    end_by_break(client)
    client.one_token("lock")
    client.ask(ask.Break("lock", "breaker", "operator", "a test"))


def end_by_raise(client: Client) -> None:
    client.token("lock", "claim")
    client.raise_epoch()


def end_a_wait_by_leaving(client: Client) -> None:
    client.token("lock", "holder")
    client.acquire("lock", "claim", may_wait=True)
    client.release("lock", "claim")
    client.release("lock", "holder")


def end_a_wait_by_its_death(client: Client) -> None:
    client.token("lock", "holder")
    client.acquire("lock", "claim", ttl_ms=1, may_wait=True)
    wait_until(lambda: not client.ask(ask.Inspect("lock")).waiters)
    client.release("lock", "holder")


def end_a_wait_by_its_death_and_others(client: Client) -> None:
    end_a_wait_by_its_death(client)
    client.token("lock", "next holder")
    client.acquire("lock", "other", may_wait=True)  # Takes the dead one out of the queue.
    client.release("lock", "next holder")
    client.release("lock", "other")


def end_a_wait_by_raise(client: Client) -> None:
    client.token("lock", "holder")
    client.acquire("lock", "claim", may_wait=True)
    client.raise_epoch()


ENDS = [value for name, value in sorted(globals().items()) if name.startswith("end_")]


@pytest.mark.reduced
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("is_fresh", [False, True], ids=["same process", "new process"])
def test_h4_claim_that_ended_is_never_granted_again(
    path: Path, client: Client, end: Callable[[Client], None], is_fresh: bool
) -> None:
    client.one_token("another")  # So that the process knows the source, and takes the fast way.
    born_us = boottime_us()
    end(client)
    late = Client(path) if is_fresh else client
    before = late.describe()
    for may_wait in (False, True):
        duplicate = ask.Acquire("lock", "claim", "tester", LONG_MS, born_us, may_wait)
        assert late.ask(duplicate) == ask.ClaimEnded()
    assert late.ask(ask.Poll("lock", "claim")) == ask.ClaimEnded()
    assert "claim" in late.ask(ask.Renew((("lock", "claim"),))).lost
    late.release("lock", "claim")
    assert late.describe() == before  # No token was spent, nobody stands in the queue,
    assert late.ask(ask.Inspect("lock")).waiters == ()
    assert late.token("lock", draw_claim()) > before.last_token  # and a fresh claim is granted at once.


def test_h4_claim_that_ended_before_a_take_over_does_not_queue_behind_it(client: Client) -> None:
    """The lock's row names the claim that was taken over, and must not forget the one that ended before it."""
    client.one_token("lock")
    first_us = boottime_us()
    end_by_release(client)
    second_us = boottime_us()
    client.token("lock", "expiring", ttl_ms=1)
    wait_until(lambda: isinstance(client.acquire("lock", "holder"), ask.Granted))
    for claim, born_us in (("claim", first_us), ("expiring", second_us)):
        assert client.ask(ask.Acquire("lock", claim, "tester", LONG_MS, born_us, may_wait=True)) == ask.ClaimEnded()


def test_h4_late_release_frees_no_successor(client: Client) -> None:
    client.token("lock", "first", ttl_ms=1)
    wait_until(lambda: isinstance(client.acquire("lock", "second"), ask.Granted))
    assert not client.release("lock", "first")
    assert client.ask(ask.Inspect("lock")).is_held
    assert client.acquire("lock", "third") == ask.Busy()


def test_h4_late_release_takes_no_waiters_place(client: Client) -> None:
    client.token("lock", "holder")
    client.acquire("lock", "waiter", may_wait=True)
    client.release("lock", "an older one")
    assert client.ask(ask.Inspect("lock")).waiters == ("tester",)


def test_h4_source_that_ends_every_claim_is_an_error_and_no_endless_loop(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fencelock.connect(url) as connected:
        connected.install()
        monkeypatch.setattr(connected._driver._pool, "perform", lambda _: ask.ClaimEnded())
        with pytest.raises(SourceError, match=r"lock 'lock': the source ended 100 claims in a row"):
            connected.lock("lock").acquire()


def test_break_that_is_repeated_ends_no_successors_lease(path: Path, client: Client) -> None:
    """The reply to a break is lost, another claim is granted, and the break is repeated: it must not break again."""
    client.token("lock", "old")
    request = ask.Break("lock", "breaker", "operator", "a test")
    first = client.ask(request)
    successor = client.token("lock", "successor")
    second = client.ask(request)
    assert second.token == first.token
    assert client.acquire("lock", "successor").token == successor


def test_sequencer_of_a_break_is_a_credential_like_any_other(url: str) -> None:
    driver = SyncDriver(SQLiteSource(url))
    broken = driver.run(renewal.break_lock("lock", "c" * 32, "operator", "a test"))
    sequencer = Sequencer(broken.source_id, broken.history_id, "lock", broken.token, one_way("c" * 32))
    assert Sequencer.parse(str(sequencer)) == sequencer
    driver.close()
