"""Each checker against planted histories: violations that it must name, and benign look-alikes that it must not."""

import pytest

from fencelock_lab.campaigns.evidence import explain
from fencelock_lab.campaigns.verdict import judge
from tests.lab.campaigns.planted import LOCK, RESOURCE, Script, stale_writer, two_resources, two_tenures


def rules(script: Script) -> set[str]:
    """Return the rules that the history breaks."""
    return {violation.rule for violation in judge(script.history()).findings.violations}


def refused(script: Script, process: str, start: float, end: float, token: int, mark: int) -> Script:
    return script.write(
        process, start, end, token, f"{process}-refused", 1, outcome="fail", error="StaleTokenError", mark=str(mark)
    )


def alarmed(script: Script, error: str) -> Script:
    return script.call("2", "read", 3.0, 3.1, outcome="fail", token="11", error=error)


def second_unanswered() -> Script:
    """Process 2 has a newer token, and nobody knows whether its first read has sealed the resource."""
    script = Script().acquire("0", 0.1, 0.2, 9).acquire("1", 1.0, 1.1, 10).acquire("2", 1.5, 2.1, 11)
    return script.call("2", "read", 2.2, 2.3, outcome="info", token="11")


def unanswered() -> Script:
    """Process 1 is not told of its write, and process 2 sees it."""
    return Script().write("1", 1.0, None, 10, "a", 1).acquire("2", 2.0, 2.1, 11).read("2", 2.2, 2.3, 11, 1)


