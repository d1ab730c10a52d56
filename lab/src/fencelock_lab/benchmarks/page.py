"""The page of results: for each store one table of all lock libraries on it, and one table of the other questions.

Promise: every figure on it is in a results file, in the same digits. `performance.md` explains the figures.
"""

from collections.abc import Iterable, Sequence

from fencelock_lab.benchmarks.measure import Measurement
from fencelock_lab.benchmarks.peers.contest import (
    ALONE,
    FAIRNESS,
    LONGEST,
    PROCESSES,
    RATE,
    TAILS,
    WAITERS,
    handing_over,
    many,
)
from fencelock_lab.benchmarks.results import Report, by_variant
from fencelock_lab.kept_results import paragraph

_HEAD = """# Measured

`make bench STORE=all` wrote this page and [its files](../../lab/results). [Another page](performance.md) explains the
figures and helps to choose. The libraries in one table took turns on one private server, whose files are on a disk;
compare figures within a table only. Times are microseconds (us) and milliseconds (ms); a ratio is the median of each
turn's ratio to the first row. An aim is the most that a result should be, and it is met or *missed*.

The columns: *p50*, *p99* and *p99.9* of acquiring and releasing a free lock; *cycles/s* of this many processes
together that compete for one lock without a pause; for the largest number of processes, how *fair* that was (Jain's
index, 1: all had the same share), and the longest wait of any process; *hand-off* from the call of release until the
next acquire returns, with this many processes waiting. A range in brackets has the quartiles: of the turns, of a
second each, for what many processes do together, and of all hand-offs. An empty cell: the library does not support the
case, it failed, no time was left, or so many processes are too many for waiters that look from time to time. `python
-m fencelock_lab.benchmarks --draw FOLDER` draws the same figures as pictures.
"""
SERVERS = {
    "sqlite": "fencelock and the transactions by hand write to a write-ahead log with `synchronous=NORMAL`: they flush "
    "at its checkpoints and for each block of tokens, not for a grant. The other libraries flush nothing.",
    "postgres": "The server flushes each commit, as by default. fencelock and the statements by hand ask it not to "
    "wait for that at a grant (`synchronous_commit=off`); an advisory lock writes nothing; sentinel-coordination's "
    "commits wait.",
    "mysql": "The server flushes each commit (`innodb_flush_log_at_trx_commit=1`, as by default), of fencelock and of "
    "the statements by hand. GET_LOCK, and so tooz, writes nothing.",
    "etcd": "The server flushes each write before it answers, as by default, of all libraries alike.",
    "zookeeper": "The server flushes each write before it answers, as by default, of all libraries alike.",
    "dynamodb": "**An emulator on this machine, which keeps everything in memory: Amazon's own service was not "
    "measured, and its times are others.** Read the ratios and the numbers of requests, and no time. A guarded write "
    "is compared with a consistent GetItem of a mark and a bare TransactWriteItems that checks it.",
    "s3": "SeaweedFS is a real server, on this machine: the way to Amazon's S3, and what that takes, is not in these "
    "times. Read the ratios and the numbers of requests. A guarded write is compared with a GET and a conditional PUT "
    "of a small object around the data's own PUT. fencelock's manifest names the objects that were replaced, until "
    "`fencelock.s3.collect` has deleted them: it was collected before each turn, but where a row says how many objects "
    "were replaced before.",
    "redis": "The server is made to flush each write before it answers (`appendfsync always`), so that its crash "
    "forgets no lock and no seal. As it is usually set up, Redis flushes nothing before it answers "
    "(`appendfsync everysec`): it is faster then, and a crash forgets locks. Guarded writes were measured in "
    "both ways.",
    "files": "All three ways flush each file, and the folder after the renames. The one by hand takes a flock and "
    "looks at a mark in between; a crash leaves it with some of several files renamed.",
}
"""What was measured where, and who waits for a disk, by the store."""
_ONE_TURN = (
    "What many processes do together was measured in one turn of one second: read *cycles/s*, *fair* and *longest* as "
    "an order of magnitude."
)
_CONTEST = (
    "library",
    *("p50 us", "p99 us", "p99.9 us", "ratio"),
    *(f"cycles/s, {number}" for number in PROCESSES),
    *(f"{what}, {PROCESSES[-1]}" for what in ("fair", "longest ms")),
    *(f"hand-off ms, {number}" for number in WAITERS),
    "lacks",
)


