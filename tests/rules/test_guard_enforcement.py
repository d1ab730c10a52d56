"""G6 and G8 on a SQLite file: the file itself refuses a write that presents no token in its transaction."""

import sqlite3
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import Guard, GuardError, SchemaError
from fencelock.model import MAX_TOKEN
from tests.support.guards import (
    LOCK,
    RESOURCE,
    HandmadeLease,
    Opener,
    ask,
    claim_of,
    make_file,
    plain,
    sequencer,
    url_of,
    value_in,
    write,
)

pytestmark = pytest.mark.reduced

REFUSED = "takes writes only with its newest sealed token"


@pytest.fixture
def guard(file: Path) -> Guard:
    """A guard whose file has tables of every kind that can be protected."""
    with plain(file) as connection:
        connection.executescript("""
            CREATE TABLE parent (id INTEGER PRIMARY KEY);
            CREATE TABLE child (
                id INTEGER PRIMARY KEY, parent REFERENCES parent (id) ON DELETE CASCADE ON UPDATE SET NULL
            );
            CREATE TABLE bare (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
            CREATE TABLE computed (id INTEGER PRIMARY KEY, value, twice AS (value * 2) STORED);
            CREATE TABLE strict_one (id INTEGER PRIMARY KEY, value TEXT) STRICT;
            CREATE TABLE open_one (id INTEGER PRIMARY KEY, value);
            CREATE TRIGGER copy AFTER UPDATE ON open_one BEGIN UPDATE reports SET value = NEW.value; END;
            CREATE VIEW shown AS SELECT id, value FROM reports;
            CREATE TRIGGER through INSTEAD OF UPDATE ON shown BEGIN UPDATE reports SET value = NEW.value; END;
            INSERT INTO parent VALUES (1);
            INSERT INTO child VALUES (1, 1);
            INSERT INTO bare VALUES ('a', 0);
            INSERT INTO computed (id, value) VALUES (1, 1);
            INSERT INTO strict_one VALUES (1, 'a');
            INSERT INTO open_one VALUES (1, 0);
            CREATE UNIQUE INDEX one_value ON reports (value);
        """)
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    guard.protect("reports", "child", "bare", "computed", "strict_one")
    return guard


WRITES = {
    "insert": "INSERT INTO reports VALUES (2, 1)",
    "insert or replace": "INSERT OR REPLACE INTO reports VALUES (1, 1)",
    "replace by another unique index": "REPLACE INTO reports VALUES (2, 0)",
    "insert or ignore": "INSERT OR IGNORE INTO reports VALUES (2, 1)",
    "insert or fail": "INSERT OR FAIL INTO reports VALUES (2, 1)",
    "insert or rollback": "INSERT OR ROLLBACK INTO reports VALUES (2, 1)",
    "upsert": "INSERT INTO reports VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET value = excluded.value",
    "upsert that does nothing": "INSERT INTO reports VALUES (2, 1) ON CONFLICT DO NOTHING",
    "insert from select": "INSERT INTO reports SELECT id + 10, value + 10 FROM reports",
    "update": "UPDATE reports SET value = 1",
    "update or ignore": "UPDATE OR IGNORE reports SET value = 1 WHERE id = 1",
    "update that changes nothing": "UPDATE reports SET value = value",
    "update from": "UPDATE reports SET value = open_one.id FROM open_one WHERE open_one.id = reports.id",
    "delete": "DELETE FROM reports WHERE id = 1",
    "delete without where": "DELETE FROM reports",
    "with a common table expression": "WITH one AS (SELECT 1 AS id) DELETE FROM reports WHERE id IN one",
    "returning": "UPDATE reports SET value = 1 RETURNING id",
    "cascade from an unprotected parent": "DELETE FROM parent",
    "set null from an unprotected parent": "UPDATE parent SET id = 2",
    "a table without rowid": "UPDATE bare SET value = 1",
    "a table with a generated column": "UPDATE computed SET value = 2",
    "a strict table": "DELETE FROM strict_one",
    "a trigger of the user's": "UPDATE open_one SET value = 1",
    "through a view": "UPDATE shown SET value = 1",
}


def everything(file: Path) -> list[Any]:
    tables = ("reports", "parent", "child", "bare", "computed", "strict_one", "open_one")
    return [ask(file, f"SELECT * FROM {table}") for table in tables]


@pytest.mark.parametrize("statement", WRITES.values(), ids=WRITES.keys())
def test_g6_a_write_without_a_token_is_refused(guard: Guard, file: Path, statement: str) -> None:
    before = everything(file)
    with plain(file) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        with pytest.raises(sqlite3.IntegrityError, match=REFUSED):
            connection.execute(statement)
    assert everything(file) == before