BENIGN = {
    "two tenures": two_tenures().final(("a", 1, 10), ("b", 2, 11)),
    "a stale write is refused": refused(stale_writer(), "1", 2.9, 3.0, 10, 11)
    .write("2", 3.0, 3.1, 11, "b", 1)
    .final(("b", 1, 11)),
    "an overlap after the lease's end": Script()
    .acquire("1", 1.0, 1.1, 10, until=2.0)
    .acquire("2", 1.5, 2.1, 11, until=3.0)
    .release("1", 2.5, 2.6, 10),
    "the next one has it while the release is under way": Script()
    .acquire("1", 1.0, 1.1, 10, until=2.0)
    .release("1", 1.2, 1.9, 10)
    .acquire("2", 1.0, 1.3, 11, until=2.3),
    "the release was never answered": Script()
    .acquire("1", 1.0, 1.1, 10, until=9.0)
    .call("1", "release", 1.2, None, token="10")
    .acquire("2", 1.0, 1.3, 11, until=2.3),
    "the holder was held up until its lease was over, and never relied on it": Script()
    .acquire("1", 1.0, 2.5, 10)
    .read("1", 2.5, 2.8, 10, 0)
    .release("1", 2.9, 3.0, 10)
    .acquire("2", 2.0, 2.6, 11, until=3.6),
    "the time left was read, and the answer recorded much later": Script()
    .acquire("1", 1.0, 4.0, 10, until=2.0)
    .acquire("2", 1.5, 2.1, 11, until=3.1)
    .release("2", 2.2, 2.3, 11)
    .release("1", 4.0, 4.1, 10),
    "a holder that was killed between its release and the answer": Script()
    .acquire("1", 1.0, 1.1, 10, until=2.0)
    .call("1", "release", 1.2, None, token="10")
    .event(1.3, "kill", victim="1")
    .acquire("2", 1.0, 1.3, 11, until=2.3),
    "a holder that was killed keeps its lease until that ends": Script()
    .acquire("1", 1.0, 1.1, 10, until=2.0)
    .event(1.2, "kill", victim="1")
    .acquire("2", 1.0, 2.1, 11, until=3.1),
    "a release after the lease was over": Script()
    .acquire("1", 1.0, 1.1, 10, until=2.0)
    .acquire("2", 1.5, 2.1, 11, until=3.1)
    .release("1", 2.2, 2.3, 10)
    .release("2", 2.9, 3.0, 11),
    "a release of unknown outcome, and another lease of the same process": Script()
    .acquire("1", 1.0, 1.1, 10, until=2.0)
    .call("1", "release", 1.2, 1.3, outcome="info", token="10", error="SourceUnavailableError")
    .acquire("1", 1.4, 1.5, 11, until=2.5),
    "a re-entry that was held up until the next one had the lock": Script()
    .acquire("1", 1.0, 1.1, 10, until=2.0)
    .acquire("1", 1.2, 3.0, 10)
    .acquire("2", 1.5, 2.2, 11, until=3.2)
    .release("1", 3.0, 3.1, 10)
    .release("1", 3.1, 3.2, 10),
    "an unanswered write is there": Script().write("1", 1.0, None, 10, "a", 1).final(("a", 1, 10)),
    "an unanswered write is not there": Script().write("1", 1.0, None, 10, "a", 1).final(),
    "an unknown write is there": Script().write("1", 1.0, 1.1, 10, "a", 1, outcome="info").final(("a", 1, 10)),
    "concurrent writes in either order": Script()
    .write("1", 1.0, 1.5, 10, "a", 2)
    .write("2", 1.0, 1.6, 10, "b", 1)
    .final(("b", 1, 10), ("a", 2, 10)),
    "concurrent grants in either order": Script().acquire("1", 1.0, 1.5, 11).acquire("2", 1.0, 1.4, 10),
    "a holder enters again": Script()
    .acquire("1", 1.0, 1.1, 10, until=3.0)
    .acquire("1", 1.2, 1.3, 10, until=3.0)
    .release("1", 1.4, 1.5, 10)
    .release("1", 1.6, 1.7, 10)
    .acquire("2", 1.0, 1.8, 11, until=2.8),
    "a refusal that was under way when the newer grant was answered": refused(
        Script().acquire("1", 1.0, 1.1, 10).acquire("2", 1.2, 1.35, 11), "1", 1.3, 1.4, 10, 11
    ).final(),
    "a stale write to the second resource is refused": refused(two_resources(), "1", 2.41, 2.5, 10, 11),
    "a stale write to the second resource while the first is read": two_resources().call(
        "1", "write", 2.29, 2.5, token="10", resource="q", write="a", position=1
    ),
    "a stale write to the second resource, and the read of the first was refused": Script(r=LOCK, q=LOCK)
    .acquire("1", 1.0, 1.1, 10, until=2.0)
    .acquire("2", 1.5, 2.1, 11, until=3.0)
    .call("2", "read", 2.2, 2.3, outcome="fail", token="11", error="SourceUnavailableError")
    .call("1", "write", 2.4, 2.5, token="10", resource="q", write="a", position=1),
    "resources of different locks know nothing of each other's tokens": Script(r=LOCK, q="other")
    .acquire("2", 1.5, 2.1, 11, until=3.0)
    .read("2", 2.2, 2.3, 11, 0)
    .acquire("1", 2.3, 2.4, 10, lock="other")
    .call("1", "write", 2.4, 2.5, token="10", resource="q", write="a", position=1),
    "a stale write to the second resource, which was restored": two_resources()
    .restore(2.35, 0, "q")
    .call("1", "write", 2.41, 2.5, token="10", resource="q", write="a", position=1),
    "progress after the faults": Script()
    .event(1.0, "quiet", patience=2.0)
    .acquire("1", 1.0, 2.0, 10)
    .write("1", 2.1, 2.2, 10, "a", 1)
    .final(("a", 1, 10)),
    "what a restore has undone": two_tenures().restore(2.5, 1).final(("a", 1, 10)),
    "a token that a restored resource knows nothing of": stale_writer()
    .write("2", 2.3, 2.4, 11, "b", 1)
    .restore(2.5, 0)
    .write("1", 2.9, 3.0, 10, "a", 1)
    .final(("a", 1, 10)),
    "an unanswered write that came after a restore": stale_writer()
    .read("2", 2.4, 2.5, 11, 0)
    .write("1", 2.9, None, 10, "a", 1)
    .restore(3.0, 0)
    .final(("a", 1, 10)),
    "a refusal whose mark a restore has lowered": refused(stale_writer(), "1", 2.9, 3.0, 10, 11)
    .restore(3.1, 0)
    .read("1", 3.2, 3.3, 10, 0)
    .final(),
    "the mark's own token after a refusal that named it": refused(stale_writer(), "1", 2.9, 3.0, 10, 11)
    .read("2", 3.1, 3.2, 11, 0)
    .final(),
    "what began at the moment of a restore": two_tenures().restore(1.8, 1).final(("a", 1, 10)),
    "a read while a write is under way": Script()
    .write("1", 1.0, 1.5, 10, "a", 1)
    .read("2", 1.1, 1.6, 10, 0)
    .read("3", 1.2, 1.3, 10, 1)
    .final(("a", 1, 10)),
    "a read of what a restore has undone since": two_tenures().read("2", 2.1, 2.2, 11, 2).restore(2.5, 0).final(),
    "a read after a restore": two_tenures().restore(2.5, 1).read("2", 2.6, 2.7, 11, 1).final(("a", 1, 10)),
    "a seal that is gone after a restore": alarmed(two_tenures().restore(2.5, 1), "SealLostError"),
    "locks that count each for itself": Script()
    .acquire("1", 1.0, 1.1, 10)
    .call("2", "acquire", 1.0, 1.1, token="10", lock="other"),
    "a write without a token is refused": Script().call("1", "stray", 1.0, 1.1, outcome="fail", error="Error"),
}

