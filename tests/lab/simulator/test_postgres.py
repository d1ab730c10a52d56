"""PostgreSQL's own source keeps the rules in every simulated world, crashes and copies included; a broken one is found.

As many seeds as take seconds, and in the campaigns as many as take half a minute;
`python -m fencelock_lab.simulator --store postgres --url …` runs more.
"""

import random
from functools import partial

import pytest

from fencelock.stores.postgres.source.store import PostgresSource
from fencelock_lab.simulator import postgres, simulate
from fencelock_lab.simulator.__main__ import main
from fencelock_lab.simulator.postgres import PostgresWorld
from fencelock_lab.simulator.postgres_database import SimulatedDatabase
from tests.sql.postgres.fix_postgres import only

FIXED = range(15)
more = pytest.param(range(15, 60), marks=pytest.mark.campaign)
FRESH_SEEDS = 15
CONTROL_SEEDS = range(400)

pytestmark = only("15")


@pytest.fixture
def simulated(database):
    """Yield a database for simulations, in which a test may break what it likes."""
    the_database = SimulatedDatabase(database.url())
    yield the_database
    the_database.close()


def outcomes(database, seeds):
    return (simulate(seed, world_type=partial(PostgresWorld, database=database)) for seed in seeds)


def broken(database, seeds):
    replay = "python -m fencelock_lab.simulator --store postgres --url … --seed"
    return [f"{one.violation}; replay: {replay} {one.seed}" for one in outcomes(database, seeds) if one.violation]


def first_violation(database):
    return next((one.violation for one in outcomes(database, CONTROL_SEEDS) if one.violation), "none was found")


@pytest.mark.parametrize("seeds", [FIXED, more], ids=["few", "more"])
def test_fixed_seeds_break_no_rule(simulated, seeds):
    assert broken(simulated, seeds) == []


@pytest.mark.campaign
def test_fresh_seeds_break_no_rule(simulated, capsys):
    first = random.SystemRandom().randrange(2**32)
    with capsys.disabled():
        print(f" [seeds {first}:{first + FRESH_SEEDS}]", end="")
    assert broken(simulated, range(first, first + FRESH_SEEDS)) == []


IS_ENDED = {
    "create_acquire": {"free.ended_digest IS DISTINCT FROM p_digest": "true", "free.forgotten_us < p_born_us": "true"},
    "create_decide": {"p_digest = held.ended_digest": "false", "greatest(held.forgotten_us, ": "greatest("},
}
ARE_ALIVE = {
    "create_live_head": {"IF head.deadline_us > p_now_us THEN": "IF true THEN"},
    "create_decide": {"IF own.deadline_us <= state.now_us THEN": "IF false THEN"},
}


def rare(*parameters):
    """Return parameters of a broken rule that many seeds do not meet: it takes longer to find, in the campaigns."""
    return pytest.param(*parameters, marks=pytest.mark.campaign)


@pytest.mark.parametrize(
    ("rules", "changes"),
    [
        ("T1", {"create_begin_history": {"PERFORM setval('fencelock.token', base);": ""}}),
        rare("T3", {"create_decide": {"answer.token := held.token": "answer.token := nextval('fencelock.token')"}}),
        rare("T4", {"create_renew": {"AND l.deadline_us > moment": ""}}),
        ("H1", {"create_acquire": {"free.digest IS NULL AND": ""}}),
        ("H1|H4", {"create_end_lease": {"AND digest = p_digest": ""}}),
        ("H4|H8", IS_ENDED),
        rare("H4|H8", {"create_purge": {"SET born_after_us = fencelock.past_us()": "SET born_after_us = 0"}}),
        ("H4|H8", {"create_remember_ended": {"WHERE name = p_lock": "WHERE false"}}),
        rare("T4|H4", {"create_raise_epoch": {"digest = NULL, holder = NULL, deadline_us = 0,": ""}}),
        ("H7", {"create_live_head": {"ORDER BY ticket LIMIT 1": "ORDER BY ticket DESC LIMIT 1"}}),
        ("H8", ARE_ALIVE),
    ],
    ids=[
        "a new history keeps the counter",
        "a retry gets another token",
        "expired leases are renewed",
        "a held lock is granted",
        "release goes by the lock's name",
        "ended claims are forgotten",
        "a purge forgets what it refused",
        "leavers are forgotten",
        "a raised epoch ends no lease",
        "the last waiter is served first",
        "dead waiters are kept",
    ],
)
def test_a_broken_rule_is_found(simulated, rules, changes):
    for name, change in changes.items():
        simulated.replace(name, change)
    assert first_violation(simulated).startswith(tuple(rules.split("|")))


def test_a_recovery_that_is_not_noticed_is_found(simulated, monkeypatch):
    load = simulated.load
    monkeypatch.setattr(simulated, "load", lambda state, how: load(state, "cold"))
    assert first_violation(simulated).startswith("T1")


@pytest.fixture
def crashing(monkeypatch):
    """Have every server crash again and again."""
    monkeypatch.setattr(postgres, "CLOCK_SET_ODDS", 0.0)
    monkeypatch.setattr(postgres, "CRASH_ODDS", 1.0)


@pytest.mark.campaign
def test_a_history_that_is_not_flushed_is_found(simulated, crashing, monkeypatch):
    """Where the server does not know the year: elsewhere the next history is above by the clock."""
    monkeypatch.setattr(postgres, "CALENDAR_ODDS", 0.0)
    simulated.replace("create_begin_flushed", {"'synchronous_commit', 'on'": "'synchronous_commit', 'off'"})
    assert first_violation(simulated).startswith("T1")


@pytest.mark.campaign
def test_a_recovery_that_forgets_what_it_refused_is_found(simulated, crashing):
    simulated.replace("create_begin_history", {"born_after_us = fencelock.past_us()": "born_after_us = 0"})
    assert first_violation(simulated).startswith(("H4", "H8"))


def test_a_clock_that_is_set_lets_no_claim_be_granted_twice(simulated, monkeypatch):
    monkeypatch.setattr(postgres, "CLOCK_SET_ODDS", 1.0)
    assert broken(simulated, FIXED[:8]) == []


def test_a_seed_replays_exactly(simulated):
    worlds = partial(PostgresWorld, database=simulated)
    first, second = (simulate(11, is_tracing=True, world_type=worlds) for _ in range(2))
    assert first.lines
    assert first == second


def test_the_command_simulates_postgres(database, capsys):
    assert main(["--store", "postgres", "--url", database.url(), "--seeds", "0:2"]) == 0
    assert capsys.readouterr().out.startswith("2 seeds, ")


def test_the_command_keeps_off_a_source_that_may_be_in_use(database, capsys):
    PostgresSource(database.url()).install()
    assert main(["--store", "postgres", "--url", database.url()]) == 64
    assert main(["--store", "postgres"]) == 64
    assert "for simulations alone" in capsys.readouterr().err
    assert database.value("SELECT count(*) FROM fencelock.source") == 1
