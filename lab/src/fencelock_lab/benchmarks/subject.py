"""Measure one subject, and write the results: `python -m fencelock_lab.benchmarks.subject SUBJECT …`.

Never called by hand: `python -m fencelock_lab.benchmarks` runs it in a process of its own, so that a subject that fails
or hangs stops no other.
"""

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path

from fencelock_lab.benchmarks.parts import chosen, shares
from fencelock_lab.benchmarks.results import Report, write
from fencelock_lab.benchmarks.stores import Site, site

_SITES = {"http": "sqlite", "startup": "etcd"}
_TITLES = {"http": "HTTP", "startup": "Start-up", "simulated": "Simulated"}


def measure(subject: str, seconds: float, parts: list[str]) -> Report:
    """Measure the parts one after another, on one server."""
    began = time.monotonic()
    with _site(subject) as measured:
        title = _TITLES.get(subject) or (measured.title if measured else subject)
        report = Report(subject, title)
        for part, share in shares(chosen([subject], parts)[subject], seconds):
            print(f"{title}: {part}, {share:.0f} s …", file=sys.stderr, flush=True)
            try:
                module = import_module(
                    "fencelock_lab.benchmarks.peers.contest"
                    if part == "contest"
                    else f"fencelock_lab.benchmarks.cases.{part}"
                )
                report.results += module.run(measured, share)
            except Exception as error:
                print(f"{title}: {part} failed: {error!r}", file=sys.stderr, flush=True)
                report.failed[part] = f"{type(error).__name__}: {error}"
    report.seconds = round(time.monotonic() - began)
    return report


def _site(subject: str) -> AbstractContextManager[Site | None]:
    return nullcontext() if subject == "simulated" else site(_SITES.get(subject, subject))


def main(subject: str, seconds: str, folder: str, *parts: str) -> int:
    """Measure, write, and return 0 if every part has results."""
    report = measure(subject, float(seconds), list(parts))
    write(report, Path(folder))
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
