"""The rules of tokens, T1 to T6, over the SQLite source: one test, or a few, for each promise.

What a power cut does to T1 is in tests/process/test_power_cut.py, and what many processes do is beside it.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import OutcomeUnknownError, SourceError
from fencelock.model import MAX_TOKEN, Sequencer
from fencelock.protocol import source_requests as ask
from fencelock.stores.sqlite.connection.file_identity import this_kernel
from fencelock.stores.sqlite.source import admin
from tests.support.helpers import wait_until
from tests.support.sources import LONG_MS, Client, installed, one_token, pretend_kernel, rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def client(path: Path) -> Client:
    installed(path)
    return Client(path)


@pytest.fixture
def url(path: Path) -> str:
    return installed(path)


# --- T1: minted with the grant, never issued again ---
@pytest.mark.reduced
def test_t1_tokens_grow_over_all_locks_of_the_file(path: Path, client: Client) -> None:
    other = Client(path)
    tokens = [one.one_token(lock) for lock in ("a", "b", "a", "c") for one in (client, other)]
    assert tokens == list(range(1, 9))


def test_t1_token_is_minted_when_the_waiter_is_granted_and_not_when_it_queues(path: Path, client: Client) -> None:
    client.token("lock", "holder")
    assert isinstance(client.acquire("lock", "waiter", may_wait=True), ask.Queued)
    assert client.one_token("other") == 2
    client.release("lock", "holder")
    granted = client.ask(ask.Poll("lock", "waiter"))
    assert granted.token == 3


def test_t1_refusal_spends_no_token(client: Client) -> None:
    client.token("lock")
    assert client.acquire("lock") == ask.Busy()
    assert isinstance(client.acquire("lock", may_wait=True), ask.Queued)
    assert client.describe().last_token == 1


def test_t1_undone_grant_leaves_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted between the grant and its commit, the transaction leaves neither a holder nor a spent token."""
    client.ask(ask.ReserveBlock())

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ask, "Granted", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.acquire("lock")
    assert client.describe().last_token == 0
    assert client.token("lock") == 1


@pytest.mark.reduced
def test_t1_counter_stays_under_the_durable_bound(path: Path, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "BLOCK_TOKENS", 5)
    for expected in range(1, 30):
        assert client.one_token() == expected
        info = client.describe()
        assert info.last_token == expected
        assert info.last_token <= info.reserved_token <= info.last_token + 5


def test_t1_file_itself_refuses_a_token_above_the_bound(path: Path, client: Client) -> None:
    client.one_token()
    above = client.describe().reserved_token + 1
    with pytest.raises(sqlite3.IntegrityError, match="bound >= counter"):
        rows(path, "update fencelock_lock set token = ?", (above,))