@pytest.mark.parametrize("statement", WRITES.values(), ids=WRITES.keys())
def test_g6_the_same_write_with_the_token_is_made(guard: Guard, statement: str) -> None:
    with guard.transaction(HandmadeLease(5)) as connection:
        connection.execute(statement).fetchall()
    assert guard.mark().token == 5


@pytest.mark.parametrize("settings", [(), ("PRAGMA recursive_triggers = ON",), ("PRAGMA trusted_schema = OFF",)])
def test_g6_settings_of_the_client_make_no_difference(guard: Guard, file: Path, settings: tuple[str, ...]) -> None:
    with plain(file) as connection:
        for setting in settings:
            connection.execute(setting)
        with pytest.raises(sqlite3.IntegrityError, match=REFUSED):
            connection.execute("INSERT OR REPLACE INTO reports VALUES (1, 1)")


def test_g6_a_write_from_a_file_that_attached_this_one_is_refused(guard: Guard, file: Path, tmp_path: Path) -> None:
    with plain(tmp_path / "other.db") as connection:
        connection.execute("ATTACH ? AS app", (str(file),))
        with pytest.raises(sqlite3.IntegrityError, match=REFUSED):
            connection.execute("UPDATE app.reports SET value = 1")


def test_g6_reading_needs_no_token(guard: Guard, file: Path) -> None:
    assert value_in(file) == 0


def test_g6_a_transaction_writes_another_resource_only_with_its_token(guard: Guard, file: Path) -> None:
    with plain(file) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, value)")
        connection.execute("INSERT INTO orders VALUES (1, 0)")
    fencelock.guard(url_of(file), resource="orders", lock=LOCK).protect("orders")
    with pytest.raises(GuardError, match="table orders belongs to resource orders"):
        write(guard, HandmadeLease(5), table="orders")
    both = fencelock.guard(url_of(file), resources=[RESOURCE, "orders"], lock=LOCK)
    write(both, HandmadeLease(6), table="orders")
    assert value_in(file, "orders") == 1


# --- the protocol of other languages -------------------------------------------------------------------------------
PRESENT = "INSERT INTO fencelock_seal (resource, token, digest) VALUES ('reports', ?, ?)"
DIGEST = sequencer(5).digest


@pytest.fixture
def client(guard: Guard, file: Path) -> Any:
    """A client in any language, that speaks SQL and has a sequencer."""
    guard.seal(HandmadeLease(5))
    with ExitStack() as stack:
        connection = stack.enter_context(plain(file))
        connection.execute("PRAGMA foreign_keys = ON")
        yield connection


def test_g6_any_client_can_present_its_token(client: sqlite3.Connection, file: Path) -> None:
    client.execute("BEGIN IMMEDIATE")
    client.execute(PRESENT, (5, DIGEST))
    client.execute("UPDATE reports SET value = 'from elsewhere'")
    client.execute("DELETE FROM fencelock_seal")
    client.execute("COMMIT")
    assert value_in(file) == "from elsewhere"


@pytest.mark.parametrize(
    ("token", "digest"),
    [
        (4, sequencer(4).digest),
        (6, sequencer(6).digest),
        (5, sequencer(4).digest),
        (4, DIGEST),
        (5, sequencer(5).proof),
        (5, claim_of(5)),
    ],
)
def test_g6_only_the_mark_can_be_presented(client: sqlite3.Connection, token: int, digest: str) -> None:
    client.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.IntegrityError, match="this token is not the mark of its resource"):
        client.execute(PRESENT, (token, digest))


def test_g6_a_closed_mark_cannot_be_presented(client: sqlite3.Connection, guard: Guard) -> None:
    guard.close(HandmadeLease(5))
    client.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.IntegrityError, match="its holder closed it"):
        client.execute(PRESENT, (5, DIGEST))


def test_g10_a_mark_that_is_closed_meanwhile_answers_the_rest_of_the_transaction(client: sqlite3.Connection) -> None:
    client.execute("BEGIN IMMEDIATE")
    client.execute(PRESENT, (5, DIGEST))
    client.execute("UPDATE reports SET value = 1")
    client.execute("UPDATE fencelock_mark SET is_closed = 1")
    with pytest.raises(sqlite3.IntegrityError, match=REFUSED):
        client.execute("UPDATE reports SET value = 2")


def test_g6_a_seal_cannot_be_committed(client: sqlite3.Connection, file: Path) -> None:
    client.execute("BEGIN IMMEDIATE")
    client.execute(PRESENT, (5, DIGEST))
    client.execute("UPDATE reports SET value = 'kept open'")
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        client.execute("COMMIT")
    client.execute("ROLLBACK")
    assert value_in(file) == 0


