"""`source.check(sequencer)` as users call it, sync and async, for SQLite, memory and SQL servers.

`quorum_proofs.py` does this for etcd and ZooKeeper.
"""

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import ConfigError, LeaseCheck, Sequencer, WrongLockError
from fencelock.messages import from_headers, to_headers
from fencelock.model import draw_claim, one_way
from fencelock.stores.registry import source_store
from tests.support.helpers import wait_until

LOCK = "billing"
TTL = 30.0


class Asker:
    """A source that answers checks, sync or async, and a sync one that grants the leases."""

    def __init__(self, url: str, runner: asyncio.Runner | None) -> None:
        source_store(url).install()
        self.granter = fencelock.connect(url)
        self._runner = runner
        self._asked: Any = self.granter if runner is None else fencelock.aio.connect(url)
        self.short_ttl = max(1.0, self.granter.capabilities.ttl_min_ms / 1000)

    def acquire(self, ttl: float = TTL) -> fencelock.Lease:
        lease = self.granter.lock(LOCK, ttl=ttl, timeout=20).acquire()
        assert lease is not None
        return lease

    def check(self, sequencer: Any) -> LeaseCheck:
        answer = self._asked.check(sequencer)
        return answer if self._runner is None else self._runner.run(answer)  # type: ignore[no-any-return]

    def is_current(self, sequencer: Sequencer) -> bool:
        return self.check(sequencer).is_current

    def close(self) -> None:
        self.granter.close()
        if self._runner is not None:
            self._runner.run(self._asked.close())


class Checks:
    """The tests. A subclass has the fixture `checked_url`, the URL of a source."""

    @pytest.fixture(params=["sync", "async"])
    def asker(self, request: pytest.FixtureRequest, checked_url: str) -> Iterator[Asker]:
        with asyncio.Runner() as runner:
            made = Asker(checked_url, None if request.param == "sync" else runner)
            yield made
            made.close()

    def test_a_lease_is_current_until_it_is_released(self, asker: Asker) -> None:
        lease = asker.acquire()
        found = asker.check(lease.sequencer)
        assert (found.lock, found.token, found.last_token) == (LOCK, lease.token, lease.token)
        assert found.is_current
        assert TTL / 2 < found.remaining <= TTL
        assert asker.check(Sequencer.parse(str(lease.sequencer))).is_current
        assert lease.check().is_current
        assert not asker.is_current(dataclasses.replace(lease.sequencer, token=lease.token + 1))
        lease.release()
        found = asker.check(lease.sequencer)
        assert not found.is_current
        assert found.remaining == 0
        assert found.last_token == lease.token

    def test_a_broken_lease_is_over_and_its_successor_is_current(self, asker: Asker) -> None:
        lease = asker.acquire()
        broken = asker.granter.break_lock(LOCK, reason="a test")
        assert not asker.is_current(lease.sequencer)
        assert not asker.is_current(broken.sequencer)
        second = asker.acquire()
        found = asker.check(lease.sequencer)
        assert (found.is_current, found.token, found.last_token) == (False, lease.token, second.token)
        assert asker.is_current(second.sequencer)
        second.release()

    def test_a_lease_that_expired_is_over(self, asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody has renewed it, and nobody has acquired the lock since."""
        monkeypatch.setattr("fencelock._api.source.keeper", Negligent)
        begun = time.monotonic()
        lease = asker.acquire(asker.short_ttl)
        was_current = asker.is_current(lease.sequencer)
        assert was_current or time.monotonic() - begun > asker.short_ttl / 2  # A busy machine was too late to ask.
        wait_until(lambda: not asker.is_current(lease.sequencer))
        assert time.monotonic() - begun > asker.short_ttl / 2

    def test_an_unknown_lock_is_not_held(self, asker: Asker) -> None:
        lease = asker.acquire()
        unknown = dataclasses.replace(lease.sequencer, lock="never acquired")
        found = asker.check(unknown)
        assert (found.lock, found.is_current, found.last_token) == ("never acquired", False, None)
        lease.release()

    def test_a_sequencer_with_another_proof_or_history_is_not_current(self, asker: Asker) -> None:
        lease = asker.acquire()
        changed = (
            dataclasses.replace(lease.sequencer, proof=one_way(draw_claim())),
            dataclasses.replace(lease.sequencer, proof=lease.sequencer.digest),
            dataclasses.replace(lease.sequencer, history_id=draw_claim()[:16]),
        )
        assert [asker.is_current(one) for one in (*changed, lease.sequencer)] == [False, False, False, True]
        lease.release()

    def test_a_lease_of_an_older_history_is_over(self, asker: Asker) -> None:
        lease = asker.acquire()
        asker.granter.raise_epoch(reason="a test")
        assert not asker.is_current(lease.sequencer)

    def test_a_sequencer_of_another_source_is_refused_and_both_are_named(self, asker: Asker) -> None:
        with asker.acquire() as lease:
            here = lease.sequencer.source_id
            other = dataclasses.replace(lease.sequencer, source_id="another", proof=one_way(draw_claim()))
            with pytest.raises(WrongLockError, match=f"is of source another, and this is source {here}"):
                asker.check(other)

    def test_a_check_takes_a_sequencer_or_what_has_one(self, asker: Asker) -> None:
        lease = asker.acquire()
        assert asker.check(lease).is_current
        assert asker.check(from_headers(to_headers(lease))).is_current
        for wrong in (str(lease.sequencer), 7, None):
            with pytest.raises(ConfigError, match="check takes a Sequencer"):
                asker.check(wrong)
        lease.release()


class Negligent:
    """A keeper that renews nothing."""

    def start(self) -> None:
        pass

    def add(self, record: Any) -> None:
        pass