def test_t1_start_after_a_reboot_skips_to_the_bound(
    path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.token("lock", "held before the reboot")
    bound = client.describe().reserved_token
    client.close()
    pretend_kernel(monkeypatch, this_kernel()._replace(boot_id="the next boot"))
    after = Client(path)
    assert after.token("lock", "new") == bound + 1  # Free: whoever held it is gone.
    assert after.describe().epoch == 1  # The same history: nothing was lost that anybody was told.
    renewal = after.ask(ask.Renew((("lock", "held before the reboot"),)))
    assert renewal.lost == {"held before the reboot": f"tester holds the lock now, with token {bound + 1}"}


def test_t1_second_start_after_a_reboot_skips_nothing(
    path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.one_token()
    pretend_kernel(monkeypatch, this_kernel()._replace(boot_id="the next boot"))
    first = one_token(path)
    assert one_token(path) == first + 1


# --- T2: an integer, 1 <= token < 2**63; the last one is the last ---
def near_the_end(path: Path, left: int) -> Client:
    """Return a client of a source that has `left` tokens left."""
    installed(path)
    client = Client(path)
    client.describe()
    rows(
        path, "update fencelock_source set counter = :last, bound = :last, reserved = :last", {"last": MAX_TOKEN - left}
    )
    return client


@pytest.mark.reduced
def test_t2_first_token_is_1_and_last_is_2_to_the_63_minus_1(path: Path, tmp_path: Path) -> None:
    assert Client(path).one_token() == 1
    client = near_the_end(tmp_path / "old.db", 3)
    assert [client.one_token() for _ in range(3)] == [MAX_TOKEN - 2, MAX_TOKEN - 1, MAX_TOKEN]
    assert MAX_TOKEN == 2**63 - 1


def test_t2_after_the_last_token_every_grant_is_refused_and_nothing_wraps(path: Path) -> None:
    client = near_the_end(path, 1)
    assert client.one_token("lock") == MAX_TOKEN
    for lock in ("lock", "other"):
        for _ in range(2):
            with pytest.raises(SourceError, match=rf"has issued token {MAX_TOKEN}, the last one there is: make a new"):
                client.one_token(lock)
    with pytest.raises(SourceError, match="the last one there is"):
        client.ask(ask.Break("lock", "breaker", "tester", "a test"))
    with pytest.raises(SourceError, match=f"no token is left above {MAX_TOKEN}: make a new source"):
        client.raise_epoch()
    info = client.describe()
    assert (info.last_token, info.reserved_token, info.epoch) == (MAX_TOKEN, MAX_TOKEN, 1)
    assert client.ask(ask.Inspect("lock")).token == MAX_TOKEN
    assert client.ask(ask.Inspect("other")).token is None


def test_t2_waiter_is_refused_at_the_end_too_and_the_holder_keeps_its_lease(path: Path) -> None:
    client = near_the_end(path, 1)
    client.token("lock", "holder")
    client.acquire("lock", "waiter", may_wait=True)
    assert client.ask(ask.Renew((("lock", "holder"),))).remaining_ms == {"holder": LONG_MS}
    client.release("lock", "holder")
    with pytest.raises(SourceError, match="the last one there is"):
        client.ask(ask.Poll("lock", "waiter"))


def test_t2_last_token_survives_every_format(path: Path, url: str) -> None:
    near_the_end(path, 1)
    with fencelock.connect(url) as connected, connected.lock("lock") as lease:
        assert lease.token == MAX_TOKEN
        assert Sequencer.parse(str(lease.sequencer)).token == MAX_TOKEN
        assert connected.info("lock").token == MAX_TOKEN
        assert rows(path, "select token, typeof(token) from fencelock_lock") == [(MAX_TOKEN, "integer")]


# --- T3: stable in a tenure ---
@pytest.mark.reduced
def test_t3_renewal_keeps_the_token(client: Client) -> None:
    token = client.token("lock", "claim")
    client.one_token("other")
    for _ in range(3):
        assert client.ask(ask.Renew((("lock", "claim"),))).remaining_ms == {"claim": LONG_MS}
    repeated = client.acquire("lock", "claim")
    assert repeated.token == token
    assert rows(client.path, "select token from fencelock_lock where name = 'lock'") == [(token,)]


def test_t3_entering_again_gives_the_same_lease(url: str) -> None:
    with fencelock.connect(url) as connected:
        lock = connected.rlock("lock")
        with lock as outer, lock as inner:
            assert inner is outer
            assert connected.describe().last_token == outer.token


def test_t3_retry_of_a_lost_reply_gets_the_token_that_was_lost(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply is lost between the commit and the caller; the flow asks again under the same claim."""
    with fencelock.connect(url) as connected:
        perform = connected._driver._pool.perform
        lost: list[Any] = []

        def losing(request: Any) -> Any:
            reply = perform(request)
            if isinstance(reply, ask.Granted) and len(lost) < 2:
                lost.append(reply)
                raise OutcomeUnknownError("the reply was lost")
            return reply

        monkeypatch.setattr(connected._driver._pool, "perform", losing)
        with connected.lock("lock") as lease:
            assert [reply.token for reply in lost] == [lease.token] * 2
            assert connected.describe().last_token == lease.token


# --- T4: a new grant gives a higher token ---
@pytest.mark.reduced
def test_t4_same_holder_gets_a_higher_token_each_time(url: str) -> None:
    with fencelock.connect(url) as connected:
        lock = connected.lock("lock", holder="the same")
        tokens = []
        for _ in range(3):
            with lock as lease:
                tokens.append(lease.token)
    assert tokens == sorted(set(tokens))


def test_t4_expired_lease_is_not_renewed_even_without_a_successor(client: Client) -> None:
    token = client.token("lock", "claim", ttl_ms=30)
    wait_until(lambda: not client.ask(ask.Inspect("lock")).is_held)
    renewal = client.ask(ask.Renew((("lock", "claim"),)))
    assert renewal.lost == {"claim": "it expired at the source before it was renewed"}
    assert client.acquire("lock", "claim", born_us=0) == ask.ClaimEnded()
    assert client.token("lock", "new") == token + 1


def test_t4_take_over_of_an_expired_lease_gives_a_higher_token(path: Path, client: Client) -> None:
    old = client.token("lock", ttl_ms=30)
    taken = wait_until(lambda: getattr(Client(path).acquire("lock"), "token", None))
    assert taken > old


# --- T5: a token belongs to its lease ---
@pytest.mark.reduced
def test_t5_inspection_shows_the_last_token_issued(path: Path, client: Client) -> None:
    assert client.ask(ask.Inspect("lock")).token is None
    token = client.token("lock", "claim")
    for end in (lambda: None, lambda: client.release("lock", "claim")):
        end()
        assert client.ask(ask.Inspect("lock")).token == token
        assert [info.token for info in client.ask(ask.ListLocks(None))] == [token]


@pytest.mark.usefixtures("early_beats")
def test_t5_lease_that_is_over_keeps_its_own_token(url: str, path: Path) -> None:
    with fencelock.connect(url) as connected:
        lease = connected.lock("lock", ttl=30.0).acquire()
        assert lease is not None
        token = lease.token
        broken = connected.break_lock("lock", reason="a test")
        successor = Client(path).token("lock")
        wait_until(lease.lost.is_set)
        assert connected.info("lock").token == successor
        assert (lease.token, lease.sequencer.token) == (token, token)
        assert token < broken.token < successor
        assert broken.sequencer.token == broken.token


def test_t5_only_the_holding_claim_gets_its_token(client: Client) -> None:
    """No reply to a claim that does not hold the lock contains a token, whatever the request."""
    client.token("lock", "holder")
    client.acquire("lock", "waiter", may_wait=True)
    replies = [
        client.acquire("lock", "stranger"),
        client.acquire("lock", "waiter", may_wait=True),
        client.ask(ask.Poll("lock", "waiter")),
        client.ask(ask.Poll("lock", "stranger")),
        client.ask(ask.Poll("other", "holder")),
        client.ask(ask.Release("lock", "stranger")),
    ]
    assert not any(hasattr(reply, "token") for reply in replies)


def test_t5_holder_asking_under_another_locks_name_gets_no_token(client: Client) -> None:
    held = client.token("one", "claim")
    client.token("two", "other")
    for reply in (client.acquire("two", "claim"), client.ask(ask.Poll("two", "claim"))):
        assert not hasattr(reply, "token")
    assert client.acquire("one", "claim").token == held


# --- T6: counters never vanish ---
def released(client: Client) -> None:
    client.release("lock", "claim")


def expired(client: Client) -> None:
    client.release("lock", "claim")
    client.token("lock", "expiring", ttl_ms=1)
    wait_until(lambda: not client.ask(ask.Inspect("lock")).is_held)


def purged(client: Client) -> None:
    client.release("lock", "claim")
    assert client.ask(ask.Purge()) == 1
    assert client.ask(ask.Inspect("lock")).token is None


def deleted_by_hand(client: Client) -> None:
    for table in ("fencelock_lock", "fencelock_waiter", "fencelock_source_audit"):
        rows(client.path, f"delete from {table}")


def broken(client: Client) -> None:
    client.ask(ask.Break("lock", "breaker", "operator", "a test"))


def vacuumed(client: Client) -> None:
    client.release("lock", "claim")
    client.close()
    rows(client.path, "vacuum")


def dumped_in_place(client: Client) -> None:
    """Remove the log and switch the journal mode, as upgrades and tools do."""
    client.release("lock", "claim")
    client.close()
    rows(client.path, "pragma journal_mode = delete")


@pytest.mark.reduced
@pytest.mark.parametrize("vanish", [released, expired, purged, deleted_by_hand, broken, vacuumed, dumped_in_place])
@pytest.mark.parametrize("is_fresh", [False, True], ids=["same process", "new process"])
def test_t6_token_after_whatever_happened_is_higher(
    path: Path, client: Client, vanish: Callable[[Client], None], is_fresh: bool
) -> None:
    for _ in range(5):
        last = client.one_token("lock")
    last = max(last, client.token("lock", "claim"))
    vanish(client)
    after = Client(path) if is_fresh else client
    assert after.token("lock", "new") > last
    assert after.token("never seen before") > last + 1