VIOLATIONS = {
    "lost-write": two_tenures().final(("b", 1, 11)),
    "lost-write: the counter": two_tenures().final(("a", 1, 10), ("b", 2, 11), counter=1),
    "lost-write: a gap": two_tenures().final(("b", 2, 11)),
    "lost-write: after a restore": two_tenures().restore(1.95, 0).write("2", 2.5, 2.6, 11, "c", 3).final(("c", 3, 11)),
    "lost-write: a restore does not excuse what came after it": two_tenures()
    .restore(1.0, 0)
    .write("2", 2.5, 2.6, 11, "c", 1)
    .final(counter=0),
    "duplicated-write": two_tenures().final(("a", 1, 10), ("a", 2, 10), ("b", 3, 11)),
    "invented-write: another number than its process gave it": two_tenures()
    .write("3", 3.0, 3.1, 12, "c", 1)
    .final(("a", 1, 10), ("b", 2, 11), ("c", 3, 12)),
    "invented-write: another token than its process gave it": two_tenures().final(("a", 1, 11), ("b", 2, 11)),
    "invented-write": two_tenures().final(("a", 1, 10), ("b", 2, 11), ("c", 3, 11)),
    "refused-write-is-there": refused(two_tenures(), "1", 3.0, 3.1, 10, 11).final(
        ("a", 1, 10), ("b", 2, 11), ("1-refused", 3, 11)
    ),
    "overwritten-write": stale_writer()
    .write("1", 2.9, 3.0, 10, "a", 1)
    .write("2", 3.1, 3.2, 11, "b", 1)
    .final(("a", 1, 10), ("b", 1, 11), counter=1),
    "reordered-write": two_tenures().final(("b", 1, 11), ("a", 2, 10)),
    "stale-token-accepted": stale_writer()
    .write("2", 2.4, 2.5, 11, "b", 1)
    .write("1", 2.9, 3.0, 10, "a", 2)
    .final(("b", 1, 11), ("a", 2, 10)),
    "stale-token-accepted: a read": stale_writer().read("1", 2.9, 3.0, 10, 0),
    "stale-token-accepted: nobody was told of the write, which is there": stale_writer()
    .write("1", 2.9, None, 10, "a", 1)
    .final(("a", 1, 10)),
    "stale-token-accepted: after it had been refused": refused(second_unanswered(), "1", 2.9, 3.0, 10, 11)
    .write("1", 3.1, 3.2, 10, "a", 1)
    .final(("a", 1, 10)),
    "stale-token-accepted: below a mark that had refused another": refused(second_unanswered(), "1", 2.9, 3.0, 10, 11)
    .read("0", 3.1, 3.2, 9, 0)
    .final(),
    "stale-token-accepted: closed by its own holder, as its refusal said": refused(
        Script().acquire("1", 1.0, 1.1, 10), "1", 1.2, 1.3, 10, 10
    ).read("1", 1.4, 1.5, 10, 0),
    "sealed-late": two_resources().call("1", "write", 2.41, 2.5, token="10", resource="q", write="a", position=1),
    "sealed-late: a read": two_resources().read("1", 2.41, 2.5, 10, 0, resource="q"),
    "stale-read": two_tenures().read("2", 3.0, 3.1, 11, 1).final(("a", 1, 10), ("b", 2, 11)),
    "stale-read: another read had seen more": unanswered().read("2", 2.5, 2.6, 11, 0).final(("a", 1, 10)),
    "lost-write: nobody was told of it, but a read had seen it": unanswered().final(),
    "lost-write: another stands where one was that a read had seen": unanswered()
    .write("2", 2.5, 2.6, 11, "b", 1)
    .final(("b", 1, 11)),
    "token-granted-twice": Script().acquire("1", 1.0, 1.1, 10).acquire("2", 1.05, 1.2, 10),
    "token-granted-twice: a resource has noticed": alarmed(two_tenures(), "TokenCollisionError"),
    "seal-lost": alarmed(two_tenures(), "SealLostError"),
    "seal-lost: before a restore": alarmed(two_tenures(), "SealLostError").restore(4.0, 0),
    "token-went-back": Script().acquire("1", 1.0, 1.1, 11).acquire("2", 1.2, 1.3, 10),
    "lock-not-exclusive": Script().acquire("1", 1.0, 1.1, 10, until=2.0).acquire("2", 1.5, 1.9, 11, until=2.9),
    "lock-not-exclusive: relied on longer": Script()
    .acquire("1", 1.0, 1.1, 10, until=2.0)
    .call("1", "read", 1.9, 1.95, token="10", position=0, until=2_900_000_000)
    .acquire("2", 1.5, 2.1, 11, until=3.0),
    "lock-not-exclusive: the inner release": Script()
    .acquire("1", 1.0, 1.1, 10, until=3.0)
    .acquire("1", 1.2, 1.3, 10, until=3.0)
    .release("1", 1.4, 1.5, 10)
    .acquire("2", 1.0, 1.8, 11, until=2.8),
    "newest-holder-refused": refused(stale_writer(), "2", 2.4, 2.5, 11, 11).final(),
    "newest-holder-refused: another one waits for the lock": refused(
        Script().acquire("1", 1.0, 1.1, 10).acquire("2", 1.2, 2.0, 11), "1", 1.3, 1.4, 10, 11
    ).final(),
    "no-progress": Script().event(1.0, "quiet", patience=2.0).acquire("1", 0.5, 4.0, 10),
    "unfenced-write-accepted": Script().call("1", "stray", 1.0, 1.1),
}


