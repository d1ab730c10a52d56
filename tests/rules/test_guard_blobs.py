"""G6 on a SQLite file: incremental BLOB writes fire no trigger; an empty index over an expression refuses them."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import Guard
from fencelock.stores.registry import guard_store
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource, ask, make_file, plain, url_of, write

pytestmark = pytest.mark.reduced

REFUSED = "cannot open indexed column for writing|cannot open table without rowid"
BEFORE, AFTER = b"before", b"after!"

TABLES = {
    "ordinary": "(id INTEGER PRIMARY KEY, value BLOB, remark TEXT, anything, [fencelock] NOT NULL)",
    "without a key": "(id, value BLOB)",
    "with indexes": "(id INTEGER PRIMARY KEY, value BLOB, name UNIQUE, other); CREATE INDEX i ON reports (value)",
    "strict": "(id INTEGER PRIMARY KEY, value BLOB, remark TEXT, anything ANY) STRICT",
    "with a generated column": "(id INTEGER PRIMARY KEY, value BLOB, size AS (length(value)) STORED)",
    "without rowid": "(id INTEGER PRIMARY KEY, value BLOB, remark TEXT) WITHOUT ROWID",
}


@pytest.fixture(params=TABLES.values(), ids=TABLES)
def kind(request: pytest.FixtureRequest) -> Any:
    """The columns of each kind of table that can be protected."""
    return request.param


@pytest.fixture
def columns() -> str:
    return TABLES["ordinary"]


@pytest.fixture
def file(tmp_path: Path, journal: str, columns: str) -> Path:
    """A file whose table `reports` has one row, each value of it a BLOB or a text that BLOB I/O could change."""
    return make_blobs(tmp_path / "app.db", journal, columns)


def make_blobs(path: Path, journal: str, columns: str) -> Path:
    make_file(path, "unused", journal=journal)
    with plain(path) as connection:
        connection.executescript(f"CREATE TABLE reports {columns}")
        names = [name for _, name, *_, hidden in connection.execute("PRAGMA table_xinfo (reports)") if not hidden]
        values = [1 if name == "id" else "before" if name == "remark" else BEFORE for name in names]
        connection.execute(f"INSERT INTO reports VALUES ({', '.join('?' * len(names))})", values)
    return path


def open_guard(file: Path) -> Guard:
    return fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)


def columns_of(file: Path, table: str = RESOURCE) -> list[str]:
    return [row[1] for row in ask(file, f"PRAGMA table_info ({table})")]


def blob_write(connection: sqlite3.Connection, column: str = "value", table: str = RESOURCE) -> None:
    with connection.blobopen(table, column, 1) as blob:
        blob.write(AFTER)


def check_refused(file: Path, table: str = RESOURCE) -> None:
    before = ask(file, f"SELECT * FROM {table}")
    with plain(file) as connection:
        for column in columns_of(file, table):
            with pytest.raises(sqlite3.OperationalError, match=REFUSED):
                blob_write(connection, column, table)
    assert ask(file, f"SELECT * FROM {table}") == before


def indexes(file: Path) -> list[str]:
    """Return the names of the guard's indexes."""
    return [name for (name,) in ask(file, "SELECT name FROM sqlite_schema WHERE type = 'index' AND name LIKE 'fence%'")]


# --- refused ---
def test_g6_no_column_can_be_opened_for_blob_writes(tmp_path: Path, journal: str, kind: str) -> None:
    file = make_blobs(tmp_path / "app.db", journal, kind)
    open_guard(file).protect("reports")
    check_refused(file)


def test_g6_a_blob_can_still_be_read(file: Path) -> None:
    open_guard(file).protect("reports")
    with plain(file) as connection, connection.blobopen("reports", "value", 1, readonly=True) as blob:
        assert blob.read() == BEFORE


def test_g6_a_holder_writes_by_update_and_not_through_a_blob(file: Path) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.protect("reports")
    with guard.transaction(lease) as connection:
        with pytest.raises(sqlite3.OperationalError, match=REFUSED):
            blob_write(connection)
        connection.execute("UPDATE reports SET value = ?", (AFTER,))
    assert ask(file, "SELECT value FROM reports") == [(AFTER,)]


