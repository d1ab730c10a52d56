"""G15 on an SQL server: a mark goes only under a floor, which no client passes and nobody but its owner moves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import fencelock
from fencelock import GuardError, Mark, StaleTokenError
from fencelock._api.guard import operate_on
from fencelock.model import MAX_TOKEN
from fencelock.protocol.generators import ask
from fencelock.protocol.guard_requests import (
    AuditEntry,
    Begin,
    Commit,
    FindOldMarks,
    Floor,
    GuardFlow,
    PurgeMarks,
    RaiseMarks,
    ReadMarks,
    SetFloor,
)
from fencelock.protocol.mark_requests import floor_reason
from fencelock.stores.registry import guard_store
from tests.sql.dialect import MakeRole, run
from tests.sql.guarded import Guarded, Step
from tests.support.guards import LOCK, HandmadeLease, HandmadeSource, sequencer
from tests.support.purged_marks import PurgedMarks

ENTITY = "order:7f1c2a90-3c55-4c39-9d4e-2f1f6f0c8a11"
SOURCE = sequencer(1).source_id
FLOOR = 10
BELOW = rf"(token 10 is refused|token 10 is not above floor {FLOOR} of source {SOURCE[:8]} at resource {ENTITY})"


def entry(from_token: int, to_token: int, action: str = "floor") -> AuditEntry:
    return AuditEntry(action, "", from_token, to_token, "tester", floor_reason("a test", SOURCE))


def purging(*marks: Mark, floor: int = FLOOR) -> GuardFlow[int]:
    yield Begin()
    count = yield from ask(PurgeMarks(marks, Floor(SOURCE, floor), entry(0, floor, "purge")))
    yield Commit()
    return count


def setting(from_token: int, to_token: int) -> GuardFlow[None]:
    yield from setting_by(entry(from_token, to_token))


class Purged:
    """A database that had marks of entities, without protected tables."""

    def __init__(self, guarded: Guarded) -> None:
        self.guarded = guarded
        self.sql = guarded.sql
        self.url = guarded.database.url()

    def seal(self, token: int, resource: str = ENTITY, **changes: Any) -> Mark:
        guard = self.guarded.guard(resource)
        guard.seal(HandmadeLease(token, **changes))
        return guard.mark()

    def purge(self, *marks: Mark, floor: int = FLOOR) -> int:
        return operate_on(self.url, purging(*marks, floor=floor))

    def under_floor(self) -> None:
        """Have the mark of an entity purged."""
        assert self.purge(self.seal(FLOOR)) == 1

    @contextmanager
    def in_progress(self, *marks: Mark) -> Iterator[None]:
        """Purge marks in a transaction that ends with the block."""
        connection = guard_store(self.url).connect()
        try:
            connection.perform(Begin())
            assert connection.perform(PurgeMarks(marks, Floor(SOURCE, FLOOR), entry(0, FLOOR, "purge"))) == len(marks)
            yield
            connection.perform(Commit())
        finally:
            connection.close()

    def age(self) -> None:
        """Let each mark have been written a day before."""
        self.guarded.database.rows(f"UPDATE {self.sql.prefix}mark SET raised_at = raised_at - INTERVAL '1' DAY")

    def find(self, older_than_ms: int = 0, **page: Any) -> list[str]:
        return [mark.resource for mark in operate_on(self.url, ask(FindOldMarks(SOURCE, older_than_ms, **page)))]

    def marks(self) -> dict[str, int]:
        return {mark.resource: mark.token for mark in fencelock.inspect_resources(self.url).marks}

    def floors(self) -> tuple[Floor, ...]:
        return fencelock.inspect_resources(self.url).floors

    def audit(self) -> list[tuple[Any, ...]]:
        """Return each entry of the audit, and whether it names no resource."""
        look = f"SELECT action, resource = '', from_token, to_token FROM {self.sql.prefix}guard_audit ORDER BY id"
        return self.guarded.database.rows(look)  # type: ignore[no-any-return]

    def refuses(self, native: Any, statement: str, *params: object) -> str:
        """Return the code with which the server refuses a statement."""
        with pytest.raises(self.sql.client_error) as caught:
            run(native, statement, *params)
        code = self.sql.code_of(caught.value)
        run(native, "ROLLBACK")
        return code


@pytest.fixture
def purged(guarded: Guarded) -> Purged:
    return Purged(guarded)


class TestPurgedMarks(PurgedMarks):
    @pytest.fixture
    def marks_url(self, unprotected: Guarded) -> str:
        url: str = unprotected.database.url()
        guard_store(url).install()
        return url


# --- the refusal, for every client ---------------------------------------------------------------------------
def test_g15_a_client_that_seals_by_one_call_is_refused_below_the_floor_too(purged: Purged) -> None:
    purged.under_floor()
    seal = f"{purged.sql.call}seal(%s, '{ENTITY}')"
    with purged.guarded.client() as native:
        with pytest.raises(purged.sql.client_error, match=BELOW) as caught:
            run(native, seal, str(sequencer(FLOOR)))
        assert purged.sql.code_of(caught.value) == "FL017"
        assert ENTITY not in purged.marks(), "nothing was written"
        run(native, seal, str(sequencer(FLOOR + 1)))
    assert purged.marks()[ENTITY] == FLOOR + 1


def test_g15_another_source_has_a_floor_of_its_own(purged: Purged) -> None:
    purged.under_floor()
    assert purged.seal(1, source_id="another").token == 1


# --- what is purged ----------------------------------------------------------------------------------------------
def test_g15_a_purge_raises_the_floor_and_writes_one_entry(purged: Purged) -> None:
    marks = [purged.seal(token, f"order:{token}") for token in (3, 9)]
    assert purged.find() == ["order:3", "order:9"]
    assert (purged.find(limit=1), purged.find(after="order:3")) == (["order:3"], ["order:9"])
    assert purged.find(60_000) == []
    assert purged.purge(*reversed(marks)) == 2
    assert (purged.floors(), purged.audit()) == ((Floor(SOURCE, FLOOR),), [("purge", True, 0, FLOOR)])
    assert purged.purge(*marks, floor=99) == 0
    assert (purged.floors(), len(purged.audit())) == ((Floor(SOURCE, FLOOR),), 1)


def test_g15_the_time_of_the_last_write_counts(purged: Purged) -> None:
    guard, lease = purged.guarded.guard(ENTITY), HandmadeLease(5)
    for change in (
        lambda: guard.seal(lease),
        lambda: guard.close(lease),
        lambda: guard.raise_to(6, reason="a test"),
        lambda: guard.seal(HandmadeLease(7)),
    ):
        change()
        assert purged.find(60_000) == []
        purged.age()
        assert purged.find(60_000) == [ENTITY]


CHANGES: dict[str, Callable[[Purged], Any]] = {
    "sealed again": lambda purged: purged.seal(6),
    "closed": lambda purged: purged.guarded.guard(ENTITY).close(HandmadeLease(5)),
    "lowered": lambda purged: purged.guarded.guard(ENTITY).lower(4, reason="a test"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_g15_a_mark_that_has_changed_since_it_was_found_stays(purged: Purged, change: str) -> None:
    found = purged.seal(5)
    CHANGES[change](purged)
    assert purged.purge(found) == 0
    assert (purged.floors(), ENTITY in purged.marks()) == ((), True)


# --- what is never purged, not even by its owner -----------------------------------------------------------------
def rebind(purged: Purged) -> None:
    """Move the mark to another source, and back, so that only the audit tells."""
    for source, lock in (("another", "another"), (SOURCE, LOCK)):
        bound = next(mark.lock for mark in fencelock.inspect_resources(purged.url, ENTITY).marks)
        guard = fencelock.guard(purged.url, resource=ENTITY, lock=bound)
        guard.rebind(lock, source=HandmadeSource(5, source), reason="a test")


def sign(purged: Purged) -> None:
    key = {"postgres": "'k', repeat('x', 64)::bytea, repeat('x', 64)::bytea"}.get(
        purged.sql.name, "'k', REPEAT('x', 64), REPEAT('x', 64)"
    )
    purged.guarded.database.rows(
        f"INSERT INTO {purged.sql.prefix}guard_key (key_id, inner_pad, outer_pad) VALUES ({key})"
    )
    purged.guarded.guard(ENTITY).require_signatures(reason="a test")


def protect(purged: Purged) -> None:
    purged.guarded.database.rows("CREATE TABLE orders (id int PRIMARY KEY, value varchar(200))")
    purged.guarded.guard(ENTITY).protect("orders", mode="observe")


KEPT = {"rebound": rebind, "signed": sign, "protected": protect}


@pytest.mark.parametrize("reason", KEPT)
def test_g15_a_mark_for_which_no_floor_may_stand_is_neither_found_nor_purged_nor_deleted(
    purged: Purged, reason: str
) -> None:
    purged.seal(5)
    KEPT[reason](purged)
    (mark,) = fencelock.inspect_resources(purged.url, ENTITY).marks
    assert (purged.find(), purged.purge(mark)) == ([], 0)
    operate_on(purged.url, setting(0, FLOOR))
    with purged.guarded.client() as native:
        assert purged.refuses(native, f"DELETE FROM {purged.sql.prefix}mark WHERE resource = '{ENTITY}'") == "FL009"
    assert purged.marks()[ENTITY] == 5


def test_g15_a_mark_is_deleted_by_hand_only_where_its_floor_stands(purged: Purged) -> None:
    purged.seal(FLOOR)
    delete = f"DELETE FROM {purged.sql.prefix}mark WHERE resource = '{ENTITY}'"
    with purged.guarded.client() as native:
        assert purged.refuses(native, delete) == "FL009"
        operate_on(purged.url, setting(0, FLOOR - 1))
        assert purged.refuses(native, delete) == "FL009"
        operate_on(purged.url, setting(FLOOR - 1, FLOOR))
        run(native, delete)
    assert ENTITY not in purged.marks()


# --- the floor keeps itself ----------------------------------------------------------------------------------------
FORBIDDEN = {
    "lowering": "UPDATE {prefix}floor SET token = 9",
    "deleting": "DELETE FROM {prefix}floor",
    "another source": "UPDATE {prefix}floor SET source_id = 'another'",
    "an audit entry of another change": "UPDATE {prefix}floor SET token = 8, audit_id = 2",
    "an audit entry of a mark": "UPDATE {prefix}floor SET token = 9, audit_id = 1",
    "a mark below it": "INSERT INTO {prefix}mark (resource, {lock}, token, source_id) VALUES ('o', 'l', 9, 'source')",
}


def test_g15_the_floor_keeps_itself_even_from_its_owner(purged: Purged) -> None:
    purged.under_floor()
    operate_on(purged.url, setting(FLOOR, FLOOR + 1))
    floor = FLOOR + 1
    forbidden = FORBIDDEN | ({"emptying": "TRUNCATE {prefix}floor"} if purged.sql.name == "postgres" else {})
    with purged.guarded.client() as native:
        for what, statement in forbidden.items():
            code = purged.refuses(native, statement.format(prefix=purged.sql.prefix, lock=purged.sql.lock_column))
            assert code == ("FL017" if "mark" in statement and "INSERT" in statement else "FL009"), what
        run(native, f"UPDATE {purged.sql.prefix}floor SET token = {floor + 1}")
    assert purged.floors() == (Floor(SOURCE, floor + 1),)


def test_g15_a_mark_without_a_source_lets_nothing_below_the_floor_in(purged: Purged) -> None:
    purged.under_floor()
    with purged.guarded.client() as native:
        mark = f"{purged.sql.prefix}mark (resource, {purged.sql.lock_column}, token)"
        run(native, f"INSERT INTO {mark} VALUES ('{ENTITY}', '{LOCK}', 1)")
    with pytest.raises(StaleTokenError):
        purged.seal(FLOOR)
    assert purged.seal(FLOOR + 1).token == FLOOR + 1


def test_g15_an_operator_sets_the_floor_from_what_was_seen_and_removes_it(purged: Purged) -> None:
    purged.under_floor()
    with pytest.raises(GuardError, match=rf"the floor of source {SOURCE} is {FLOOR} now, not 3.*ook again"):
        operate_on(purged.url, setting(3, 2))
    assert purged.floors() == (Floor(SOURCE, FLOOR),)
    operate_on(purged.url, setting(FLOOR, 2))
    assert purged.seal(3).token == 3
    operate_on(purged.url, setting(2, 0))
    assert (purged.floors(), purged.seal(1, "order:1").token) == ((), 1)
    assert purged.audit() == [("purge", True, 0, FLOOR), ("floor", True, FLOOR, 2), ("floor", True, 2, 0)]


def test_g15_an_entry_for_another_source_lowers_no_floor(purged: Purged) -> None:
    purged.under_floor()
    others = entry(FLOOR, 2)._replace(reason=floor_reason("a test", "another"))
    with pytest.raises(GuardError, match="a floor only goes up"):
        operate_on(purged.url, setting_by(others))
    assert purged.floors() == (Floor(SOURCE, FLOOR),)


def setting_by(written: AuditEntry) -> GuardFlow[None]:
    yield Begin()
    yield SetFloor(Floor(SOURCE, written.to_token), written)
    yield Commit()


def test_g15_a_floor_at_the_highest_number_is_a_refusal_like_another(purged: Purged) -> None:
    operate_on(purged.url, setting(0, MAX_TOKEN))
    with pytest.raises(StaleTokenError, match="acquire the lock again") as caught:
        purged.seal(FLOOR)
    assert caught.value.mark == MAX_TOKEN
    operate_on(purged.url, setting(MAX_TOKEN, 0))
    assert purged.seal(FLOOR).token == FLOOR


def test_g15_an_operator_gives_a_resource_no_mark_below_the_floor(purged: Purged) -> None:
    purged.under_floor()
    guard = purged.guarded.guard(ENTITY)
    with pytest.raises(StaleTokenError):
        guard.raise_to(HandmadeSource(FLOOR - 1), reason="a test")
    guard.raise_to(HandmadeSource(FLOOR), reason="a test")
    assert purged.marks()[ENTITY] == FLOOR


def test_g15_no_role_but_the_owner_purges_or_moves_a_floor(purged: Purged, make_role: MakeRole) -> None:
    mark = purged.seal(5)
    purged.under_floor()
    url = purged.guarded.database.url(user=make_role())
    for flow in (purging(mark), setting(FLOOR, 0), ask(FindOldMarks(SOURCE, 0))):
        with pytest.raises(GuardError):
            operate_on(url, flow)
    assert fencelock.inspect_resources(url).floors == purged.floors() == (Floor(SOURCE, FLOOR),)


# --- with others at the same time -------------------------------------------------------------------------------
def test_g15_a_mark_that_a_block_uses_stays_and_nobody_waits(purged: Purged) -> None:
    used, unused = purged.seal(5), purged.seal(5, "order:43")
    with purged.guarded.guard(ENTITY).transaction(HandmadeLease(5)):
        assert Step(purged.purge, used, unused).end() == 1
    assert list(purged.marks()) == [ENTITY, "reports"]
    assert purged.purge(used) == 1


@pytest.mark.parametrize("way", ["guard", "call"])
def test_g15_a_holder_that_waits_for_a_purge_reads_its_floor(purged: Purged, way: str) -> None:
    old = purged.seal(FLOOR - 1)
    with purged.guarded.client() as native:
        with purged.in_progress(old):
            if way == "guard":
                sealing = Step(purged.seal, FLOOR)
            else:
                sealing = Step(run, native, f"{purged.sql.call}seal(%s, '{ENTITY}')", str(sequencer(FLOOR)))
            purged.guarded.wait_for_anybody()
        with pytest.raises(StaleTokenError if way == "guard" else purged.sql.client_error) as caught:
            sealing.end()
    assert way == "guard" or purged.sql.code_of(caught.value) == "FL017"
    assert ENTITY not in purged.marks()


def test_g15_a_purge_does_not_wait_for_a_seal_and_leaves_its_mark(purged: Purged) -> None:
    old = purged.seal(5)
    connection = guard_store(purged.url).connect()
    try:
        connection.perform(Begin())
        connection.perform(ReadMarks((ENTITY,)))
        connection.perform(RaiseMarks((ENTITY,), sequencer(6)))
        assert Step(purged.purge, old).end() == 0
        connection.perform(Commit())
    finally:
        connection.close()
    assert (purged.marks()[ENTITY], purged.floors()) == (6, ())


def test_g15_an_old_snapshot_does_not_hide_the_floor(purged: Purged, level: str) -> None:
    old = purged.seal(FLOOR)
    insert = (
        f"INSERT INTO {purged.sql.prefix}mark (resource, {purged.sql.lock_column}, token, source_id) "
        f"VALUES ('{ENTITY}', 'lock', {FLOOR - 1}, '{SOURCE}')"
    )
    with purged.guarded.client(level) as native:
        run(native, "START TRANSACTION")
        run(native, "SELECT value FROM reports")
        assert purged.purge(old) == 1
        assert purged.refuses(native, insert) in ("FL017", "40001")
