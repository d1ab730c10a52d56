"""SQLite's own source keeps the rules in every simulated world, power cuts included; a broken one is found out."""

import random

import pytest

from fencelock.stores.sqlite.connection.database import Database
from fencelock.stores.sqlite.source.identity import SQLiteIdentity
from fencelock.stores.sqlite.source.queue import QueueView, SQLiteQueue
from fencelock_lab.simulator import simulate
from fencelock_lab.simulator.__main__ import main
from fencelock_lab.simulator.sqlite import MemoryDatabase, SQLiteWorld

FIXED = range(200)
SLICES = 8
FRESH_SEEDS = 100
CONTROL_SEEDS = (24, 31, 633, 1706, *range(1500))
"""The first seeds are those that find the rarest of the broken rules today; without them it takes half a minute."""


def broken(seeds):
    outcomes = (simulate(seed, world_type=SQLiteWorld) for seed in seeds)
    return [
        f"{one.violation}; replay: python -m fencelock_lab.simulator --store sqlite --seed {one.seed}"
        for one in outcomes
        if one.violation
    ]


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.campaign) for first in range(1, SLICES))])
def test_fixed_seeds_break_no_rule(first):
    assert broken(FIXED[first::SLICES]) == []


@pytest.mark.campaign
def test_fresh_seeds_break_no_rule(capsys):
    first = random.SystemRandom().randrange(2**32)
    with capsys.disabled():
        print(f" [seeds {first}:{first + FRESH_SEEDS}]", end="")
    assert broken(range(first, first + FRESH_SEEDS)) == []


def nothing(*_, **__):
    return None


def keep_the_counter(self, database, ended, born_after_us):
    counter = database.execute("SELECT counter FROM fencelock_source").fetchone()
    _void_everything(self, database, ended, born_after_us)
    database.execute("UPDATE fencelock_source SET counter = ? WHERE id = 1", counter)


_void_everything = SQLiteIdentity._void_everything


@pytest.mark.parametrize(
    ("owner", "name", "replacement", "rule"),
    [
        (MemoryDatabase, "transact_flushed", lambda self, body, **_: Database.transact(self, body), "T1"),
        (SQLiteIdentity, "_void_everything", keep_the_counter, "T1"),
        (QueueView, "may_have_ended", lambda self, claim, born_us: False, "H4"),
        (SQLiteQueue, "remember_ended", nothing, "H8"),
        (SQLiteQueue, "_drop_dead_waiters", lambda *_: (), "H8"),
    ],
    ids=["bound not flushed", "no skip to the bound", "claims forgotten", "leavers forgotten", "dead waiters kept"],
)
def test_a_broken_rule_is_found(monkeypatch, owner, name, replacement, rule):
    monkeypatch.setattr(owner, name, replacement)
    outcomes = (simulate(seed, world_type=SQLiteWorld) for seed in CONTROL_SEEDS)
    assert any((outcome.violation or "").startswith(rule) for outcome in outcomes)


def test_the_command_simulates_sqlite(capsys):
    assert main(["--store", "sqlite", "--seeds", "0:2"]) == 0
    assert capsys.readouterr().out.startswith("2 seeds, ")