@pytest.mark.parametrize("change", ["never = 0", "never = NULL", "never = 2"])
def test_g6_a_seal_cannot_be_made_committable(client: sqlite3.Connection, change: str) -> None:
    client.execute("BEGIN IMMEDIATE")
    client.execute(PRESENT, (5, DIGEST))
    with pytest.raises(sqlite3.IntegrityError):
        client.execute(f"UPDATE fencelock_seal SET {change}")
    with pytest.raises(sqlite3.IntegrityError):
        client.execute("INSERT INTO fencelock_never VALUES (1)")


def test_g6_presenting_needs_foreign_keys(client: sqlite3.Connection) -> None:
    client.execute("PRAGMA foreign_keys = OFF")
    client.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.IntegrityError, match="PRAGMA foreign_keys = ON before BEGIN"):
        client.execute(PRESENT, (5, DIGEST))


def test_g6_a_client_that_pretends_to_be_the_guard_gains_nothing(client: sqlite3.Connection) -> None:
    client.execute("BEGIN IMMEDIATE")
    client.execute(
        "INSERT INTO fencelock_seal (resource, token, digest, client) VALUES ('reports', 4, 'x', 'fencelock')"
    )
    with pytest.raises(sqlite3.IntegrityError, match=REFUSED):
        client.execute("UPDATE reports SET value = 1")


def test_g6_a_seal_that_was_committed_without_foreign_keys_ends_with_the_next_block(
    client: sqlite3.Connection, guard: Guard, file: Path
) -> None:
    client.execute("PRAGMA foreign_keys = OFF")
    committed = "INSERT INTO fencelock_seal (resource, token, digest, client) VALUES ('reports', 5, ?, 'fencelock')"
    client.execute(committed, (DIGEST,))
    found = fencelock.stores.registry.guard_store(url_of(file)).examine()
    assert [finding.code for finding in found] == ["committed-seal"]
    write(guard, HandmadeLease(6))
    assert ask(file, "SELECT * FROM fencelock_seal") == []
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY|" + REFUSED):
        client.execute("UPDATE reports SET value = 1")


# --- marks keep themselves (G8) ------------------------------------------------------------------------------------
FORBIDDEN = {
    "lowering": "UPDATE fencelock_mark SET token = 4",
    "forgetting": "UPDATE fencelock_mark SET token = NULL",
    "deleting": "DELETE FROM fencelock_mark",
    "replacing": "REPLACE INTO fencelock_mark (resource, lock, token) VALUES ('reports', 'nightly-report', 2)",
    "inserting again": "INSERT INTO fencelock_mark (resource, lock, token) VALUES ('reports', 'nightly-report', 9)",
    "taking over": "UPDATE fencelock_mark SET digest = 'another'",
    "another history": "UPDATE fencelock_mark SET history_id = 'another'",
    "another source": "UPDATE fencelock_mark SET source_id = 'another', token = 9",
    "another lock": "UPDATE fencelock_mark SET lock = 'another', token = 9",
    "another name": "UPDATE fencelock_mark SET resource = 'another'",
    "reopening": "UPDATE fencelock_mark SET is_closed = 0",
    "token 0": "UPDATE fencelock_mark SET token = 0",
    "token 2**63": "UPDATE fencelock_mark SET token = 9223372036854775808",
    "no number": "UPDATE fencelock_mark SET token = 'x'",
    "an audit entry that is not there": "UPDATE fencelock_mark SET token = 4, audit_id = 77",
    "an audit entry of another change": "UPDATE fencelock_mark SET token = 3, audit_id = 1",
    "an audit entry that was used": "UPDATE fencelock_mark SET token = 4, audit_id = NULL",
    "changing the audit": "UPDATE fencelock_audit SET reason = 'another'",
    "deleting the audit": "DELETE FROM fencelock_audit",
    "replacing the audit": (
        "INSERT OR REPLACE INTO fencelock_audit (id, who, action, resource, from_token, to_token, reason)"
        " VALUES (1, 'w', 'lower', 'reports', 9, 1, 'r')"
    ),
    "an audit entry without a reason": (
        "INSERT INTO fencelock_audit (who, action, resource, from_token, to_token, reason)"
        " VALUES ('w', 'lower', 'reports', 9, 1, ' ')"
    ),
}


@pytest.mark.parametrize("statement", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_g8_the_file_keeps_its_marks_and_audit(guard: Guard, file: Path, statement: str) -> None:
    guard.raise_to(9, reason="first")
    guard.lower(5, reason="second")
    guard.close(HandmadeLease(7))
    before = ask(file, "SELECT * FROM fencelock_mark"), ask(file, "SELECT * FROM fencelock_audit")
    with plain(file) as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)
    assert (ask(file, "SELECT * FROM fencelock_mark"), ask(file, "SELECT * FROM fencelock_audit")) == before


