"""What `once=` does over a guard's store, written once for all stores, sync and async.

The lock is in a SQLite file: what these tests are about is the store that keeps keys and results.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import (
    AlreadyDoneError,
    ConfigError,
    EffectInDoubtError,
    KeyReusedError,
    LeaseReleasedError,
    Once,
    StaleTokenError,
    purge_effects,
)
from tests.support.effects import Mailer
from tests.support.guards import LOCK, RESOURCE, BlockingBlock, fail
from tests.support.helpers import wait_until

NIGHT = "2026-11-22"
LONG_AGO_S = 86_400.0


class NightWorker(Mailer):
    """A holder's view: guarded blocks that do a key's work once, and the bodies that ran."""

    def __init__(self, source_url: str, guard_url: str, runner: asyncio.Runner | None) -> None:
        super().__init__(source_url, guard_url, runner)
        self.ran: list[str] = []

    def once(self, lease: Any, once: Any = NIGHT, guard: Any = None) -> AbstractContextManager[Any]:
        block = (guard or self.guard()).transaction(lease, once=once)
        return block if self._runner is None else BlockingBlock(block, self._runner.run, "transaction")

    def work(self, lease: Any, key: str = NIGHT, result: str = "", *, request: str | bytes = b"") -> None:
        """Do the work of a key."""
        once = Once(key, request=request)
        with self.once(lease, once):
            self.ran.append(key)
            once.result = result


class OnceJobs:
    """The tests. A subclass has the fixture `once_url`, the URL of a store with nothing in it."""

    @pytest.fixture(params=["sync", "async"])
    def worker(self, request: pytest.FixtureRequest, once_url: str, tmp_path: Path) -> Iterator[NightWorker]:
        source_url = f"sqlite:///{tmp_path / 'locks.db'}"
        with asyncio.Runner() as runner:
            made = NightWorker(source_url, once_url, None if request.param == "sync" else runner)
            yield made
            made.close()

    def test_g14_a_key_is_done_once_by_whichever_lease(self, worker: NightWorker) -> None:
        first = worker.acquire()
        worker.work(first, result="40 rows \N{CHECK MARK}")
        for is_later in (False, True):
            lease = worker.succeed() if is_later else first
            with pytest.raises(AlreadyDoneError, match=f"'{NIGHT}' was done .* with token {first.token}") as caught:
                worker.work(lease)
            assert (caught.value.result, caught.value.token) == ("40 rows \N{CHECK MARK}", first.token)
        worker.work(lease, "2026-11-23")
        assert worker.ran == [NIGHT, "2026-11-23"]

    def test_g14_a_key_alone_is_enough(self, worker: NightWorker) -> None:
        lease = worker.acquire()
        with worker.once(lease, NIGHT):
            pass
        with pytest.raises(AlreadyDoneError) as caught, worker.once(lease, NIGHT):
            worker.ran.append("twice")
        assert (caught.value.result, worker.ran) == ("", [])

    def test_g14_a_block_that_fails_leaves_no_key(self, worker: NightWorker) -> None:
        lease = worker.acquire()
        with pytest.raises(ZeroDivisionError), worker.once(lease) as native:
            fail(native)
        worker.work(lease)
        assert worker.ran == [NIGHT]

    @pytest.mark.parametrize("has_sealed", [True, False])
    def test_g14_a_stale_lease_is_told_what_its_successor_did(self, worker: NightWorker, has_sealed: bool) -> None:
        """By its sequencer, as a child or a frozen process does: the source is not asked."""
        old = worker.acquire()
        if has_sealed:
            worker.work(old, "another key")
        sequencer = old.sequencer
        worker.work(worker.succeed(), result="by the successor")
        with pytest.raises(AlreadyDoneError) as caught:
            worker.work(sequencer)
        assert caught.value.result == "by the successor"
        with pytest.raises(StaleTokenError):
            worker.work(sequencer, "2026-11-23")
        assert NIGHT not in worker.ran[:-1]

    def test_g14_another_request_under_the_key_is_not_taken_for_done(self, worker: NightWorker) -> None:
        lease = worker.acquire()
        worker.work(lease, request="send the report to a@example.com")
        for request in ("send the report to b@example.com", b""):
            with pytest.raises(KeyReusedError, match=f"key '{NIGHT}' .* stands for another request") as caught:
                worker.work(lease, request=request)
            assert caught.value.token == lease.token
        with pytest.raises(AlreadyDoneError):
            worker.work(lease, request=b"send the report to a@example.com")

    def test_g14_one_table_serves_dispatch_too(self, worker: NightWorker) -> None:
        lease = worker.acquire()
        worker.work(lease, "done in a block", "by a block")
        with pytest.raises(AlreadyDoneError) as caught:
            worker.do(lease, "done in a block")
        assert caught.value.result == "by a block"
        worker.do(lease, "dispatched", "by dispatch")
        with pytest.raises(AlreadyDoneError) as caught:
            worker.work(lease, "dispatched")
        assert caught.value.result == "by dispatch"
        worker.begin(lease, "in doubt")
        with pytest.raises(EffectInDoubtError):
            worker.work(lease, "in doubt")

    def test_g14_a_released_lease_begins_nothing(self, worker: NightWorker) -> None:
        lease = worker.acquire()
        worker.release(lease)
        with pytest.raises(LeaseReleasedError):
            worker.work(lease)
        worker.work(worker.acquire())

    def test_g14_keys_requests_and_results_have_limits(self, worker: NightWorker) -> None:
        lease = worker.acquire()
        longest, result = "\N{GREEK SMALL LETTER ALPHA}" * 256, "\N{GREEK SMALL LETTER ALPHA}" * 2048
        worker.work(lease, longest, result)
        with pytest.raises(AlreadyDoneError) as done:
            worker.work(lease, longest)
        assert done.value.result == result
        wrong: list[Any] = [longest + "a", "", "\0", 7, b"key"]
        for key in wrong:
            with pytest.raises(ConfigError):
                worker.once(lease, key)
        with pytest.raises(ConfigError, match="request must be str or bytes"):
            Once(NIGHT, request=7)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="result"):
            worker.work(lease, result="x" * 4097)
        with pytest.raises(ConfigError, match="a key belongs to one resource, and this guard has 2"):
            worker.once(lease, NIGHT, worker.guard("a", "b"))
        worker.work(lease)

    def test_g14_a_purge_forgets_old_results_alone(self, worker: NightWorker) -> None:
        first = worker.acquire()
        worker.work(first)
        assert purge_effects(worker.guard_url, older_than=0) == 0, "its token is the mark"
        second = worker.succeed()
        worker.work(second, "2026-11-23")
        assert purge_effects(worker.guard_url, older_than=LONG_AGO_S) == 0
        wait_until(lambda: purge_effects(worker.guard_url, older_than=0) == 1)
        with pytest.raises(AlreadyDoneError):
            worker.work(second, "2026-11-23")
        worker.work(second, NIGHT)
        wrong: list[Any] = [-1, float("nan"), True, "90"]
        for age in wrong:
            with pytest.raises(ConfigError, match="older_than must be seconds"):
                purge_effects(worker.guard_url, older_than=age)


def elsewhere(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function in another thread, for this one has a guarded block open."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function, *arguments, **named).result()


class OvertakenJobs(OnceJobs):
    """The tests for a store that lets a successor in while a block is open, and compares at the block's end."""

    def test_g14_a_holder_that_is_overtaken_inside_its_block_is_told_at_its_end(self, worker: NightWorker) -> None:
        block = worker.once(worker.acquire())
        block.__enter__()
        second = worker.succeed()
        elsewhere(worker.work, second, result="by the successor")
        with pytest.raises(AlreadyDoneError) as caught:
            block.__exit__(None, None, None)
        assert (caught.value.result, caught.value.token) == ("by the successor", second.token)

    def test_g14_of_two_blocks_of_one_lease_at_once_one_is_committed(self, worker: NightWorker) -> None:
        """The other one is told at its end, after its body ran: nothing of that is written."""
        sequencer = worker.acquire().sequencer
        block = fencelock.guard(worker.guard_url, resource=RESOURCE, lock=LOCK).transaction(sequencer, once=NIGHT)
        block.__enter__()
        elsewhere(worker.work, sequencer, result="by the faster one")
        with pytest.raises(AlreadyDoneError) as caught:
            block.__exit__(None, None, None)
        assert caught.value.result == "by the faster one"
