"""What servers that crash and go back in time excuse, and what they do not."""

from typing import Any

import pytest

from fencelock_lab.campaigns.page import page_data
from fencelock_lab.campaigns.report import story
from fencelock_lab.campaigns.verdict import NOT_ENOUGH, Expectations, judge
from tests.lab.campaigns.planted import NS, RESOURCE, Script, two_tenures

SERVERS = ["postgres"]


def rules(script: Script) -> set[str]:
    return {violation.rule for violation in judge(script.history()).findings.violations}


def overlap(at: float, kind: str, **facts: Any) -> Script:
    """Return a history in which process 2 is granted the lock at 2.0 s, while process 1 relies on it until 5.0 s."""
    script = Script(ttl=4.0).acquire("1", 1.0, 1.1, 10, until=5.0)
    script.event(at, kind, servers=SERVERS, **facts).event(at + 0.2, "server-back", servers=SERVERS)
    return script.acquire("2", 1.9, 2.0, 11, until=5.9).final()


EXCUSED = {
    "a grant that a crash took with it": overlap(1.5, "server-kill", forgets=1.0),
    "a lease that a restore has ended": overlap(1.5, "server-restore"),
}
BLAMED = {
    "a crash of a server that forgets nothing": overlap(1.5, "server-kill"),
    "a crash long after the grant": overlap(1.5, "server-kill", forgets=0.3),
    "a freeze": overlap(1.5, "server-freeze"),
    "a restart": overlap(1.5, "server-restart"),
    "an isolation": overlap(1.5, "server-isolate"),
    "a crash before the grant": overlap(0.5, "server-kill", forgets=1.0),
    "a restore before the grant": overlap(0.5, "server-restore"),
}


@pytest.mark.parametrize("name", EXCUSED)
def test_what_a_server_may_forget_is_no_violation(name: str) -> None:
    assert rules(EXCUSED[name]) == set()


@pytest.mark.parametrize("name", BLAMED)
def test_what_a_server_may_not_forget_is_a_violation(name: str) -> None:
    assert rules(BLAMED[name]) == {"lock-not-exclusive"}


def test_an_overlap_with_a_lease_granted_after_the_crash_is_a_violation() -> None:
    script = overlap(1.5, "server-kill", forgets=1.0).acquire("3", 2.5, 2.6, 12, until=6.0)
    assert rules(script) == {"lock-not-exclusive"}


def refused(mark: int, at: float) -> Script:
    """Return a history in which the newest holder is refused at 2.5 s, after a mark was raised."""
    script = Script().acquire("1", 1.0, 1.1, 10, until=3.0)
    script.event(at, "restore", resource=RESOURCE, position=0, mark=str(mark))
    script.write("1", 2.4, 2.5, 10, "a", 1, outcome="fail", error="StaleTokenError", mark=str(mark))
    return script.final()


def test_a_refusal_by_a_mark_that_an_operator_has_raised_is_no_violation() -> None:
    assert rules(refused(mark=10, at=2.0)) == set()


@pytest.mark.parametrize(("mark", "at"), [(9, 2.0), (10, 2.6)])
def test_a_raised_mark_excuses_no_other_refusal(mark: int, at: float) -> None:
    assert rules(refused(mark, at)) == {"newest-holder-refused"}


def judged(script: Script, *faults: str) -> tuple[str, ...]:
    """Return why a history does not suffice, if these faults were to come."""
    history = script.history()
    history.settings["faults"] = list(faults)
    verdict = judge(history)
    assert verdict.code == NOT_ENOUGH
    return verdict.shortfalls


def test_a_fault_of_the_servers_that_did_not_come_proves_nothing() -> None:
    script = two_tenures().final(("a", 1, 10), ("b", 2, 11)).event(1.5, "server-kill", servers=SERVERS)
    assert "no server-restore, which was to come" in judged(script, "freeze", "server-kill", "server-restore")
    assert not any("server-kill" in one for one in judged(script, "freeze", "server-kill", "server-restore"))


def test_faults_of_servers_and_jumps_of_clocks_are_counted_and_shown() -> None:
    script = two_tenures().final(("a", 1, 10), ("b", 2, 11))
    script.event(1.5, "server-freeze", servers=["etcd-1", "etcd-2"]).event(1.8, "server-back", servers=["etcd-1"])
    script.event(1.55, "jump", victim="1", seconds=-3600.0)
    history = script.history()
    verdict = judge(history)
    assert (verdict.amounts.server_faults, verdict.amounts.jumps) == (1, 1)
    assert "1 jumps of a clock, 1 faults of the servers" in story(verdict)
    data = page_data(history, verdict)
    assert data["lanes"] == ["1", "2", "etcd-1", "etcd-2"]
    end = data["end"]
    assert data["struck"] == [(2, 0.5, 0.8, "server-freeze"), (3, 0.5, end, "server-freeze")]
    assert (0, 0.55, 0.55, "jump by -3600 s") in data["disturbed"]


