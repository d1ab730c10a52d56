"""What a campaign makes is taken away again; only what may really be there is said to be left behind."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock_lab.campaigns.dialects import Dialect
from fencelock_lab.campaigns.settings import CampaignSettings
from fencelock_lab.campaigns.table_target import TableTarget
from tests.sql.mysql.fix_mysql import Database as MySQLDatabase
from tests.sql.postgres.fix_postgres import Database, only

SETTINGS = CampaignSettings(source=None, guard="", run="run", of="source")
NUMBER = 1


@pytest.fixture
def place(tmp_path: Path) -> TableTarget:
    """Return the two resources of a lock, in a file that has another table."""
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute("CREATE TABLE users_own (value)")
    return TableTarget(replace(SETTINGS, guard=f"sqlite:///{tmp_path}/app.db"), NUMBER)


@contextmanager
def refused(monkeypatch: pytest.MonkeyPatch, *words: str) -> Iterator[None]:
    """Have the store refuse the statements that begin with one of the words."""
    kind = Dialect
    run = kind.rows

    def rows(self: Any, connection: Any, statement: str, *others: Any) -> Any:
        if statement.startswith(words):
            raise sqlite3.OperationalError("attempt to write a readonly database")
        return run(self, connection, statement, *others)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "rows", rows)
        yield


def test_a_table_that_may_not_be_made_is_the_set_ups_fault(place: TableTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(monkeypatch, "CREATE"), pytest.raises(fencelock.GuardError, match=r"verify_run_1_a_list could not be"):
        place.create()


def test_what_was_never_made_is_not_left_behind(place: TableTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(monkeypatch, "CREATE", "DROP"):
        with pytest.raises(fencelock.GuardError):
            place.create()
        assert place.remove() == []


def test_what_cannot_be_taken_away_is_named(place: TableTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    place.create()
    with refused(monkeypatch, "DROP"):
        left = place.remove()
    assert [one.partition(": ")[0] for one in left] == [
        "verify_run_1_b_counters, verify_run_1_b_list",
        "verify_run_1_a_counters, verify_run_1_a_list",
    ]


def test_what_may_be_there_is_named_too(place: TableTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    place.create()
    with refused(monkeypatch, "DROP", "SELECT"):
        assert len(place.remove()) == 2


def test_what_was_made_in_part_is_taken_away(place: TableTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(monkeypatch, "CREATE TABLE {list}"), pytest.raises(fencelock.GuardError):
        place.create()
    assert place.is_there(place.resources[0])
    assert place.remove() == []
    assert not place.is_there(place.resources[0])


def check_that_a_stray_is_refused(url: str) -> None:
    place = TableTarget(replace(SETTINGS, guard=url), NUMBER)
    place.create()
    for resource in place.resources:
        with pytest.raises(fencelock.UnfencedWriteError):
            place.write_unfenced(resource)
    assert place.remove() == []


def test_sqlite_refuses_a_write_without_a_token(place: TableTarget) -> None:
    check_that_a_stray_is_refused(place.url)


@only("18")
def test_postgres_refuses_a_write_without_a_token(database: Database) -> None:
    check_that_a_stray_is_refused(database.url())


def test_mariadb_refuses_a_write_without_a_token(mysql_database: MySQLDatabase) -> None:
    check_that_a_stray_is_refused(mysql_database.url())
