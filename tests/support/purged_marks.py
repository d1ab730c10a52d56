"""What a purge of marks leaves and refuses over a guard's store (G15), written once for all stores.

The locks are in a SQLite file: what these tests are about is the store that keeps marks and floors.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import ConfigError, GuardError, SealLostError, Sequencer, StaleTokenError, inspect_resources
from fencelock._api.credentials import MEMORY, TenureMemory
from fencelock.protocol import AuditEntry, Begin, Commit, FindOldMarks, Floor, PurgeMarks, SetFloor
from fencelock.stores.registry import guard_store
from tests.process.actors import Actor
from tests.support.helpers import wait_until

A_MOMENT_S = 0.2
"""How long a seal may try to pass a purge that is not committed; it is refused whether it begins before or after."""
LONG_AGO_S = 86_400.0
MANY = 7


class Shop:
    """A program with a lock and a mark for each order, and the operator who purges marks."""

    def __init__(self, source_url: str, guard_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source_url = source_url
        self.guard_url = guard_url
        self.source = fencelock.connect(source_url)
        self.source.install()
        self._monkeypatch = monkeypatch

    def acquire(self, order: int = 1) -> fencelock.Lease:
        return self.source.lock(f"order:{order}", ttl=30, timeout=10).acquire()

    def guard(self, order: int = 1, **named: Any) -> fencelock.Guard:
        return fencelock.guard(self.guard_url, **{"resource": f"order:{order}", "lock": f"order:{order}"} | named)

    def work(self, order: int = 1) -> Sequencer:
        """Work on an order under its lock, release that, and return the sequencer, which its late thread has."""
        with self.acquire(order) as lease:
            self.guard(order).seal(lease)
            return lease.sequencer

    def in_another_process(self) -> None:
        """From here on sequencers are used as by a process that remembers none of their seals."""
        for name, value in vars(TenureMemory()).items():
            self._monkeypatch.setattr(MEMORY, name, value)

    def purge(self, older_than: float = 0.0) -> int:
        return fencelock.purge_marks(self.guard_url, source=self.source, older_than=older_than)

    def purge_all(self, count: int = 1) -> None:
        """Purge until so many marks have gone: the clock of a store may stand a moment behind."""
        gone = 0

        def are_gone() -> bool:
            nonlocal gone
            gone += self.purge()
            return gone >= count

        wait_until(are_gone)
        assert gone == count

    def marks(self) -> list[str]:
        return [mark.resource for mark in inspect_resources(self.guard_url).marks]

    def floors(self) -> dict[str, int]:
        return dict(inspect_resources(self.guard_url).floors)

    def floor(self) -> int:
        return self.floors().get(self.source_id, 0)

    @property
    def source_id(self) -> str:
        return self.source.describe().source_id


class PurgedMarks:
    """The tests. A subclass has the fixture `marks_url`, the URL of a guard's store with nothing in it."""

    @pytest.fixture
    def shop(self, marks_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
        made = Shop(f"sqlite:///{tmp_path / 'locks.db'}", marks_url, monkeypatch)
        yield made
        made.source.close()

    def test_g15_what_a_purged_mark_refused_its_floor_refuses(self, shop: Shop) -> None:
        """A holder that is frozen over the purge comes back in another tenure, as its child or its service does."""
        old, sealed = shop.acquire(), shop.acquire(2)
        frozen = old.sequencer
        shop.source.break_lock("order:1", reason="as if it had expired")
        newest = shop.work()
        sealed.release()
        shop.purge_all()
        assert (shop.marks(), shop.floor()) == ([], newest.token)
        shop.in_another_process()
        for stale in (frozen, newest):
            for use in (shop.guard().seal, lambda lease: shop.guard().transaction(lease).__enter__()):
                with pytest.raises(StaleTokenError, match=r"up to token \d+ were purged here: token \d+") as caught:
                    use(stale)
                assert (caught.value.token, caught.value.mark) == (stale.token, newest.token)
                assert caught.value.resource == "order:1"
        assert shop.marks() == []
        shop.work()
        assert shop.marks() == ["order:1"]

    def test_g15_the_tenure_that_had_sealed_is_told_that_its_seal_is_gone(self, shop: Shop) -> None:
        """And so is its close, which raises no mark a second time (G9)."""
        with shop.acquire() as lease:
            stale = lease.sequencer
            shop.guard().seal(stale)
        shop.purge_all()
        for use in (shop.guard().seal, lambda lease: shop.guard().transaction(lease).__enter__()):
            with pytest.raises(SealLostError):
                use(stale)
        assert shop.marks() == []

    def test_g15_a_slow_holder_is_refused_at_a_new_resource_and_acquires_again(self, shop: Shop) -> None:
        """What the floor costs: nothing of its order was purged, but its token is older than something that was."""
        slow = shop.acquire(2)
        shop.work(1)
        shop.purge_all()
        with slow, pytest.raises(StaleTokenError, match="acquire the lock again"):
            shop.guard(2).seal(slow)
        shop.work(2)

    def test_g15_a_resource_that_kept_its_mark_minds_no_floor(self, shop: Shop) -> None:
        slow = shop.acquire(2)
        shop.guard(2).seal(slow)
        shop.work(1)
        shop.purge_all()
        with shop.guard(2).transaction(slow):
            pass
        assert shop.marks() == ["order:2"]
        slow.release()

    def test_g15_the_mark_of_a_running_lease_and_a_young_one_stay(self, shop: Shop) -> None:
        with shop.acquire() as lease:
            shop.guard().seal(lease)
            assert shop.purge() == 0
            with shop.guard().transaction(lease):
                pass
        assert shop.purge(LONG_AGO_S) == 0
        assert (shop.marks(), shop.floors()) == (["order:1"], {})

    def test_g15_a_rebound_a_poisoned_and_another_sources_mark_stay(self, shop: Shop, tmp_path: Path) -> None:
        shop.work(1)
        shop.guard(1).rebind("order:1, moved", source=shop.source, reason="a test")
        shop.guard(2).raise_to(10**6, reason="no source has issued it yet")
        poisoned = Sequencer(shop.source_id, "history", "order:3", 10**6, "0" * 32)
        shop.guard(3).seal(poisoned)
        other = Shop(f"sqlite:///{tmp_path / 'others.db'}", shop.guard_url, shop._monkeypatch)
        other.work(4)
        other.source.close()
        shop.work(5)
        shop.purge_all()
        assert shop.marks() == ["order:1", "order:2", "order:3", "order:4"]
        assert list(shop.floors()) == [shop.source_id]

    def test_g15_a_resource_comes_to_another_source_no_lower_than_its_floor(self, shop: Shop, tmp_path: Path) -> None:
        """Its mark of the one source was purged, another one took it, and now it is bound to the first one again."""
        other = Shop(f"sqlite:///{tmp_path / 'others.db'}", shop.guard_url, shop._monkeypatch)
        for _ in range(3):
            stale = shop.work()
        shop.purge_all()
        shop.in_another_process()
        other.work()
        shop.guard().rebind("order:1", source=shop.source, reason="back again")
        assert shop.guard().mark().token == stale.token
        with pytest.raises(StaleTokenError):
            shop.guard().seal(stale)
        shop.work()
        other.source.close()

    def test_g15_two_purges_at_once_forget_each_mark_once(self, shop: Shop) -> None:
        highest = [shop.work(order) for order in range(MANY)][-1].token
        wait_until(lambda: len(found(shop)) == MANY)
        with ThreadPoolExecutor(2) as threads:
            counts = list(threads.map(lambda _: shop.purge(), range(2)))
        assert (sum(counts), shop.marks(), shop.floor()) == (MANY, [], highest)

    def test_g15_a_mark_that_was_sealed_again_stays(self, shop: Shop) -> None:
        """After it was found, and before it is purged."""
        shop.work()
        wait_until(lambda: found(shop) != ())
        old = found(shop)
        newer = shop.work()
        assert in_one_transaction(shop, purge_of(old)) == 0
        assert (shop.guard().mark().token, shop.floors()) == (newer.token, {})

    def test_g15_a_seal_that_meets_a_purge_is_refused_after_it(self, shop: Shop) -> None:
        frozen = shop.acquire().sequencer
        shop.source.break_lock("order:1", reason="as if it had expired")
        shop.work()
        wait_until(lambda: found(shop) != ())
        old = found(shop)
        shop.in_another_process()
        with ThreadPoolExecutor(1) as threads, closing(guard_store(shop.guard_url).connect()) as connection:
            connection.perform(Begin())
            assert connection.perform(purge_of(old)) == 1
            sealing = threads.submit(shop.guard().seal, frozen)
            wait_until_waiting(sealing)
            connection.perform(Commit())
            with pytest.raises(StaleTokenError):
                sealing.result()
        assert (shop.marks(), shop.floor()) == ([], old[0].token)

    def test_g15_a_purge_that_is_undone_leaves_mark_and_no_floor(self, shop: Shop) -> None:
        shop.work()
        wait_until(lambda: found(shop) != ())
        with closing(guard_store(shop.guard_url).connect()) as connection:
            connection.perform(Begin())
            connection.perform(purge_of(found(shop)))
            connection.rollback()
        assert (shop.marks(), shop.floors()) == (["order:1"], {})

    def test_g15_a_purge_that_is_killed_before_its_commit_leaves_mark_and_no_floor(
        self, shop: Shop, tmp_path: Path
    ) -> None:
        token = shop.work().token
        with closing(purger(shop, tmp_path)) as purging:
            assert purging.hear() == 1
            purging.kill()
        assert (shop.guard().mark().token, shop.floors()) == (token, {})
        shop.work()
        shop.purge_all()

    def test_g15_a_purge_that_is_frozen_before_its_commit_takes_nothing_from_who_seals_meanwhile(
        self, shop: Shop, tmp_path: Path
    ) -> None:
        """PostgreSQL and MySQL end its transaction, and others find at its end that the mark has changed."""
        if is_file(shop):
            pytest.skip("a file waits for the purge, as for any writer")
        shop.work()
        with closing(purger(shop, tmp_path)) as purging:
            assert purging.hear() == 1
            purging.freeze()
            newer = shop.work()
            purging.thaw()
            purging.say()
            assert purging.hear() != "purged"
        assert (shop.guard().mark().token, shop.floors()) == (newer.token, {})

    def test_g15_a_floor_is_lowered_by_an_operator_alone(self, shop: Shop) -> None:
        slow = shop.acquire(2)
        floor = shop.work(1).token
        shop.purge_all()
        fencelock.set_floor(shop.guard_url, shop.source_id, floor + 5, reason="a test")
        assert shop.floor() == floor + 5
        with pytest.raises(StaleTokenError):
            shop.work(3)
        fencelock.set_floor(shop.guard_url, shop.source_id, slow.token - 1, reason="cured")
        with slow:
            shop.guard(2).seal(slow)
        with pytest.raises(GuardError, match=f"now, not {floor + 5}"):
            fencelock.set_floor(shop.guard_url, shop.source_id, 1, reason="late", expected=floor + 5)
        fencelock.set_floor(shop.guard_url, shop.source_id, 0, reason="removed", expected=slow.token - 1)
        assert shop.floors() == {}
        changed = AuditEntry("floor", "", 1, 2, "me", "somebody else was faster")
        with pytest.raises(GuardError, match="now, not 1"):
            in_one_transaction(shop, SetFloor(Floor(shop.source_id, 2), changed))

    def test_g15_a_purge_is_asked_for_a_source_and_an_age(self, shop: Shop) -> None:
        shop.work()
        url = shop.guard_url
        wait_until(lambda: fencelock.purge_marks(url, source=shop.source_url, older_than=0) == 1)
        wrong: list[Any] = [-1, float("nan"), True, "90"]
        for age in wrong:
            with pytest.raises(ConfigError, match="older_than must be seconds"):
                fencelock.purge_marks(url, source=shop.source, older_than=age)
        with pytest.raises(ConfigError):
            fencelock.set_floor(url, shop.source_id, -1, reason="a test")
        with pytest.raises(ConfigError):
            fencelock.set_floor(url, shop.source_id, 5, reason=" ")


def found(shop: Shop) -> tuple[fencelock.Mark, ...]:
    with closing(guard_store(shop.guard_url).connect()) as connection:
        reply: Any = connection.perform(FindOldMarks(shop.source_id, 0))
        return tuple(reply)


def purge_of(marks: tuple[fencelock.Mark, ...]) -> PurgeMarks:
    floor = Floor(str(marks[0].source_id), max(mark.token for mark in marks))
    return PurgeMarks(marks, floor, AuditEntry("purge", "", floor.token, floor.token, "me", "a test"))


def purger(shop: Shop, folder: Path) -> Actor:
    """Return a process that purges order 1, and waits before its commit."""
    wait_until(lambda: found(shop) != ())
    script = f"""
    from tests.support.purged_marks import purge_of
    from fencelock.protocol import Begin, Commit, FindOldMarks
    from fencelock.stores.registry import guard_store

    connection = guard_store({shop.guard_url!r}).connect()
    old = connection.perform(FindOldMarks({shop.source_id!r}, 0))
    connection.perform(Begin())
    say(connection.perform(purge_of(old)))
    hear()
    try:
        connection.perform(Commit())
        say("purged")
    except Exception as error:
        say(type(error).__name__)
    """
    return Actor(folder / "unused.db", script)


def is_file(shop: Shop) -> bool:
    return shop.guard_url.startswith("sqlite:")


def in_one_transaction(shop: Shop, request: PurgeMarks | SetFloor) -> Any:
    with closing(guard_store(shop.guard_url).connect()) as connection:
        connection.perform(Begin())
        reply = connection.perform(request)
        connection.perform(Commit())
        return reply


def wait_until_waiting(sealing: Any) -> None:
    """Give a seal a moment to come to the lock; a store that takes none may have refused it already."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(sealing.exception, A_MOMENT_S).exception()
