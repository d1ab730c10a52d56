"""The plan: the same seed gives the same faults, and each kind comes as often as it should."""

from collections import Counter
from dataclasses import replace

import pytest

from fencelock_lab.campaigns.faults import ACQUIRED, BETWEEN, LEAVING, WRITTEN, Fault, fault_of
from fencelock_lab.campaigns.history import DROP, FREEZE, KILL, PARTITION, RESTORE, STRAY
from fencelock_lab.campaigns.settings import CONTROL_FAULTS, CampaignSettings, usual_ttl

SETTINGS = CampaignSettings(source=None, guard="sqlite:///app.db", run="run", of="source", seed=7)


def draws(settings: CampaignSettings) -> list[Fault]:
    return [fault_of(settings, worker, tenure) for worker in range(4) for tenure in range(2000)]


def test_the_same_seed_gives_the_same_faults() -> None:
    assert draws(SETTINGS) == draws(replace(SETTINGS, duration=1.0, run="another"))
    assert draws(SETTINGS) != draws(replace(SETTINGS, seed=8))


def test_every_fault_hits_at_every_point() -> None:
    found = Counter((fault.kind, fault.point) for fault in draws(SETTINGS))
    for point in (ACQUIRED, BETWEEN, WRITTEN, LEAVING):
        assert found[FREEZE, point] > 0
        assert found[KILL, point] > 0


def test_a_fault_that_is_not_wanted_does_not_come() -> None:
    kinds = {fault.kind for fault in draws(replace(SETTINGS, faults=(KILL,)))}
    assert KILL in kinds
    assert FREEZE not in kinds


def test_the_first_tenures_of_each_lock_are_aimed() -> None:
    settings = replace(SETTINGS, faults=CONTROL_FAULTS)
    for seed in range(20):
        first = [fault_of(replace(settings, seed=seed), worker, 1) for worker in range(settings.workers)]
        assert first[: settings.locks] == [Fault(FREEZE, BETWEEN, 2.4 * settings.ttl)] * settings.locks
        assert {fault.kind for fault in first[-settings.locks :]} == {RESTORE}


def test_the_first_tenures_at_a_service_are_stopped_in_the_middle_of_a_request() -> None:
    settings = replace(SETTINGS, guard="https://service.example/texts/", faults=CONTROL_FAULTS)
    first = [fault_of(settings, worker, 1) for worker in range(settings.workers)]
    assert [fault.point for fault in first[: settings.locks]] == [BETWEEN, WRITTEN] * (settings.locks // 2)
    assert first[-settings.locks :] == [Fault(KILL, WRITTEN)] * settings.locks
    points = Counter(fault.point for fault in draws(settings) if fault.kind == FREEZE)
    assert points[WRITTEN] > 0.2 * points.total()


@pytest.mark.parametrize(
    ("source", "guard", "sides"),
    [
        ("sqlite:///locks.db", "redis://127.0.0.1/0/app", {"guard"}),
        ("postgresql://127.0.0.1/app", "file:///srv/data", {"source"}),
        ("postgresql://127.0.0.1/app", "s3://bucket/app?endpoint=http://127.0.0.1", {"source", "guard"}),
    ],
)
def test_the_network_is_disturbed_where_there_is_one(source: str, guard: str, sides: set[str]) -> None:
    settings = replace(SETTINGS, source=source, guard=guard, faults=(PARTITION, DROP))
    disturbed = [fault for fault in draws(settings) if fault.kind in {PARTITION, DROP}]
    assert {fault.side for fault in disturbed} == sides


def test_most_freezes_last_past_the_ttl() -> None:
    lengths = [fault.seconds / SETTINGS.ttl for fault in draws(SETTINGS) if fault.kind == FREEZE]
    assert sum(length > 1 for length in lengths) / len(lengths) > 0.75
    assert min(lengths) < 1


def test_a_freeze_inside_a_write_is_the_leases_to_limit() -> None:
    assert not any(fault.is_bearer for fault in draws(SETTINGS) if fault.point == WRITTEN)


def test_a_write_without_a_token_comes_while_no_other_is_open() -> None:
    assert {fault.point for fault in draws(SETTINGS) if fault.kind == STRAY} == {BETWEEN}


def test_passwords_are_not_shown() -> None:
    url = "mysql://user:secret@host/app"
    shown = replace(SETTINGS, source=url, guard=url).shown_urls()
    assert shown == {"source": "mysql://host:3306/app", "guard": "mysql://host:3306/app"}


def test_names_are_of_this_run_alone() -> None:
    other = replace(SETTINGS, run="other")
    stems = {stem for number in range(4) for stem in SETTINGS.stems(number).values()}
    assert stems.isdisjoint(stem for number in range(4) for stem in other.stems(number).values())
    assert not any(stem.startswith("fencelock_") for stem in stems)
    assert len(SETTINGS.bindings()) == 6


@pytest.mark.parametrize(
    ("source", "ttl"),
    [
        ("sqlite:///locks.db", 0.5),
        ("postgres://host/db", 0.5),
        ("etcd://host/locks", 2.0),
        ("zookeeper://host/locks?tick_ms=100", 2.0),
        ("zookeeper://host/locks?tick_ms=2000", 8.0),
    ],
)
def test_each_source_has_leases_that_it_grants(source: str, ttl: float) -> None:
    assert usual_ttl(source) == ttl