def test_an_explanation_tells_of_the_servers_too() -> None:
    verdict = judge(overlap(1.5, "server-freeze").history())
    assert any(step.process == "postgres" and step.text == "server-freeze" for step in verdict.steps)


def woken(at: float, overlap: float | None, told: float = 2.4) -> Script:
    """Return a history in which a leader that wakes has ended the lease of process 1, which learns of it late."""
    facts = {} if overlap is None else {"overlap": overlap}
    script = Script(ttl=4.0).acquire("1", 1.0, 1.1, 10, until=5.0)
    script.event(at, "server-freeze", servers=["etcd-1"], **facts).event(1.9, "server-back", servers=["etcd-1"])
    script.call("1", "read", told - 0.1, told, token="10", position=0, until=round((told + 3) * NS))
    return script.acquire("2", 1.9, 2.0, 11, until=5.9).final()


def test_a_lease_that_a_waking_leader_ended_is_excused_for_as_long_as_its_store_is_known_for() -> None:
    assert rules(woken(1.5, overlap=1.0)) == set()
    assert rules(woken(1.5, overlap=None)) == {"lock-not-exclusive"}
    assert rules(woken(1.5, overlap=0.3)) == {"lock-not-exclusive"}
    assert rules(woken(1.5, overlap=1.0, told=3.5)) == {"lock-not-exclusive"}


def after_a_fault(*, patience: float, following: float, worked: float) -> Script:
    """Return a history with a fault of servers that is over at 3 s, the next one, and a tenure that begins again."""
    script = two_tenures().final(("a", 1, 10), ("b", 2, 11), ("c", 3, 12))
    script.event(2.5, "server-kill", servers=SERVERS).event(3.0, "server-back", servers=SERVERS, patience=patience)
    script.event(following, "server-kill", servers=SERVERS)
    script.acquire("3", worked, worked + 0.1, 12, until=worked + 1).read("3", worked + 0.1, worked + 0.2, 12, 2)
    return script.write("3", worked + 0.2, worked + 0.3, 12, "c", 3)


@pytest.mark.parametrize(
    ("patience", "following", "worked", "found"),
    [
        (2.0, 9.0, 4.0, set()),  # It went on in time.
        (2.0, 4.0, 6.0, set()),  # The next fault came before the patience was over.
        (2.0, 9.0, 6.0, {"no-progress"}),
    ],
)
def test_a_lock_that_stands_still_after_a_fault_of_servers_is_a_violation(
    patience: float, following: float, worked: float, found: set[str]
) -> None:
    assert rules(after_a_fault(patience=patience, following=following, worked=worked)) == found


@pytest.mark.parametrize(("left", "found"), [(0, set()), (2, {"left-in-queue"})])
def test_a_queue_that_is_not_empty_in_the_end_is_a_violation(left: int, found: set[str]) -> None:
    script = two_tenures().final(("a", 1, 10), ("b", 2, 11))
    assert rules(script.event(80.0, "rest", lock="l", left=left)) == found


def test_an_error_that_a_campaign_does_not_expect_is_a_violation() -> None:
    script = two_tenures().final(("a", 1, 10), ("b", 2, 11))
    script.write("1", 2.5, 2.6, 10, "c", 2, outcome="info", error="KeyError")
    expected = Expectations({}, frozenset({"StaleTokenError"}))
    found = {violation.rule for violation in judge(script.history(), expected).findings.violations}
    assert found == {"unexpected-error"}
    assert judge(script.history(), Expectations({})).findings.violations == []


def test_a_campaign_may_expect_other_amounts() -> None:
    script = two_tenures().final(("a", 1, 10), ("b", 2, 11)).event(80.0, "quiet", patience=5.0)
    assert judge(script.history(), Expectations({"writes": 2}, per_lock=1)).shortfalls == ()
    short = judge(script.history(), Expectations({"writes": 3}, per_lock=2)).shortfalls
    assert short == ("2 writes, and 3 are the least", "1 handoffs of lock l, and 2 are the least")