def test_g8_a_new_audit_entry_entitles_to_just_its_change(guard: Guard, file: Path) -> None:
    guard.seal(HandmadeLease(9))
    entry = (
        "INSERT INTO fencelock_audit (who, action, resource, from_token, to_token, reason) VALUES (?, ?, ?, ?, ?, ?)"
    )
    with plain(file) as connection:
        number = connection.execute(entry, ("somebody", "lower", "reports", 9, 4, "by hand")).lastrowid
        for statement in ("token = 3, audit_id = ?", "token = 4, lock = 'another', audit_id = ?"):
            with pytest.raises(sqlite3.IntegrityError, match="a mark only goes up"):
                connection.execute(f"UPDATE fencelock_mark SET {statement}", (number,))
        connection.execute("UPDATE fencelock_mark SET token = 4, digest = NULL, audit_id = ?", (number,))
    assert guard.mark().token == 4


HUGE = 2**61
"""A token that no source will have issued for some decades."""
TO_HUGE = {
    "the next token": f"UPDATE fencelock_mark SET token = {HUGE}",
    "the first token": f"INSERT INTO fencelock_mark (resource, lock, token) VALUES ('orders', 'o', {HUGE})",
    "a timestamp in nanoseconds": "UPDATE fencelock_mark SET token = strftime('%s', 'now') * 1000000000",
    "a random number": "UPDATE fencelock_mark SET token = 7417239873491230155",
    "the highest one": "UPDATE fencelock_mark SET token = 9223372036854775807",
    "an entry that does not say so": f"UPDATE fencelock_mark SET token = {HUGE}, audit_id = 1",
}


@pytest.mark.parametrize("statement", TO_HUGE.values(), ids=TO_HUGE.keys())
def test_g12_the_file_refuses_an_implausible_token_from_any_client(guard: Guard, file: Path, statement: str) -> None:
    guard.seal(HandmadeLease(5))
    with plain(file) as connection:
        connection.execute(*entry_to(HUGE, is_implausible=False))
        with pytest.raises(sqlite3.IntegrityError, match="this token is implausible"):
            connection.execute(statement)
    assert guard.mark().token == 5


def entry_to(token: int, *, is_implausible: bool) -> tuple[str, tuple[int, bool]]:
    columns = "who, action, resource, from_token, reason, to_token, is_implausible"
    return f"INSERT INTO fencelock_audit ({columns}) VALUES ('w', 'raise-to', 'reports', 5, 'r', ?, ?)", (
        token,
        is_implausible,
    )


def test_g12_an_entry_that_says_so_lets_an_implausible_token_in(guard: Guard, file: Path) -> None:
    guard.seal(HandmadeLease(5))
    with plain(file) as connection:
        number = connection.execute(*entry_to(HUGE, is_implausible=True)).lastrowid
        connection.execute("UPDATE fencelock_mark SET token = ?, digest = NULL, audit_id = ?", (HUGE, number))
        connection.execute("UPDATE fencelock_mark SET token = token + 1125899906842624")
        with pytest.raises(sqlite3.IntegrityError, match="this token is implausible"):
            connection.execute("UPDATE fencelock_mark SET token = token + 1125899906842625")
    assert guard.mark().token == HUGE + 2**50


def test_g12_the_last_tokens_are_not_refused_by_an_overflow(guard: Guard, file: Path) -> None:
    guard.raise_to(MAX_TOKEN - 1, reason="a wrong clock", implausible=True)
    write(guard, HandmadeLease(MAX_TOKEN), "the last one")
    assert value_in(file) == "the last one"


def test_g8_an_audit_entry_entitles_once(guard: Guard, file: Path) -> None:
    guard.raise_to(9, reason="first")
    guard.lower(5, reason="second")
    guard.raise_to(9, reason="third")
    with plain(file) as connection:
        old = "SELECT id FROM fencelock_audit WHERE action = 'lower'"
        with pytest.raises(sqlite3.IntegrityError, match="a mark only goes up"):
            connection.execute(f"UPDATE fencelock_mark SET token = 5, audit_id = ({old})")
    assert guard.mark().token == 9


@pytest.mark.parametrize(("number", "made"), [(2, "older"), (4, "newer")])
def test_another_schema_is_refused_with_the_remedy(open_guard: Opener, tmp_path: Path, number: int, made: str) -> None:
    file = make_file(tmp_path / "app.db")
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.protect("reports")
    with plain(file) as connection:
        connection.execute("UPDATE fencelock_guard SET schema = ?", (number,))
    for attempt in (
        guard.mark,
        lambda: guard.seal(lease),
        lambda: write(guard, lease),
        lambda: guard.protect("reports"),
    ):
        with pytest.raises(SchemaError, match=f"holds fencelock's guard with schema {number}, .* schema 3: an? {made}"):
            attempt()
    assert value_in(file) == 0