@pytest.mark.parametrize("name", BENIGN)
def test_a_benign_look_alike_is_no_violation(name: str) -> None:
    assert rules(BENIGN[name]) == set()


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_planted_violation_is_named(name: str) -> None:
    assert name.partition(":")[0] in rules(VIOLATIONS[name])


def test_every_rule_is_planted() -> None:
    planted = {name.partition(":")[0] for name in VIOLATIONS}
    found = {rule for script in VIOLATIONS.values() for rule in rules(script)}
    assert found == planted


def test_an_overlap_that_expiry_explains_is_counted() -> None:
    verdict = judge(BENIGN["an overlap after the lease's end"].history())
    assert verdict.findings.information["overlaps that an expired lease explains"] == 1


def test_the_order_of_many_who_wait_at_one_lock_is_decided() -> None:
    script, swapped = Script(), Script()
    for n in range(24):
        script.acquire(f"p{n}", 1.0, 2.0 + n, 10 + n)
        swapped.acquire(f"p{n}", 1.0 + n, 2.5 + n, 40 - n)
    assert ("lock-not-exclusive", LOCK) not in undecided(script)
    assert rules(script) == set()
    assert "lock-not-exclusive" in rules(swapped)


def test_a_history_without_a_final_state_is_undecided() -> None:
    verdict = judge(two_tenures().event(1.65, "quiet", patience=5.0).history())
    assert [(one.rule, one.place) for one in verdict.findings.undecided] == [("lost-write", RESOURCE)]


def undecided(script: Script) -> list[tuple[str, str]]:
    """Return what cannot be decided, and where."""
    return [(one.rule, one.place) for one in judge(script.history()).findings.undecided]


def test_a_history_that_ends_too_early_is_undecided() -> None:
    script = Script().acquire("1", 0.1, 0.2, 10).event(1.0, "quiet", patience=5.0).event(1.5, "thaw", victim="1")
    assert undecided(script.final(at=2.0)) == [("no-progress", LOCK), ("no-progress", RESOURCE)]


def test_a_history_that_was_broken_off_before_its_faults_had_ended_is_undecided() -> None:
    script = two_tenures().final(("a", 1, 10), ("b", 2, 11))
    assert undecided(script) == [("no-progress", LOCK), ("no-progress", RESOURCE)]


def test_a_resource_that_nobody_wrote_to_is_judged_all_the_same() -> None:
    script = Script().acquire("1", 0.1, 0.2, 10).event(1.0, "quiet", patience=2.0).acquire("2", 1.5, 1.6, 11)
    assert undecided(script) == [("lost-write", RESOURCE), ("no-progress", RESOURCE)]
    assert rules(script.final(("c", 1, 11), at=5.0)) == {"invented-write", "no-progress"}


