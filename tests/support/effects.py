"""What `fencelock.dispatch` does over a guard's store, written once for all stores, sync and async.

The lock is in a SQLite file: what these tests are about is the store that keeps intents and results.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import (
    AlreadyDoneError,
    ConfigError,
    EffectInDoubtError,
    LeaseExpiredError,
    LeaseLostError,
    LeaseReleasedError,
    StaleTokenError,
)
from fencelock._api.lease import BaseLease
from tests.support.guards import LOCK, RESOURCE, BlockingBlock, fail

KEY = "invoice/7"


class Mailer:
    """A holder's view: a source, a new guard for each block, and `dispatch`: sync, or async behind a sync face."""

    def __init__(self, source_url: str, guard_url: str, runner: asyncio.Runner | None) -> None:
        self.guard_url = guard_url
        self._runner = runner
        self.operator = fencelock.connect(source_url)
        self.source: Any = self.operator if runner is None else fencelock.aio.connect(source_url)

    def acquire(self) -> Any:
        return self._wait(self.source.lock(LOCK, ttl=30, timeout=10).acquire())

    def succeed(self) -> Any:
        """Return the lease of a later holder: the one before stands still, and an operator breaks its lease."""
        self.operator.break_lock(LOCK, reason="a test")
        return self.acquire()

    def release(self, lease: Any) -> None:
        self._wait(lease.release())

    def dispatch(
        self, lease: Any, key: str = KEY, *, need: float | timedelta = 1.0, **named: Any
    ) -> AbstractContextManager[Any]:
        if self._runner is None:
            return fencelock.dispatch(lease, self.guard(), key=key, need=need, **named)
        block = fencelock.aio.dispatch(lease, self.guard(), key=key, need=need, **named)
        return BlockingBlock(block, self._runner.run, "dispatch")

    def guard(self, *resources: str) -> Any:
        make = fencelock.guard if self._runner is None else fencelock.aio.guard
        return make(self.guard_url, resources=resources or (RESOURCE,), lock=LOCK)

    def do(self, lease: Any, key: str = KEY, result: str = "", **named: Any) -> None:
        """Carry the effect out."""
        with self.dispatch(lease, key, **named) as effect:
            effect.result = result

    def begin(self, lease: Any, key: str = KEY) -> AbstractContextManager[Any]:
        """Write the intent, and return the block, whose holder does not come to its end."""
        block = self.dispatch(lease, key)
        block.__enter__()
        return block

    def close(self) -> None:
        self.operator.close()
        if self._runner is not None:
            self._wait(self.source.close())

    def _wait(self, result: Any) -> Any:
        return result if self._runner is None else self._runner.run(_awaited(result))


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