def as_markdown(reports: Sequence[Report]) -> str:
    """Return the page."""
    parts = [_HEAD]
    for report in reports:
        parts.append(f"## {report.title}\n")
        parts.append(f"{report.measured}, {report.seconds / 60:.1f} minutes; {report.machine}.\n")
        if report.subject in SERVERS:
            parts.append(paragraph(SERVERS[report.subject]))
        if report.find(ALONE):
            parts.append(table(_CONTEST, _contest(report)))
            if _is_of_one_turn(report):
                parts.append(paragraph(_ONE_TURN))
        others = [result for result in report.results if not is_of_contest(result.case)]
        if others:
            header = ("question", "", "median", "quartiles", "ratio", "aimed at")
            parts.append(table(header, _questions(others)))
        parts += [f"Not measured: {part} ({why}).\n" for part, why in report.failed.items()]
    return "\n".join(parts)


def is_of_contest(case: str) -> bool:
    """Return whether a case has a column in the table of all lock libraries."""
    return case in _columns()


def _is_of_one_turn(report: Report) -> bool:
    """Return whether there are rates, and nothing shows how much they differ from turn to turn."""
    rates = [one for processes in PROCESSES for one in report.find(many(RATE, processes))]
    return bool(rates) and all(one.low == one.high for one in rates)


def _columns() -> list[str]:
    return [
        ALONE,
        *(f"{ALONE}, {tail}" for tail in TAILS),
        *(many(what, number) for what in (RATE, FAIRNESS, LONGEST) for number in PROCESSES),
        *(handing_over(number) for number in WAITERS),
    ]


def _contest(report: Report) -> list[list[str]]:
    most = PROCESSES[-1]
    cases = [
        *(f"{ALONE}, {tail}" for tail in TAILS),
        *(many(RATE, number) for number in PROCESSES),
        *(many(what, most) for what in (FAIRNESS, LONGEST)),
        *(handing_over(number) for number in WAITERS),
    ]
    found = [by_variant(report.find(case)) for case in cases]
    rows = []
    for alone in report.find(ALONE):
        cells = [_with_range(one[alone.variant]) if alone.variant in one else "" for one in found]
        tails, others = cells[: len(TAILS)], cells[len(TAILS) :]
        rows.append([alone.variant, number(alone.median), *tails, _ratio(alone), *others, alone.lacks])
    return rows


def _questions(results: Sequence[Measurement]) -> Iterable[list[str]]:
    cases: dict[str, list[Measurement]] = {}
    for result in results:
        cases.setdefault(result.case, []).append(result)
    for case, variants in cases.items():
        for index, result in enumerate(variants):
            spread = "" if result.low == result.high else f"{number(result.low)} to {number(result.high)}"
            median = f"{number(result.median)} {result.unit}".rstrip()
            yield ["" if index else case, result.variant, median, spread, _ratio(result), _aim(result)]


def _with_range(result: Measurement) -> str:
    if result.low == result.high:
        return number(result.median)
    return f"{number(result.median)} ({number(result.low)} to {number(result.high)})"


def _aim(result: Measurement) -> str:
    if result.aim is None:
        return ""
    aim = f"{number(result.aim)}x" if result.ratio is not None else f"{number(result.aim)} {result.unit}".rstrip()
    return f"{aim}: {'*missed*' if result.is_missed else 'met'}"


def _ratio(result: Measurement) -> str:
    return "" if result.ratio is None else f"{number(result.ratio)}x"


def number(value: float) -> str:
    """Return a number with three significant digits, or as a whole number."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
