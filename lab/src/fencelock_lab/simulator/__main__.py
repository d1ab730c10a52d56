"""`python -m fencelock_lab.simulator`: run seeds, print the seeds that break a rule, and replay one line by line.

Exit codes: 0 no seed broke a rule, 1 at least one seed did, 64 invalid arguments.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial

from fencelock.errors import ConfigError
from fencelock_lab.simulator.controls import CONTROLS, control
from fencelock_lab.simulator.world import MakeWorld, SimulatedWorld, SimulationOutcome, simulate

USAGE_ERROR = 64
STORES = ("memory", "sqlite", "postgres")
MAX_SHOWN = 10
"""The most broken seeds to print; the rest are only counted."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command with these arguments and return its exit code."""
    try:
        asked = _parser().parse_args(arguments)
    except SystemExit as end:
        return USAGE_ERROR if end.code else 0
    if asked.controls:
        _print("\n".join(CONTROLS))
        return 0
    try:
        with control(asked.control) if asked.control else nullcontext(), _worlds(asked.store, asked.url) as world_type:
            return _run(asked.seeds, world_type) if asked.seed is None else _replay(asked.seed, world_type)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return USAGE_ERROR


@contextmanager
def _worlds(store: str, url: str | None) -> Iterator[MakeWorld]:
    if store == "sqlite":
        from fencelock_lab.simulator.sqlite import SQLiteWorld

        yield SQLiteWorld
    elif store == "postgres":
        if url is None:
            raise ConfigError("--store postgres needs a database that is for simulations alone: name it by --url")
        from fencelock_lab.simulator.postgres import PostgresWorld
        from fencelock_lab.simulator.postgres_database import SimulatedDatabase

        with closing(SimulatedDatabase(url)) as database:
            yield partial(PostgresWorld, database=database)
    else:
        yield SimulatedWorld


def _print(line: object) -> None:
    print(line)  # noqa: T201 - a command prints.


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fencelock_lab.simulator", description=__doc__.partition("\n")[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="replay one seed, with a line for everything that happens")
    which.add_argument("--seeds", type=_range, default=range(1000), metavar="A:B", help="run seeds A to B-1 (0:1000)")
    which.add_argument("--controls", action="store_true", help="list the rules that --control can break")
    parser.add_argument("--control", choices=CONTROLS, metavar="RULE", help="break a rule, to see it found")
    parser.add_argument("--store", choices=STORES, default="memory", help="whose source it is (memory)")
    parser.add_argument("--url", help="with --store postgres: a database that is for simulations alone")
    return parser


def _range(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end))


def _replay(seed: int, world_type: MakeWorld) -> int:
    outcome = simulate(seed, is_tracing=True, world_type=world_type)
    for line in outcome.lines:
        _print(line)
    _print(summary([outcome]))
    return 1 if outcome.violation else 0


def _run(seeds: range, world_type: MakeWorld) -> int:
    outcomes = []
    broken = 0
    for seed in seeds:
        outcome = simulate(seed, world_type=world_type)
        outcomes.append(outcome)
        if outcome.violation:
            broken += 1
            if broken <= MAX_SHOWN:
                _print(f"seed {seed}: {outcome.violation}")
    _print(summary(outcomes))
    return 1 if broken else 0


def summary(outcomes: Iterable[SimulationOutcome]) -> str:
    """Return a one-line summary of the simulated seeds."""
    found = list(outcomes)
    steps, tokens, increments = (sum(getattr(one, name) for one in found) for name in ("steps", "tokens", "increments"))
    broken = sum(one.violation is not None for one in found)
    return f"{len(found)} seeds, {steps} steps, {tokens} grants, {increments} increments: {broken} broke a rule"


if __name__ == "__main__":
    sys.exit(main())
