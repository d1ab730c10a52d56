"""A store that only compares at the end keeps every rule of a guard, and one that compares too little is rejected."""

import contextlib
import threading

import pytest

from fencelock import GuardError, SchemaError, StaleTokenError, UnsupportedError
from fencelock.model import Mark
from fencelock.stores.optimistic.stored_values import StoredMark, encode_mark
from fencelock.testing.conformance import AsyncGuardConformance, GuardConformance, failure
from fencelock.testing.conformance.rig import refusal, require
from tests.conformance import optimistic_guard as of


class TestOptimisticGuard(of.InVersionedTarget, GuardConformance):
    pass


class TestAsyncOptimisticGuard(of.InVersionedTarget, AsyncGuardConformance):
    pass


def at_once(*functions):
    """Run functions in threads, which may be refused as stale, and wait for their ends."""
    barrier = threading.Barrier(len(functions))

    def run(function):
        barrier.wait()
        with contextlib.suppress(StaleTokenError):
            function()

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


class Checks(of.InVersionedTarget, GuardConformance):
    """Checks of faults that only such a store can have."""

    def test_another_resource_sealed_meanwhile_refuses_the_block(self):
        guard, lease = self.guard("r", "s"), self.sequencer(5)
        with (
            refusal(StaleTokenError, "G2: every mark is compared at the end"),
            guard.transaction(lease) as native,
        ):
            self.put(native, "red", "k", "late")
            at_once(lambda: self.guard("s").seal(self.sequencer(6)))
        require(self.value() is None, "G2: and nothing is written")

    def test_an_unfenced_write_to_what_was_read_refuses_the_block(self):
        guard, lease = self.guard(), self.sequencer(5)
        with refusal(GuardError, "what the block has read is compared"), guard.transaction(lease) as native:
            native.get("red", "k")
            self.put(native, "red", "k", "late")
            self.put_alone("red", "k", "unfenced")
        require(self.value() == "unfenced", "and nothing is written")

    def test_a_seal_that_is_overtaken_decides_anew(self):
        """A newer holder seals between its read and its write, so the write would lower the mark."""
        self.overtake = lambda: self.guard().seal(self.sequencer(8))
        with refusal(StaleTokenError, "G1: an overtaken seal is refused") as caught:
            self.guard().seal(self.sequencer(5))
        require((caught[0].token, caught[0].mark) == (5, 8), f"with both numbers: {caught[0]}")
        require(self.mark().token == 8, f"and lowers nothing: {self.mark()}")

    def test_a_floor_that_rises_while_a_seal_is_on_its_way_refuses_it(self):
        """G15: a newer mark was made and purged between its reads and its write."""
        self.overtake = self.seal_and_purge
        with refusal(StaleTokenError, "G15: the floors are compared with the marks"):
            self.guard().seal(self.sequencer(5))
        require(self.mark().token == 0, f"and no mark is made: {self.mark()}")

    def seal_and_purge(self):
        self._seal(8)
        self.purge(self._old())

    def test_of_many_seals_at_once_the_highest_stays(self):
        at_once(*(lambda token=token: self.guard().seal(self.sequencer(token)) for token in range(1, 9)))
        require(self.mark().token == 8, f"G1: the highest token stays: {self.mark()}")

    overtake = None

    def make_store(self, url):
        store = super().make_store(url)
        overtake, self.overtake = self.overtake, None
        if overtake is not None:
            store.codec_type = type("Overtaken", (store.codec_type,), {"_write": overtaken(overtake)})
        return store


def overtaken(first):
    """Return a codec's write method that lets another writer in before its first write."""
    left = [first]

    def write(self, changes):
        if left:
            left.pop()()
        yield from super(type(self), self)._write(changes)

    return write


class TestChecks(Checks):
    pass


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (of.NothingComparedAtTheEnd, "test_a_seal_does_not_overtake_an_open_transaction"),
        (of.NothingComparedAtTheEnd, "test_another_resource_sealed_meanwhile_refuses_the_block"),
        (of.NothingComparedByASeal, "test_a_seal_that_is_overtaken_decides_anew"),
        (of.FloorsNotCompared, "test_a_floor_that_rises_while_a_seal_is_on_its_way_refuses_it"),
        (of.RefusalsIgnored, "test_another_resource_sealed_meanwhile_refuses_the_block"),
        (of.RefusalsIgnored, "test_a_seal_that_is_overtaken_decides_anew"),
        (of.OnlyTheFirstMarkCompared, "test_another_resource_sealed_meanwhile_refuses_the_block"),
        (of.ReadsNotCompared, "test_an_unfenced_write_to_what_was_read_refuses_the_block"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_store_that_compares_too_little_is_rejected(broken, check):
    class Kit(Checks):
        codec_type = broken

    assert isinstance(failure(Kit, check), AssertionError)


@pytest.fixture
def kit():
    checks = Checks()
    checks.setup_method()
    yield checks
    checks.teardown_method()


def test_g6_protecting_is_refused_with_what_to_do_instead(kit):
    with pytest.raises(UnsupportedError, match=r"has no triggers.*give the right to write there"):
        kit.guard().protect("red")
    with pytest.raises(GuardError, match="protects no table"):
        kit.guard().unprotect(reason="a check")


MARK = encode_mark(StoredMark(Mark("r", "lock", 5, "s", "h")))


@pytest.mark.parametrize(
    "value",
    [
        b"", b"{}", b"[1]", b"\xff", b"[" * 100_000, b'{"schema":3,"lock":"lock","token":"x"}',
        MARK.replace(b'"5"', b"5"), MARK.replace(b'"5"', b"Infinity"), MARK.replace(b'"lock",', b"[],"),
        MARK.replace(b',"closed":false', b""), MARK.replace(b',"rebound":false', b""),
    ],
)  # fmt: skip
def test_what_is_no_mark_admits_nobody(kit, value):
    kit.make_store(kit.url).target.swap({}, {("mark", "r"): value})
    with pytest.raises(SchemaError, match="as the mark of resource 'r' is not a mark"):
        kit.seal(kit.guard(), kit.sequencer(5))


def test_a_mark_by_hand_is_one(kit):
    kit.make_store(kit.url).target.swap({}, {("mark", "r"): MARK})
    assert kit.mark().token == 5


def test_a_mark_of_another_version_admits_nobody(kit):
    kit.make_store(kit.url).target.swap({}, {("mark", "r"): b'{"schema":1}'})
    with pytest.raises(SchemaError, match="guard with schema 1, and this version of fencelock has schema 3"):
        kit.seal(kit.guard(), kit.sequencer(5))


def test_no_mark_is_made_where_a_source_keeps_its_locks(kit):
    kit.make_store(kit.url).target.swap({}, {"locks": b"here"})
    with pytest.raises(GuardError, match="is the prefix of a source of locks"):
        kit.seal(kit.guard(), kit.sequencer(5))
    assert kit.mark().token == 0
