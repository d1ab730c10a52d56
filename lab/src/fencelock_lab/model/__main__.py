"""`python -m fencelock_lab.model`: explore all scenes, or show the anomaly without one rule.

Promise: exits with 0 if the results are as expected: no anomaly with all rules on, an anomaly with each rule off, and
the stated anomaly in each limit; otherwise with 1.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from fencelock_lab.model import report
from fencelock_lab.model.checks import ModelResult, cases_of, check_case, check_limit, check_scene
from fencelock_lab.model.picture import file_name, picture
from fencelock_lab.model.rules import RULES
from fencelock_lab.model.scenes import CASES, LIMITS, SCENES


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m fencelock_lab.model", description="Explore the protocol, rule by rule."
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--without", metavar="RULE", choices=RULES, help="show the shortest trace without this rule")
    what.add_argument("--limit", choices=LIMITS, help="show what happens beyond the rules")
    what.add_argument("--rules", action="store_true", help="list the rules, and what is done without each")
    what.add_argument("--pictures", metavar="FOLDER", type=Path, help="draw a trace of every rule and every limit")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="draw that trace too")
    chosen = parser.parse_args(arguments)
    if chosen.rules:
        _print(report.rules_text())
    elif chosen.pictures:
        for result in drawn():
            (chosen.pictures / file_name(result)).write_text(picture(result), encoding="utf-8")
    elif chosen.without or chosen.limit:
        return _show(chosen)
    elif chosen.svg:
        parser.error("--svg draws one trace: say --without RULE or --limit LIMIT as well")
    else:
        return _run_all()
    return 0


def drawn() -> Iterator[ModelResult]:
    """Yield the results that have a picture next to `docs/explanation/anomalies.md`."""
    for rule in RULES:
        yield check_case(cases_of(rule)[0])
    for limit in LIMITS:
        yield check_limit(limit)


def _show(chosen: argparse.Namespace) -> int:
    """Show the traces of a rule, one for each of its anomalies, or of a limit, and draw the first trace."""
    cases = cases_of(chosen.without)
    results = [check_limit(chosen.limit)] if chosen.limit else [check_case(case) for case in cases]
    for result in results:
        _print(report.result_text(result))
    if chosen.svg and results[0].trace:
        chosen.svg.write_text(picture(results[0]), encoding="utf-8")
    return 0 if all(result.trace for result in results) else 1


def _run_all() -> int:
    """Explore everything, and print the tables."""
    quiet = [check_scene(name) for name in SCENES]
    _print(report.scenes_table(quiet))
    loud = [check_case(case) for case in CASES]
    _print(report.cases_table(loud))
    limits = [check_limit(name) for name in LIMITS]
    _print(report.limits_table(limits))
    return 0 if _is_as_said(quiet, [*loud, *limits]) else 1


def _is_as_said(quiet: list[ModelResult], loud: list[ModelResult]) -> bool:
    return not any(result.trace for result in quiet) and all(result.trace for result in loud)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n\n")


if __name__ == "__main__":
    sys.exit(main())
