"""The few figures that README shows: for each store a free lock and a guarded write, beside the same work by hand.

Promise: README's figures are those of the results files, with their dates and their machine. Never: a figure written by
hand.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fencelock_lab.benchmarks.measure import Measurement
from fencelock_lab.benchmarks.page import number, table
from fencelock_lab.benchmarks.peers.contest import ALONE
from fencelock_lab.benchmarks.results import Report, by_variant
from fencelock_lab.kept_results import replace

README = Path("README.md")
BEGIN = "<!-- figures: `python -m fencelock_lab.benchmarks --publish` writes them -->\n"
END = "<!-- end of the figures -->\n"
_HEADER = ("median", "acquire and release a free lock", "a guarded write", "the same without a check", "measured")
_GUARDED = ("a guarded write, 1 writer, 1 statement", "a guarded write, wal")


def as_markdown(reports: Sequence[Report]) -> str:
    """Return the table, and a sentence about the machine."""
    compared = [report for report in reports if _guarded(report) and "fencelock" in by_variant(report.find(ALONE))]
    machines = {re.sub(r", load [\d.]+ when it began", "", report.machine): None for report in compared}
    where = f"\nEach server ran on the same machine as its one client: {'; '.join(machines)}.\n"
    return f"\n{table(_HEADER, _rows(compared))}{where}\n"


def publish(reports: Sequence[Report], readme: Path = README) -> None:
    """Write the figures into README."""
    replace(readme, with_figures(readme.read_text(), as_markdown(reports)))


def with_figures(text: str, figures: str) -> str:
    """Return README's text with these figures in the place for them."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{figures}{END}{after}"


def _rows(reports: Sequence[Report]) -> Iterator[list[str]]:
    for report in reports:
        alone, guarded = by_variant(report.find(ALONE)), by_variant(_guarded(report))
        times = [alone["fencelock"], guarded["guard.transaction"], guarded["no check at all"]]
        yield [report.title, *(f"{number(each.median)} us" for each in times), report.measured.partition(" ")[0]]


def _guarded(report: Report) -> list[Measurement]:
    return [result for case in _GUARDED for result in report.find(case)]
