"""Campaigns against private servers: locks and data in one database, and nothing of ours is left in it."""

import pytest

import fenceline
from fenceline._api.guard import look_at
from fenceline.verify.verdict import CLEAN
from tests.cli.program import Program, program
from tests.mysql.fix_mysql import Database as MySQLDatabase
from tests.postgres.fix_postgres import Database, only
from tests.verify.test_campaign import attack_until

__all__ = ["program"]
pytestmark = [pytest.mark.process, pytest.mark.slow]

SHORT = ("--ttl", "0.3", "--duration", "8")


def check(program: Program, url: str) -> None:
    """Attack the database at the URL, and expect that it stands."""
    with fenceline.connect(url) as source:
        source.install()
    history = program.folder / "history.jsonl"
    words = ("--source", url, "--guard", url, "--history", str(history), *SHORT)
    code, verdict = attack_until(CLEAN, program, *words)
    assert (code, verdict["violations"], verdict["undecided"]) == (0, [], []), verdict
    assert verdict["amounts"]["refusals"] > 0
    assert verdict["amounts"]["disturbances"] > 0
    assert look_at(url).protections == ()
    assert program.left() == []


@only("15")
def test_postgres_stands(program: Program, database: Database) -> None:
    check(program, database.url())
    tables = database.rows("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'verify%%'")
    assert tables == [(0,)]


def test_mariadb_stands(program: Program, mysql_database: MySQLDatabase) -> None:
    check(program, mysql_database.url())
    assert len(mysql_database.rows("SHOW TABLES LIKE 'verify%%'")) == 0