def test_g6_observe_mode_lets_blob_writes_pass_and_the_switch_ends_them(file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports", mode="observe")
    with plain(file) as connection:
        blob_write(connection)
    assert ask(file, "SELECT value FROM reports") == [(AFTER,)]
    guard.protect("reports", source=HandmadeSource(5))
    check_refused(file)
    guard.protect("reports", mode="observe")
    assert indexes(file) == []


def test_unprotect_removes_the_index(file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    guard.unprotect(reason="test")
    assert indexes(file) == []
    with plain(file) as connection:
        blob_write(connection)


# --- a guard without it ---
def test_doctor_names_a_missing_index_and_protect_makes_it(file: Path) -> None:
    """An older fencelock made none."""
    guard = open_guard(file)
    guard.protect("reports")
    with plain(file) as connection:
        connection.execute(f"DROP INDEX {indexes(file)[0]}")
        with pytest.raises(sqlite3.IntegrityError, match="takes writes only with its newest"):
            connection.execute("DELETE FROM reports")
    (finding,) = guard_store(url_of(file)).examine()
    assert finding.code == "lost-protection"
    assert "writes by incremental BLOB I/O" in finding.message
    assert f"run `fencelock protect {url_of(file)} …` again" in finding.remedy
    assert [one.table for one in fencelock.inspect_resources(url_of(file)).protections] == ["reports"]
    guard.protect("reports")
    assert guard_store(url_of(file)).examine() == []
    check_refused(file)


# --- the table's life ---
CHANGES = {
    "a column is added": "ALTER TABLE reports ADD COLUMN added BLOB DEFAULT x'00'",
    "a column is renamed": "ALTER TABLE reports RENAME COLUMN value TO renamed",
    "a column is dropped": "ALTER TABLE reports DROP COLUMN anything",
    "the column called fencelock is dropped": "ALTER TABLE reports DROP COLUMN fencelock",
    "the table is renamed": "ALTER TABLE reports RENAME TO archive",
    "an index is made": "CREATE INDEX users ON reports (remark)",
    "the file is vacuumed": "VACUUM",
    "indexes are made again": "REINDEX",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_g6_blob_writes_stay_refused_when_a_table_changes(file: Path, change: str) -> None:
    open_guard(file).protect("reports")
    with plain(file) as connection:
        connection.execute(change)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    check_refused(file, "archive" if "RENAME TO" in change else "reports")
    assert guard_store(url_of(file)).examine() == []


def test_g6_blob_writes_stay_refused_in_a_copy_from_a_dump(file: Path, tmp_path: Path) -> None:
    open_guard(file).protect("reports")
    with plain(file) as connection, plain(tmp_path / "copy.db") as copy:
        copy.executescript("\n".join(connection.iterdump()))
    check_refused(tmp_path / "copy.db")


# --- nobody notices it ---
QUERIES = (
    "SELECT * FROM reports",
    "SELECT count(*) FROM reports",
    "SELECT 1 FROM reports",
    "SELECT DISTINCT 1 FROM reports",
    "SELECT min(1) FROM reports",
    "SELECT * FROM reports ORDER BY 1",
    "SELECT 1 FROM reports GROUP BY 1",
    "SELECT * FROM reports WHERE 0",
    "SELECT * FROM reports WHERE 1 = 0",
    "SELECT * FROM reports WHERE NULL",
    "SELECT * FROM reports WHERE remark = 'x' AND value IS NOT NULL",
    "SELECT * FROM reports WHERE id = 1 OR 0",
    "SELECT * FROM reports AS a JOIN reports AS b ON a.id = b.value WHERE a.remark > 'x' ORDER BY b.remark",
    "UPDATE reports SET value = 1 WHERE 0",
    "DELETE FROM reports WHERE 1",
)


ROWS = 1_000
"""An analyzed table with fewer rows counts as one of 1000 as soon as one of its indexes is empty."""


@pytest.mark.parametrize("is_analyzed", [False, True])
def test_no_query_plan_changes(file: Path, is_analyzed: bool) -> None:
    def plans() -> Iterator[Any]:
        with plain(file) as connection:
            if is_analyzed:
                connection.execute("ANALYZE")
            for query in QUERIES:
                yield query, [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")]

    with plain(file) as connection:
        connection.execute("CREATE INDEX users ON reports (remark)")
        rows = ((number, f"remark {number % 7}") for number in range(2, ROWS + 1))
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO reports (id, remark, fencelock) VALUES (?, ?, 0)", rows)
        connection.execute("COMMIT")
    before = list(plans())
    open_guard(file).protect("reports")
    assert list(plans()) == before


def test_the_index_stays_empty(file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    write(guard, HandmadeLease(5), then=lambda connection: connection.execute("UPDATE reports SET id = 7"))
    with plain(file) as connection:
        (index,) = indexes(file)
        found = connection.execute(f"SELECT count(*) FROM reports INDEXED BY {index} WHERE 'fencelock' IS 0")
        assert found.fetchall() == [(0,)]
