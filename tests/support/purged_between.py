"""What the rule G15 means at a store that compares at the end of a transaction, written once for etcd and ZooKeeper.

The floors are read with the marks, long before the request that relies on them; a purge may come in between.
"""

from typing import Any

import pytest

import fencelock
from fencelock import FencelockError, SealLostError, StaleTokenError
from fencelock._api.validation import MAX_RESOURCES
from fencelock.errors import SchemaError
from fencelock.model import Mark
from fencelock.protocol import (
    AuditEntry,
    Begin,
    Commit,
    ConflictError,
    FindOldMarks,
    Floor,
    InspectResources,
    PurgeMarks,
    RaiseMarks,
    ReadMarks,
    ResourceReport,
    SetFloor,
)
from fencelock.protocol.mark_requests import MAX_PURGED_MARKS, floor_reason
from fencelock.stores.registry import guard_store
from tests.support.guarded_keys import Face, Loss
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource, sequencer

SOURCE = "source"
MAX_LOST = 10
"""More requests than a purge of one mark has."""
UNREADABLE = (
    b"nonsense",
    b"[]",
    b'{"schema":3}',
    b'{"schema":3,"floors":{"source":9}}',
    b'{"schema":3,"floors":{"source":"0"}}',
    b'{"schema":3,"floors":{"source":"-1"}}',
    b'{"schema":3,"floors":{"source":"9999999999999999999"}}',
    b'{"schema":4,"floors":{"source":"9"}}',
)


