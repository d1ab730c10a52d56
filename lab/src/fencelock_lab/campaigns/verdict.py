"""The verdict on a history: every checker's findings, and whether enough happened for them to mean anything.

    0  clean           nothing broke a promise, everything was decided, and enough happened
    1  violation       something broke a promise; the first one is explained
    2  not enough      too little happened, or a search ran out of its budget: nothing is proven

Promise: a violation outranks everything, and a run in which little happened never passes.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fencelock_lab.campaigns.amounts import (
    LEAST_PER_LOCK,
    USUAL_LEAST,
    Amounts,
    LockAmounts,
    amounts_of,
    amounts_of_locks,
    missing_faults,
    shortfalls_of_locks,
)
from fencelock_lab.campaigns.check_accepted import check_accepted_tokens
from fencelock_lab.campaigns.check_locks import (
    check_alarms,
    check_errors,
    check_exclusion,
    check_refusals,
    check_strays,
    check_tokens,
)
from fencelock_lab.campaigns.check_losses import check_losses
from fencelock_lab.campaigns.check_order import check_order
from fencelock_lab.campaigns.check_progress import check_progress, check_rest
from fencelock_lab.campaigns.check_reads import check_reads
from fencelock_lab.campaigns.check_writes import check_writes
from fencelock_lab.campaigns.evidence import EvidenceStep, explain
from fencelock_lab.campaigns.findings import CampaignViolation, Findings
from fencelock_lab.campaigns.history import History
from fencelock_lab.campaigns.lost_on_crash import shorten_leases

CLEAN, VIOLATION, NOT_ENOUGH = 0, 1, 2
NAMES = {CLEAN: "clean", VIOLATION: "violation", NOT_ENOUGH: "not enough"}
MAX_SHOWN = 20
"""Violations that are listed one by one; the others are counted."""

CHECKERS: tuple[Callable[[History, Findings], None], ...] = (
    check_writes,
    check_accepted_tokens,
    check_reads,
    check_tokens,
    check_exclusion,
    check_refusals,
    check_alarms,
    check_strays,
    check_progress,
    check_rest,
    check_order,
    check_losses,
)


@dataclass(frozen=True, slots=True)
class Expectations:
    """What a campaign must show: at `least` so much of each amount, and no `errors` but these, if they are given.

    `per_lock` is the least number of hand-offs of each lock.
    """

    least: Mapping[str, int]
    errors: frozenset[str] | None = None
    per_lock: int = LEAST_PER_LOCK


USUAL = Expectations(USUAL_LEAST)
"""What every history must show whose campaign expects nothing else: `fencelock verify` knows no other."""


@dataclass(frozen=True, slots=True)
class CampaignVerdict:
    """What came out: `code` is the exit code, `steps` explain the first violation."""

    code: int
    findings: Findings
    amounts: Amounts
    locks: Mapping[str, LockAmounts]
    shortfalls: tuple[str, ...]
    steps: tuple[EvidenceStep, ...]

    @property
    def first(self) -> CampaignViolation | None:
        """The violation that is explained: of the earliest ones the most telling."""
        return self.findings.violations[0] if self.findings.violations else None

    def to_json(self) -> dict[str, Any]:
        """Return all of it for machines."""
        violations = self.findings.violations
        return {
            "verdict": NAMES[self.code],
            "exit_code": self.code,
            "violations": [
                {"rule": one.rule, "place": one.place, "message": one.message} for one in violations[:MAX_SHOWN]
            ],
            "violations_in_all": len(violations),
            "explanation": [asdict(step) for step in self.steps],
            "undecided": [asdict(one) for one in self.findings.undecided],
            "shortfalls": list(self.shortfalls),
            "amounts": asdict(self.amounts),
            "locks": {lock: asdict(one) for lock, one in self.locks.items()},
            "information": dict(self.findings.information),
        }


def judge(history: History, expected: Expectations = USUAL) -> CampaignVerdict:
    """Return the verdict on a history."""
    shorten_leases(history)
    findings = Findings()
    for check in CHECKERS:
        check(history, findings)
    if expected.errors is not None:
        check_errors(history, findings, expected.errors)
    findings.violations.sort(key=_rank)
    amounts, locks = amounts_of(history), amounts_of_locks(history)
    shortfalls = (
        *amounts.shortfalls(expected.least),
        *shortfalls_of_locks(history, locks, expected.per_lock),
        *missing_faults(history),
    )
    first = findings.violations[0] if findings.violations else None
    code = VIOLATION if first else NOT_ENOUGH if shortfalls or findings.undecided else CLEAN
    steps = tuple(explain(history, first)) if first else ()
    return CampaignVerdict(code, findings, amounts, locks, shortfalls, steps)


def _rank(violation: CampaignViolation) -> tuple[bool, int]:
    """Order by when a violation could be known; what shows no operation comes last."""
    return not violation.operations, violation.at_ns
