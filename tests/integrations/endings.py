"""The ways in which a block can lose its transaction and still return, and what has to come of each, in plain SQL."""

from collections.abc import Callable
from typing import NamedTuple

from fencelock import GuardError
from tests.integrations.databases import GuardedDatabase

WRITE = "UPDATE reports SET value = 'new' WHERE id = 1"
TAKEN = "INSERT INTO reports VALUES (1, 'taken')"
SIDE = "UPDATE plain SET value = 'new' WHERE id = 1"
READ = "SELECT value FROM plain"
ENDED = "ended inside its block"
FAILED = "its error was caught"


class Outcome(NamedTuple):
    """How a block ended, and what it wrote."""

    error: str | None
    value: str


WRITTEN = Outcome(None, "new")
UNDONE = Outcome(ENDED, "first")
SAVEPOINT = (WRITE, "SAVEPOINT one", TAKEN, "ROLLBACK TO SAVEPOINT one", SIDE)
EVERYWHERE = {
    (WRITE, SIDE): WRITTEN,
    SAVEPOINT: WRITTEN,
    (WRITE, "ROLLBACK"): UNDONE,
    (WRITE, "ROLLBACK", READ): UNDONE,
    (WRITE, "ROLLBACK", SIDE): UNDONE,
    (WRITE, "ROLLBACK", "BEGIN", READ): UNDONE,
}
BLOCKS: dict[str, dict[tuple[str, ...], Outcome]] = {
    "sqlite": EVERYWHERE
    | {
        (WRITE, TAKEN): WRITTEN,
        (WRITE, "ROLLBACK", WRITE): UNDONE,
        (WRITE, "COMMIT"): WRITTEN,  # The file refuses to commit a presented lease.
        (WRITE, "COMMIT", SIDE): WRITTEN,
        (WRITE, TAKEN.replace("INSERT", "INSERT OR ROLLBACK"), SIDE): UNDONE,
    },
    "postgres": EVERYWHERE
    | {
        (WRITE, TAKEN): Outcome(FAILED, "first"),
        (WRITE, TAKEN, READ): Outcome(FAILED, "first"),
        (WRITE, "SAVEPOINT one", TAKEN): Outcome(FAILED, "first"),
        (WRITE, TAKEN, "COMMIT", READ): UNDONE,
        (WRITE, "COMMIT"): Outcome(ENDED, "new"),
        (WRITE, "COMMIT", SIDE): Outcome(ENDED, "new"),
        (WRITE, "ROLLBACK AND CHAIN", SIDE): UNDONE,
        (WRITE, "COMMIT AND CHAIN", SIDE): Outcome(ENDED, "new"),
    },
    "mysql": EVERYWHERE
    | {
        (WRITE, TAKEN): WRITTEN,
        (WRITE, "ROLLBACK", WRITE): UNDONE,
        (WRITE, "COMMIT"): Outcome(ENDED, "new"),
        (WRITE, "COMMIT", SIDE): Outcome(ENDED, "new"),
        (WRITE, "ROLLBACK AND CHAIN", SIDE): UNDONE,
        (WRITE, "COMMIT AND CHAIN", SIDE): Outcome(ENDED, "new"),
        (WRITE, "CREATE OR REPLACE TABLE made (id INTEGER)", READ): Outcome(ENDED, "new"),
        (WRITE, "ROLLBACK", "START TRANSACTION READ WRITE", SIDE): UNDONE,
    },
}
"""The statements of a block that swallows every error of them, and its outcome, by the database."""


def outcome(guarded: GuardedDatabase, block: Callable[..., object], *statements: str) -> Outcome:
    """Return the outcome of a block, and reset what it wrote by another block on the same connection."""
    told: str | None = None
    try:
        block(*statements)
    except GuardError as error:
        told = next((known for known in (ENDED, FAILED) if known in str(error)), str(error))
    found = Outcome(told, guarded.value())
    if found.value != "first":
        block(WRITE.replace("new", "first"))
        assert guarded.value() == "first"
    return found


def check_endings(guarded: GuardedDatabase, block: Callable[..., object]) -> None:
    """Assert the outcome of each block; `block` runs statements in one, and swallows the errors of each."""
    expected = BLOCKS[guarded.kind]
    assert {statements: outcome(guarded, block, *statements) for statements in expected} == expected
