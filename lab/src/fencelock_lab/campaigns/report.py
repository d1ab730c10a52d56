"""A verdict as text for people: what was judged, what came out, and the steps that led to a violation.

Promise: no name from a history moves a terminal's cursor. No claim is in it, for a history has
none.
"""

from collections.abc import Iterator

from fencelock_lab.campaigns.verdict import CLEAN, NAMES, VIOLATION, CampaignVerdict

_HEADLINES = {
    CLEAN: "CLEAN: no promise was broken.",
    VIOLATION: "VIOLATION: a promise was broken.",
}


def story(verdict: CampaignVerdict) -> str:
    """Return the verdict as lines of text."""
    text = "\n".join((*_amounts(verdict), "", *_outcome(verdict)))
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _amounts(verdict: CampaignVerdict) -> Iterator[str]:
    a = verdict.amounts
    yield f"{a.events} events in {a.duration:.1f} s"
    yield f"  locks      {a.grants} grants, {a.handoffs} hand-offs to another process"
    for lock, one in verdict.locks.items():
        yield f"             {lock}: {one.grants} grants, {one.handoffs} hand-offs, longest gap {one.longest_gap:.1f} s"
    yield f"  resources  {a.reads} reads and {a.writes} writes accepted"
    yield f"  refused    {a.refusals} as stale, {a.strays} without a token"
    yield f"  faults     {a.freezes} freezes of a holder past the ttl, {a.kills} kills, {a.disturbances} of the network"
    if a.jumps or a.server_faults:
        yield f"             {a.jumps} jumps of a clock, {a.server_faults} faults of the servers"
    if a.losses:
        yield f"  losses     {a.losses} told to processes that went on, the slowest after {a.slowest_loss:.2f} s"
    yield f"  unknown    {a.unknown} operations whose outcome is unknown"
    for what, times in sorted(verdict.findings.information.items()):
        if times:
            yield f"  also       {times} {what}"


def _outcome(verdict: CampaignVerdict) -> Iterator[str]:
    findings = verdict.findings
    yield _HEADLINES.get(verdict.code, f"{NAMES[verdict.code].upper()}: this run proves nothing.")
    for shortfall in verdict.shortfalls:
        yield f"  too little: {shortfall}"
    if verdict.shortfalls and verdict.first is None:
        yield "  attack it for longer (--duration), or on a machine that has less else to do"
    for doubt in findings.undecided:
        yield f"  undecided: {doubt.rule} at {doubt.place}: {doubt.message}"
    if verdict.first is None:
        return
    first = verdict.first
    yield f"  {first.rule} at {first.place}: {first.message}"
    for number, step in enumerate(verdict.steps, 1):
        yield f"  {number:>3}. {step.at:>10.6f} s  process {step.process:<6} {step.text}"
    yield f"Broken rules: {', '.join(_counted(verdict))}"


def _counted(verdict: CampaignVerdict) -> list[str]:
    counts: dict[str, int] = {}
    for violation in verdict.findings.violations:
        counts[violation.rule] = counts.get(violation.rule, 0) + 1
    return [f"{rule} ({times})" for rule, times in sorted(counts.items())]
