"""The schedule of renewals: which leases are due together, and when to check next."""

from typing import Any

import pytest

from fencelock._drivers.sync import SyncDriver
from fencelock._keeper.record import RELEASED
from fencelock._keeper.schedule import Schedule, first_beat_ms
from tests.unit.fakes import START_MS, Clock, FakeSource, Holding

pytestmark = pytest.mark.reduced


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def driver() -> SyncDriver:
    return SyncDriver(FakeSource())


def claims(batches: list[Any]) -> list[list[str]]:
    return [sorted(record.claim for record in records) for _, records in batches]


def test_without_leases_there_is_no_next_look() -> None:
    schedule = Schedule()
    assert schedule.next_ms() is None
    assert schedule.take_due(START_MS) == []
    assert schedule.overdue(START_MS) == []


def test_a_lease_is_due_at_a_third_of_its_ttl_and_then_at_every_third(clock: Clock, driver: SyncDriver) -> None:
    schedule = Schedule()
    schedule.add(Holding(clock, driver).record, START_MS)
    assert schedule.next_ms() == START_MS + 10_000
    assert schedule.take_due(START_MS + 9_999) == []
    assert claims(schedule.take_due(START_MS + 10_000)) == [["c1"]]
    assert schedule.next_ms() == START_MS + 20_000


@pytest.mark.parametrize(("left_ms", "due_ms"), [(27_000, 10_000), (20_000, 10_000), (4_000, 2_000), (1, 0), (-5, 0)])
def test_a_lease_that_was_long_on_its_way_is_due_before_it_ends(
    clock: Clock, driver: SyncDriver, left_ms: int, due_ms: int
) -> None:
    schedule = Schedule()
    record = Holding(clock, driver, left_ms=left_ms).record
    assert first_beat_ms(record, START_MS) == START_MS + due_ms
    schedule.add(record, START_MS)
    assert schedule.next_ms() == START_MS + due_ms


def test_leases_of_one_source_and_ttl_share_a_beat(clock: Clock, driver: SyncDriver) -> None:
    schedule = Schedule()
    schedule.add(Holding(clock, driver, "c1").record, START_MS)
    schedule.add(Holding(clock, driver, "c2").record, START_MS + 9_000)
    assert schedule.next_ms() == START_MS + 10_000
    assert claims(schedule.take_due(START_MS + 10_000)) == [["c1", "c2"]]


def test_a_short_lease_draws_its_group_forward(clock: Clock, driver: SyncDriver) -> None:
    schedule = Schedule()
    schedule.add(Holding(clock, driver, "c1").record, START_MS)
    schedule.add(Holding(clock, driver, "c2", left_ms=2_000).record, START_MS)
    assert claims(schedule.take_due(START_MS + 1_000)) == [["c1", "c2"]]


def test_leases_of_one_source_due_at_about_the_same_time_are_one_batch(clock: Clock, driver: SyncDriver) -> None:
    schedule = Schedule()
    schedule.add(Holding(clock, driver, "c1", ttl_ms=30_000).record, START_MS)
    schedule.add(Holding(clock, driver, "c2", ttl_ms=33_000).record, START_MS)
    schedule.add(Holding(clock, driver, "c3", ttl_ms=60_000).record, START_MS)
    assert claims(schedule.take_due(START_MS + 10_000)) == [["c1", "c2"]]


def test_two_sources_are_two_batches(clock: Clock, driver: SyncDriver) -> None:
    schedule = Schedule()
    schedule.add(Holding(clock, driver, "c1").record, START_MS)
    schedule.add(Holding(clock, SyncDriver(FakeSource()), "c2").record, START_MS)
    assert sorted(claims(schedule.take_due(START_MS + 10_000))) == [["c1"], ["c2"]]


def test_a_renewal_in_doubt_is_due_again_after_a_quarter_of_its_interval(clock: Clock, driver: SyncDriver) -> None:
    schedule = Schedule()
    record = Holding(clock, driver).record
    schedule.add(record, START_MS)
    schedule.take_due(START_MS + 10_000)
    schedule.doubt([record], START_MS + 10_500)
    assert schedule.next_ms() == START_MS + 13_000
    assert claims(schedule.take_due(START_MS + 13_000)) == [["c1"]]
    assert schedule.next_ms() == START_MS + 23_000


def test_of_the_sources_in_doubt_one_is_asked_at_a_time_after_the_others(clock: Clock, driver: SyncDriver) -> None:
    """Each may cost the keeper its whole patience: with ten of them, a healthy source's leases would expire."""
    schedule = Schedule()
    silent = [SyncDriver(FakeSource()) for _ in range(3)]
    records = [Holding(clock, each, f"s{number}").record for number, each in enumerate(silent)]
    for record in [*records, Holding(clock, driver, "c1").record]:
        schedule.add(record, START_MS)
    schedule.take_due(START_MS + 10_000)
    for number, record in enumerate(records):
        schedule.doubt([record], START_MS + 10_000 + 500 * (3 - number))
    for expected in ([["c1"], ["s2"]], [["s1"]], [["s0"]], []):
        assert schedule.is_due(START_MS + 20_000) is bool(expected)
        assert claims(schedule.take_due(START_MS + 20_000)) == expected


def test_in_doubt_the_next_look_is_no_later_than_the_earliest_deadline(clock: Clock, driver: SyncDriver) -> None:
    schedule = Schedule()
    record = Holding(clock, driver, left_ms=12_000).record
    schedule.add(record, START_MS)
    schedule.take_due(START_MS + 10_000)
    schedule.doubt([record], START_MS + 10_000)
    assert schedule.next_ms() == START_MS + 12_000


def test_a_lease_is_overdue_at_its_deadline(clock: Clock, driver: SyncDriver) -> None:
    schedule = Schedule()
    record = Holding(clock, driver, left_ms=27_000).record
    schedule.add(record, START_MS)
    assert schedule.overdue(START_MS + 26_999) == []
    assert schedule.overdue(START_MS + 27_000) == [record]


def test_leases_that_were_released_are_dropped_with_their_group(clock: Clock, driver: SyncDriver) -> None:
    schedule = Schedule()
    first, second = Holding(clock, driver, "c1").record, Holding(clock, driver, "c2").record
    schedule.add(first, START_MS)
    schedule.add(second, START_MS)
    first.leave_held(RELEASED, "it was released")
    schedule.drop_ended()
    assert list(schedule) == [second]
    second.leave_held(RELEASED, "it was released")
    schedule.drop_ended()
    assert schedule.next_ms() is None


def test_what_is_not_there_can_be_removed_and_doubted(clock: Clock, driver: SyncDriver) -> None:
    schedule = Schedule()
    record = Holding(clock, driver).record
    schedule.remove(record)
    schedule.doubt([record], START_MS)
    assert schedule.next_ms() is None
