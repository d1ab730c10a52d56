"""No command prints a password from a URL, neither of the login nor of an option."""

import pytest

from tests.cli.program import Program, program
from tests.sql.postgres.fix_postgres import Database, only

__all__ = ["program"]

PASSWORD = "s3cret-of-the-test"
LOCK = "a"


@pytest.fixture(params=["before the host", "as an option"])
def guard_url(database: Database, request: pytest.FixtureRequest) -> str:
    """A guard's URL with a password that the server does not need."""
    url = database.url()
    return f"{url}?password={PASSWORD}" if request.param == "as an option" else url.replace("@", f":{PASSWORD}@", 1)


def said(program: Program, code: int, *words: str) -> str:
    """Run a command that exits with this code; check that its output lacks the password, and return the output."""
    done = program(*words) if words[0] == "run" else program.inside(*words)
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    assert PASSWORD not in text
    return text


@only("15")
def test_missing_protection_is_reported_without_the_password(
    program: Program, database: Database, guard_url: str
) -> None:
    database.rows("create table reports (id int)")
    assert "holds no guard of fencelock's" in said(program, 69, "marks", guard_url)
    said(program, 0, "protect", guard_url, "--resource", "r", "--lock", "another", "--table", "reports")
    said(program, 0, "marks", guard_url)
    assert "knows no resource 'nix'" in said(program, 1, "marks", guard_url, "--resource", "nix")
    with program.source() as source, source.lock(LOCK):
        breaking = ("break", LOCK, "--reason", "a test", "--guard", guard_url)
        assert "no resource there is bound to lock" in said(program, 1, *breaking)
        assert source.info(LOCK).is_held


@only("15")
def test_disagreement_is_reported_without_the_password(program: Program, database: Database, guard_url: str) -> None:
    database.rows("create table reports (id int)")
    said(program, 0, "protect", guard_url, "--resource", "r", "--lock", LOCK, "--table", "reports")
    said(program, 0, "run", LOCK, "--guard", guard_url, "--", "true")
    said(program, 0, "install", "--source", f"sqlite:///{program.folder}/another.db")
    assert "other-source" in said(
        program, 1, "doctor", "--source", f"sqlite:///{program.folder}/another.db", "--guard", guard_url
    )


def test_a_guard_that_cannot_be_reached_is_named_without_the_password(program: Program) -> None:
    url = f"postgresql://somebody:{PASSWORD}@127.0.0.1:1/nowhere"
    assert "the guard postgresql://" in said(program, 69, "run", LOCK, "--guard", url, "--", "true")
    assert "guard-refused" in said(program, 1, "doctor", "--guard", url)