def test_an_explanation_tells_the_steps_in_order() -> None:
    history = VIOLATIONS["overwritten-write"].history()
    violations = judge(history).findings.violations
    assert [one.rule for one in violations] == ["stale-token-accepted", "overwritten-write", "lost-write"]
    steps = explain(history, violations[1])
    told = [(step.process, step.text.split(":")[0].split(" with")[0]) for step in steps]
    assert told == [
        ("1", "acquire of lock l"),
        ("1", "read of resource r"),
        ("1", "is frozen"),
        ("2", "acquire of lock l"),
        ("2", "read of resource r"),
        ("1", "wakes up"),
        ("1", "write a to resource r"),
        ("2", "write b to resource r"),
    ]


def test_a_lock_that_two_held_is_explained_by_both_grants() -> None:
    steps = judge(VIOLATIONS["lock-not-exclusive"].history()).steps
    assert [(step.process, step.text) for step in steps] == [
        ("1", "acquire of lock l with token 10: ok"),
        ("2", "acquire of lock l with token 11: ok"),
    ]


def test_a_violation_outranks_that_little_happened() -> None:
    assert judge(two_tenures().final(("b", 1, 11)).history()).code == 1


def test_a_clean_history_in_which_little_happened_proves_nothing() -> None:
    verdict = judge(two_tenures().final(("a", 1, 10), ("b", 2, 11)).history())
    assert verdict.code == 2
    assert [shortfall.split(",")[0] for shortfall in verdict.shortfalls] == [
        "1 handoffs",
        "0 freezes",
        "0 refusals",
        "1 handoffs of lock l",
    ]


def busy(lock: str, count: int, start: float, first_token: int) -> list[tuple[str, float, float, int, str]]:
    """Return grants of a lock in turns to two processes, ten in a second."""
    return [(f"{lock}{n % 2}", start + n / 10, start + n / 10 + 0.01, first_token + n, lock) for n in range(count)]


def starved(*grants: tuple[str, float, float, int, str], patience: float = 33.0) -> Script:
    """Two locks: process x asks for the second one all the time, and gets it after the faults; and these grants."""
    script = Script(r=LOCK, q="m")
    for process, begun, ended, token, lock in grants:
        script.acquire(process, begun, ended, token, lock=lock)
    for begun in range(1, 50):
        script.call("x", "acquire", begun, begun + 0.9, outcome="fail", lock="m", error="not obtained")
    return script.event(50.0, "quiet", patience=patience).acquire("x", 50.1, 50.2, 900, lock="m")


def short_of(script: Script) -> list[str]:
    """Return what was too little at single locks."""
    return [one for one in judge(script.history()).shortfalls if " lock " in one or one.startswith("lock ")]


def test_a_lock_that_was_starved_while_another_was_busy_proves_nothing() -> None:
    script = starved(*busy(LOCK, 400, 1.0, 10))
    assert judge(script.history()).amounts.handoffs > 20
    assert short_of(script) == [
        "0 handoffs of lock m, and 3 are the least",
        "lock m was asked for and not granted for 49.0 s, and 33.0 s are the most",
    ]


def test_a_lock_that_was_starved_for_longer_than_its_patience_proves_nothing() -> None:
    script = starved(*busy(LOCK, 400, 1.0, 10), *busy("m", 40, 1.0, 10))
    assert short_of(script) == ["lock m was asked for and not granted for 45.1 s, and 33.0 s are the most"]


def test_locks_that_are_all_granted_are_enough() -> None:
    script = starved(*busy(LOCK, 400, 1.0, 10), *busy("m", 40, 1.0, 10), *busy("m", 40, 25.0, 50))
    assert short_of(script) == []
    locks = judge(script.history()).locks
    assert (locks["m"].grants, locks["m"].handoffs) == (80, 79)
    assert locks["m"].longest_gap == pytest.approx(21.09)


def test_a_lock_that_nobody_asks_for_has_no_gap() -> None:
    script = Script().acquire("1", 1.0, 1.1, 10).acquire("2", 40.0, 40.1, 11).event(50.0, "quiet", patience=5.0)
    assert judge(script.history()).locks[LOCK].longest_gap == pytest.approx(0.1)


def test_a_freeze_counts_if_it_hits_a_holder_and_lasts_past_the_ttl() -> None:
    script = Script().acquire("1", 1.0, 1.1, 10).release("1", 9.0, 9.1, 10)
    script.event(0.1, "freeze", victim="1").event(0.9, "thaw", victim="1")
    script.event(2.0, "freeze", victim="1").event(2.9, "thaw", victim="1")
    script.event(3.0, "freeze", victim="1").event(4.1, "thaw", victim="1")
    script.event(5.0, "freeze", victim="1")
    assert judge(script.history()).amounts.freezes == 1
