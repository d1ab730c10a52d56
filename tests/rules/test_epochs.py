"""The rule T7, over the SQLite source: raising the epoch, and the kernel whose clock a file uses.

What a restored or copied file does is in test_restores.py.
"""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import LeaseLostError, SourceError
from fencelock.clock import boottime_us
from fencelock.model import EPOCH_STRIDE, digest_of_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.sqlite.connection.file_identity import this_kernel
from fencelock.stores.sqlite.source import admin
from tests.support.helpers import wait_until
from tests.support.programs import need
from tests.support.sources import LONG_MS, Client, installed, one_token, pretend_kernel, rows

HIGH = 2**61
"""A multiple of EPOCH_STRIDE that the clock is far below."""
REMEDY = "stop everything that uses it, then run `fencelock epoch --raise"


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


# --- T7: the epoch ---
@pytest.mark.reduced
def test_t7_raise_jumps_to_the_next_multiple_and_begins_a_history(path: Path, client: Client) -> None:
    client.token("lock")
    before = client.describe()
    after = client.raise_epoch("moved to another disk")
    begun = after.last_token
    assert begun % EPOCH_STRIDE == 0
    assert after.reserved_token == begun > before.last_token
    assert (after.source_id, after.epoch) == (before.source_id, before.epoch + 1)
    assert after.history_id != before.history_id
    assert client.token("lock") == begun + 1
    assert Client(path).raise_epoch().last_token == begun + EPOCH_STRIDE
    audit = "select action, subject, token, reason from fencelock_source_audit order by id"
    assert rows(path, audit)[0] == ("raise epoch", before.history_id, begun, "moved to another disk")


def test_t7_raise_clears_the_reserved_block_and_not_only_the_counter(path: Path, client: Client) -> None:
    client.describe()
    rows(path, "update fencelock_source set reserved = ?, counter = 0", (HIGH,))
    assert client.raise_epoch().last_token == HIGH + EPOCH_STRIDE