class Effects:
    """The tests. A subclass has the fixture `effects_url`, the URL of a store with nothing in it."""

    @pytest.fixture(params=["sync", "async"])
    def mailer(self, request: pytest.FixtureRequest, effects_url: str, tmp_path: Path) -> Iterator[Mailer]:
        source_url = f"sqlite:///{tmp_path / 'locks.db'}"
        with asyncio.Runner() as runner:
            made = Mailer(source_url, effects_url, None if request.param == "sync" else runner)
            yield made
            made.close()

    def test_g13_what_was_done_is_not_done_again(self, mailer: Mailer) -> None:
        first = mailer.acquire()
        mailer.do(first, result="message \N{CHECK MARK} 1")
        for is_later in (False, True):
            lease = mailer.succeed() if is_later else first
            with pytest.raises(AlreadyDoneError, match=f"'{KEY}' was done .* with token {first.token}") as caught:
                mailer.do(lease)
            assert (caught.value.result, caught.value.token) == ("message \N{CHECK MARK} 1", first.token)
        mailer.do(lease, "another key")

    def test_g13_an_intent_without_a_result_is_in_doubt_until_somebody_says_otherwise(self, mailer: Mailer) -> None:
        first = mailer.acquire()
        mailer.begin(first)
        second = mailer.succeed()
        with pytest.raises(EffectInDoubtError, match=f"began '{KEY}' at .* with token {first.token}") as caught:
            mailer.do(second)
        assert caught.value.token == first.token
        assert caught.value.holder == first.holder
        assert caught.value.began_at.startswith("20")
        mailer.do(second, result="done now", may_repeat=True)
        with pytest.raises(AlreadyDoneError) as done:
            mailer.do(second, may_repeat=True)
        assert (done.value.result, done.value.token) == ("done now", second.token)

    def test_g13_a_stale_holder_records_nothing(self, mailer: Mailer) -> None:
        """Its successor has seen the intent, and decides."""
        block = mailer.begin(mailer.acquire())
        second = mailer.succeed()
        with pytest.raises(EffectInDoubtError):
            mailer.do(second)
        with pytest.raises(StaleTokenError):
            block.__exit__(None, None, None)
        with pytest.raises(EffectInDoubtError):
            mailer.do(second)

    def test_g13_a_stale_holder_begins_nothing(self, mailer: Mailer, monkeypatch: pytest.MonkeyPatch) -> None:
        """Though the source still believed in it: the guard is asked after it."""
        first = mailer.acquire()
        with monkeypatch.context() as patch:
            patch.setattr("fencelock._api.dispatch.BaseDispatch._check", lambda *_: None)
            patch.setattr(BaseLease, "check_valid", lambda _: None)
            second = mailer.succeed()
            mailer.do(second, "another key")
            with pytest.raises(StaleTokenError):
                mailer.do(first)
        mailer.do(second)

    def test_g13_a_broken_lease_begins_nothing(self, mailer: Mailer) -> None:
        first = mailer.acquire()
        mailer.operator.break_lock(LOCK, reason="a test")
        with pytest.raises(LeaseLostError):
            mailer.do(first)
        mailer.do(mailer.acquire())

    def test_g13_a_released_lease_begins_nothing(self, mailer: Mailer) -> None:
        first = mailer.acquire()
        mailer.release(first)
        with pytest.raises(LeaseReleasedError):
            mailer.do(first)
        mailer.do(mailer.acquire())

    def test_g13_too_little_time_begins_nothing(self, mailer: Mailer, monkeypatch: pytest.MonkeyPatch) -> None:
        """At the check, and after the intent was written, which is taken back."""
        lease = mailer.acquire()
        with pytest.raises(LeaseExpiredError, match=r"s of the lease are left, and 'invoice/7' needs 1000"):
            mailer.do(lease, need=1000)
        with monkeypatch.context() as patch:
            patch.setattr(BaseLease, "remaining", lambda _: 1.0)
            with pytest.raises(LeaseExpiredError, match=r"1\.0 s of the lease are left, and 'invoice/7' needs 5"):
                mailer.do(lease, need=5)
        mailer.do(lease, need=5)

    def test_g13_an_intent_of_somebody_else_is_not_taken_back(
        self, mailer: Mailer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`may_repeat` has replaced it, and then there was no time: the effect is as much in doubt as before."""
        mailer.begin(mailer.acquire())
        second = mailer.succeed()
        with monkeypatch.context() as patch:
            patch.setattr(BaseLease, "remaining", lambda _: 1.0)
            with pytest.raises(LeaseExpiredError):
                mailer.do(second, need=5, may_repeat=True)
        with pytest.raises(EffectInDoubtError):
            mailer.do(second)

    def test_g13_an_exception_leaves_the_intent(self, mailer: Mailer) -> None:
        lease = mailer.acquire()
        with pytest.raises(ZeroDivisionError), mailer.dispatch(lease) as effect:
            fail(effect)
        with pytest.raises(EffectInDoubtError):
            mailer.do(lease)
        mailer.do(lease, may_repeat=True)

    def test_g13_keys_and_results_have_limits(self, mailer: Mailer) -> None:
        lease = mailer.acquire()
        longest = "\N{GREEK SMALL LETTER ALPHA}" * 256
        mailer.do(lease, longest, result="\N{GREEK SMALL LETTER ALPHA}" * 2048)
        with pytest.raises(AlreadyDoneError) as done:
            mailer.do(lease, longest)
        assert done.value.result == "\N{GREEK SMALL LETTER ALPHA}" * 2048
        for key in (longest + "a", "", "\0", 7):
            with pytest.raises(ConfigError):
                mailer.do(lease, key)  # type: ignore[arg-type]
        for number, result in enumerate(("x" * 4097, "\0", 7)):
            with pytest.raises(ConfigError, match="result"):
                mailer.do(lease, f"key {number}", result=result)  # type: ignore[arg-type]
            with pytest.raises(EffectInDoubtError):
                mailer.do(lease, f"key {number}")

    def test_g13_keys_are_compared_exactly(self, mailer: Mailer) -> None:
        """Not as people compare words: upper case, accents and spaces at the end make another key."""
        lease = mailer.acquire()
        for key in ("mail", "Mail", "m\N{LATIN SMALL LETTER A WITH DIAERESIS}il", "mail ", " mail", "a/b", "a%2Fb"):
            mailer.do(lease, key, result=key)
            with pytest.raises(AlreadyDoneError) as done:
                mailer.do(lease, key)
            assert done.value.result == key

    def test_g13_a_guard_of_two_resources_keeps_no_effect(self, mailer: Mailer) -> None:
        lease = mailer.acquire()
        wrong: list[tuple[Any, Any]] = [
            (mailer.guard("a", "b"), lease),
            (mailer.guard(), lease.sequencer),
            (None, lease),
        ]
        for guard, given in wrong:
            with pytest.raises(ConfigError):
                fencelock.dispatch(given, guard, key=KEY, need=1)
        needs: list[Any] = [-1, timedelta(seconds=-1), float("nan"), "10", True]
        for need in needs:
            with pytest.raises(ConfigError, match="need is the seconds"):
                mailer.dispatch(lease, need=need)
        with mailer.dispatch(lease, need=timedelta(seconds=1)):
            pass