class Target:
    """The store of a face, and what operators and slow holders ask it for."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def perform(self, *requests: Any) -> Any:
        """Send requests on a new connection, and return it."""
        connection = self.store.connect()
        for request in requests:
            connection.perform(request)
        return connection

    def begin_seal(self, token: int) -> Any:
        """Send all of a seal but its Commit, and return the connection."""
        return self.perform(Begin(), ReadMarks((RESOURCE,)), RaiseMarks((RESOURCE,), sequencer(token)))

    def find(self, after: str = "", limit: int = MAX_PURGED_MARKS) -> tuple[Mark, ...]:
        """Return the marks that may be purged."""
        return self.store.connect().perform(FindOldMarks(SOURCE, 0, after, limit))  # type: ignore[no-any-return]

    def begin_purge(self) -> tuple[Any, int]:
        """Send all of a purge but its Commit; return the connection, and how many marks the purge is to forget."""
        marks = self.find()
        tokens = [mark.token for mark in marks]
        entry = AuditEntry("purge", "", min(tokens), max(tokens), "somebody", "a test")
        connection = self.perform(Begin())
        return connection, connection.perform(PurgeMarks(marks, Floor(SOURCE, max(tokens)), entry))

    def purge(self) -> int:
        """Purge the marks that may be."""
        connection, count = self.begin_purge()
        connection.perform(Commit())
        return count

    def report(self) -> ResourceReport:
        """Return what the store keeps."""
        return self.store.connect().perform(InspectResources(None))  # type: ignore[no-any-return]

    def floor(self) -> int:
        """Return the floor, 0 if there is none."""
        return dict(self.report().floors).get(SOURCE, 0)

    def set_floor(self, token: int) -> None:
        """Set the floor as an operator does."""
        entry = AuditEntry("floor", "", self.floor(), token, "somebody", floor_reason("a test", SOURCE))
        self.perform(Begin(), SetFloor(Floor(SOURCE, token), entry), Commit())


class PurgedBetween:
    """The tests. A subclass has the fixture `face`."""

    @pytest.fixture
    def target(self, face: Face) -> Target:
        return Target(guard_store(face.url))

    @pytest.mark.parametrize("before", [0, 3], ids=["the first floor", "a higher floor"])
    def test_a_floor_raised_after_it_was_read_refuses_the_seal(self, face: Face, target: Target, before: int) -> None:
        if before:
            target.set_floor(before)
        late = target.begin_seal(5)
        face.guard().seal(HandmadeLease(9))
        assert target.purge() == 1
        with pytest.raises(ConflictError, match="the record of the floors has changed"):
            late.perform(Commit())
        with pytest.raises(StaleTokenError, match="up to token 9 were purged"):
            face.guard().seal(HandmadeLease(5))
        face.guard().seal(HandmadeLease(10))

    def test_a_floor_lowered_after_it_was_read_lets_the_seal_decide_anew(self, face: Face, target: Target) -> None:
        target.set_floor(4)
        late = target.begin_seal(5)
        target.set_floor(0)
        with pytest.raises(ConflictError, match="the record of the floors has changed"):
            late.perform(Commit())
        face.guard().seal(HandmadeLease(1))

    def test_floors_that_cannot_be_read_admit_nobody_without_a_mark(self, face: Face, target: Target) -> None:
        face.guard().seal(HandmadeLease(2))
        target.purge()
        face.guard().seal(HandmadeLease(3))
        new, known = fencelock.guard(face.url, resource="new", lock=LOCK), face.guard()
        for number, value in enumerate(UNREADABLE):
            face.put_floors(value)
            for refused in (lambda: new.seal(HandmadeLease(99)), target.purge, target.report):
                with pytest.raises(SchemaError):
                    refused()
            known.seal(HandmadeLease(10 + number))

    def test_as_many_marks_as_one_purge_takes_fit_into_one_request(self, face: Face, target: Target) -> None:
        names = [f"order:{number:03}" for number in range(2 * MAX_RESOURCES)]
        for some in (names[:MAX_RESOURCES], names[MAX_RESOURCES:]):
            fencelock.guard(face.url, resources=some, lock=LOCK).seal(HandmadeLease(5))
        assert target.purge() == MAX_PURGED_MARKS
        assert [mark.resource for mark in target.report().marks] == names[MAX_PURGED_MARKS:]
        assert target.purge() == len(names) - MAX_PURGED_MARKS
        assert target.floor() == 5

    def test_a_search_goes_on_behind_a_mark_in_the_order_of_the_resources(self, face: Face, target: Target) -> None:
        names = ["a b", "a-b", "a:b", "ab", "ä"]
        fencelock.guard(face.url, resources=names, lock=LOCK).seal(HandmadeLease(5))
        found: list[str] = []
        while page := target.find(found[-1] if found else "", 2):
            found += [mark.resource for mark in page]
        assert found == sorted(names, key=str.encode)
        searching = target.store.connect()
        pages = [searching.perform(FindOldMarks(SOURCE, 0, after, 2)) for after in ("", "a-b", "ab")]
        assert [mark.resource for page in pages for mark in page] == found

    @pytest.mark.parametrize("is_done", [True, False], ids=["reply", "request"])
    def test_whatever_a_purge_loses_the_floor_is_there_when_the_mark_is_gone(
        self, face: Face, target: Target, is_done: bool
    ) -> None:
        guard = face.guard()
        loss = face.watch(guard, Loss(-1, is_done=is_done))
        for number in range(MAX_LOST):
            token = number + 1
            face.guard().seal(HandmadeLease(token))
            loss.number, loss.seen = number, 0
            error = self._purge_of(Target(guard._core.store))
            is_gone = not target.report().marks
            assert is_gone == (target.floor() == token)
            assert is_gone if error is None else not (is_gone and error.definite)
            if not loss.has_happened():
                assert is_gone
                assert number > 0
                return
            if not is_gone:
                target.purge()
        raise AssertionError("a purge has no end")

    def _purge_of(self, target: Target) -> FencelockError | None:
        try:
            target.purge()
        except FencelockError as error:
            return error
        return None

    def test_a_purge_that_comes_late_deletes_no_newer_mark(self, face: Face, target: Target) -> None:
        """Its mark was purged and made again meanwhile, and has the same version."""
        face.guard().seal(HandmadeLease(5))
        late, count = target.begin_purge()
        assert count == 1
        target.purge()
        face.guard().seal(HandmadeLease(9))
        with pytest.raises(ConflictError):
            late.perform(Commit())
        assert (face.guard().mark().token, target.floor()) == (9, 5)

    def test_a_mark_that_was_made_again_does_not_pass_for_the_old_one(self, face: Face, target: Target) -> None:
        """A seal that had read the old mark is refused, and so is a block that relies on it."""
        face.guard().seal(HandmadeLease(5))
        late = target.begin_seal(7)

        def write_across() -> None:
            with face.guard().transaction(HandmadeLease(5)) as txn:
                face.put(txn, "late")
                target.purge()
                target.begin_seal(9).perform(Commit())

        with pytest.raises(StaleTokenError, match="its mark is 9"):
            write_across()
        assert face.value() == "initial"
        with pytest.raises(ConflictError, match="the mark of resource 'reports' has changed"):
            late.perform(Commit())
        assert face.guard().mark().token == 9

    def test_a_block_whose_mark_was_purged_has_lost_its_seal(self, face: Face, target: Target) -> None:
        lease = HandmadeLease(5)

        def write_across() -> None:
            with face.guard().transaction(lease) as txn:
                face.put(txn, "late")
                target.purge()

        with pytest.raises(SealLostError):
            write_across()
        with pytest.raises(SealLostError):
            face.write(lease, "late")
        with pytest.raises(StaleTokenError, match="were purged"):
            face.guard().seal(lease.sequencer)
        assert face.value() == "initial"

    def test_a_floor_costs_a_seal_no_trip(self, face: Face, target: Target) -> None:
        guard = face.guard()
        guard.mark()
        trips = face.trips(guard)
        guard.seal(HandmadeLease(5))
        first = trips()
        target.purge()
        guard.seal(HandmadeLease(6))
        assert trips() == 2 * first
        guard.seal(HandmadeLease(7))
        assert trips() == 2 * first + 2

    def test_a_rebound_resource_keeps_its_mark(self, face: Face, target: Target) -> None:
        """Under the seals of every later lease, too."""
        face.guard().seal(HandmadeLease(5))
        face.guard().rebind("another", source=HandmadeSource(7), reason="a test")
        lease = HandmadeLease(8, lock="another")
        face.guard("another").seal(lease)
        face.guard("another").close(lease)
        assert target.find() == ()
        assert face.guard("another").mark().token == 8