def test_t7_of_two_raises_of_the_same_history_one_wins(path: Path, client: Client) -> None:
    history_id = client.describe().history_id
    both = threading.Barrier(2)
    results: list[Any] = []

    def raise_it() -> None:
        mine = Client(path)
        mine.describe()
        both.wait(30)
        results.append(mine.ask(ask.RaiseEpoch(history_id, "a test")))

    threads = [threading.Thread(target=raise_it) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(result is None for result in results) == [False, True]
    assert client.describe().epoch == 2


def test_t7_the_second_raise_of_a_history_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fencelock.connect(url) as connected, fencelock.connect(url) as other:
        perform = connected._driver._pool.perform

        def overtaken(request: Any) -> Any:
            if isinstance(request, ask.RaiseEpoch):
                other.raise_epoch(reason="the first")
            return perform(request)

        monkeypatch.setattr(connected._driver._pool, "perform", overtaken)
        with pytest.raises(SourceError, match="another process raised the epoch at this moment"):
            connected.raise_epoch(reason="the second")
        assert connected.describe().epoch == 2


@pytest.mark.usefixtures("early_beats")
@pytest.mark.reduced
def test_t7_raise_ends_every_lease_and_its_holder_learns_the_reason(url: str, path: Path) -> None:
    told: list[str] = []
    with fencelock.connect(url) as connected:
        lock = connected.lock("lock", ttl=30.0, on_lost=told.append)
        lease = lock.acquire()
        assert lease is not None
        Client(path).raise_epoch("restored from yesterday")
        wait_until(lambda: told)
        assert told == ["the source's epoch was raised: restored from yesterday"]
        with pytest.raises(LeaseLostError, match="was lost: the source's epoch was raised: restored") as caught:
            lease.check_valid()
        assert caught.value.reason == told[0]
        with lock as lease:
            assert lease.token > EPOCH_STRIDE


def test_t7_raise_ends_every_wait_and_the_waiter_queues_again(url: str, path: Path) -> None:
    client = Client(path)
    client.token("lock", "holder")
    with fencelock.connect(url) as connected:
        leases: list[Any] = []
        thread = threading.Thread(target=lambda: leases.append(connected.lock("lock", ttl=30.0).acquire(timeout=30)))
        thread.start()
        wait_until(lambda: client.ask(ask.Inspect("lock")).waiters)
        client.raise_epoch()
        thread.join(30)
        assert leases[0].token > EPOCH_STRIDE
        leases[0].release()


def test_t7_other_processes_go_on_in_the_new_history(path: Path, client: Client) -> None:
    other = Client(path)
    other.one_token()
    begun = client.raise_epoch().last_token
    assert other.one_token() == begun + 1


# --- T7: whose clock it is ---
@pytest.mark.reduced
@pytest.mark.parametrize(
    "other",
    [
        {"boot_id": "x", "machine_id": "another machine"},
        {"boot_id": "x", "machine_id": ""},
        {"time_namespace": "time:[1]"},
        {"time_namespace": ""},
    ],
    ids=["another machine", "no machine id", "another time namespace", "a kernel without time namespaces"],
)
def test_t7_another_kernel_is_refused_with_the_remedy(
    path: Path, client: Client, other: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = client.token("lock", "claim")
    with monkeypatch.context() as patch:
        pretend_kernel(patch, this_kernel()._replace(**other))
        stranger = Client(path)
        for request in (
            ask.Acquire("new", "new", "tester", LONG_MS, 2**62, may_wait=False),
            ask.Poll("lock", "claim"),
            ask.Renew((("lock", "claim"),)),
            ask.Release("lock", "claim"),
            ask.Break("lock", "new", "tester", "a test"),
            ask.Purge(),
            ask.ReserveBlock(),
        ):
            with pytest.raises(SourceError, match=f"is used by another kernel .*{REMEDY}"):
                stranger.connection.perform(request)
        assert stranger.describe().last_token == token  # An operator may look,
        assert stranger.ask(ask.Inspect("lock")).token == token
    assert client.acquire("lock", "claim").token == token  # and the first kernel noticed nothing.


def test_t7_another_kernel_takes_over_by_a_raise_and_the_first_is_refused_from_then_on(
    path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.token("lock", "claim")
    client.acquire("lock", "waiter", may_wait=True)
    with monkeypatch.context() as patch:
        pretend_kernel(patch, this_kernel()._replace(boot_id="x", machine_id="another machine"))
        there = Client(path)
        there.raise_epoch("moved for good")
        assert there.token("lock", "there") > EPOCH_STRIDE
    for request in (
        ask.Acquire("new", "new", "tester", LONG_MS, boottime_us(), may_wait=False),
        ask.Poll("lock", "waiter"),
        ask.Renew((("lock", "claim"),)),
        ask.Release("lock", "waiter"),
        ask.Break("lock", "new", "tester", "a test"),
        ask.Purge(),
        ask.ReserveBlock(),
    ):
        with pytest.raises(SourceError, match="is used by another kernel"):
            client.connection.perform(request)
    assert rows(path, "select digest from fencelock_lock") == [(digest_of_claim("there"),)]


def test_t7_process_of_the_boot_before_grants_nothing_once_the_file_was_adopted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine cloned with its id looks like a reboot; only one of the two may continue."""
    here = this_kernel()._replace(machine_id="0" * 32)
    pretend_kernel(monkeypatch, here)
    before = Client(path)
    before.one_token()
    pretend_kernel(monkeypatch, here._replace(boot_id="the next boot"))
    after = one_token(path)
    pretend_kernel(monkeypatch, here)
    with pytest.raises(SourceError, match="is used by another kernel"):
        before.one_token()
    assert rows(path, "select counter from fencelock_source") == [(after,)]


def test_t7_reboot_of_this_machine_is_not_another_kernel(
    path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.one_token()
    monkeypatch.setattr(admin, "BLOCK_TOKENS", 100)
    here = this_kernel()._replace(machine_id="0" * 32)
    rows(path, "update fencelock_source set machine_id = ?", (here.machine_id,))
    last = 0
    for boot in ("first", "second", "third"):
        pretend_kernel(monkeypatch, here._replace(boot_id=boot, time_namespace=f"time:[{boot}]"))
        token = one_token(path)
        assert token > last
        last = token


def test_t7_real_time_namespace_is_another_clock(path: Path, client: Client) -> None:
    unshare = need("unshare")
    inside = [unshare, "--time", "--boottime", "100000", "--fork"]
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("unshare --time is not permitted here: run the tests as root")
    client.one_token()
    code = "import fencelock, sys; fencelock.connect(sys.argv[1]).lock('lock').acquire()"
    result = subprocess.run(
        [*inside, sys.executable, "-c", code, f"sqlite:///{path}"], check=False, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "SourceError" in result.stderr
    assert "is used by another kernel" in result.stderr
    assert client.one_token() == 2
