"""The commands at a guard whose marks only `protect` creates: a folder."""

import re
import shlex
from pathlib import Path

import pytest

import fencelock
from fencelock.cli.errors import UNAVAILABLE
from tests.cli.program import Program, program
from tests.support.guards import HandmadeLease

__all__ = ["program"]

LOCK = "nightly"
OPTIONS = ("--resource", "reports", "--lock", LOCK)


@pytest.fixture
def url(program: Program) -> str:
    (program.folder / "exports").mkdir()
    return f"file://{program.folder}/exports"


def mark_file(program: Program, resource: str = "reports") -> Path:
    return program.folder / "exports" / ".fencelock" / "marks" / resource


def take_and_write(program: Program, url: str, resource: str = "reports") -> int:
    """Write once under the lock; return the token."""
    guard = fencelock.guard(url, resource=resource, lock=LOCK)
    with program.source() as source, source.lock(LOCK) as lease, guard.transaction(lease) as txn:
        txn.write("total", "17")
        return lease.token


def test_protect_without_a_table_creates_the_mark(program: Program, url: str) -> None:
    for _ in range(2):
        done = program.inside("protect", url, *OPTIONS)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "resource reports belongs to lock nightly",
            "its mark is 0: it takes higher tokens",
        ]
    token = take_and_write(program, url)
    (shown,) = program.json("protect", url, *OPTIONS)
    assert (shown["token"], shown["set_by"]) == (str(token), "lease")


def test_no_seal_is_said_to_create_a_mark(program: Program, url: str) -> None:
    assert program.inside("marks", url).stdout == f"{url} holds no marks: `fencelock protect` creates one\n"


def test_the_error_of_a_missing_mark_is_a_command_that_creates_it(program: Program, url: str) -> None:
    guard = fencelock.guard(url, resource="of 'our' $HOME", lock="a lock")
    with pytest.raises(fencelock.GuardError, match="has no mark, so it refuses every token") as caught:
        guard.seal(HandmadeLease(5, lock="a lock"))
    found = re.search(r"If the resource is new, run `fencelock (protect .*?)`\. If it had", str(caught.value))
    assert found is not None
    done = program.inside(*shlex.split(found[1]))
    assert done.returncode == 0, done.stderr
    guard.seal(HandmadeLease(5, lock="a lock"))


def test_a_lost_mark_is_created_again_with_its_source_only(program: Program, url: str) -> None:
    program.inside("protect", url, *OPTIONS)
    token = take_and_write(program, url)
    mark_file(program).unlink()
    refused = program.inside("protect", url, *OPTIONS)
    assert refused.returncode == 1
    assert "was protected before, and its mark is gone" in refused.stderr
    (shown,) = program.json("protect", url, *OPTIONS, "--source", program.url)
    assert (shown["token"], shown["set_by"]) == (str(token), "operator")
    assert take_and_write(program, url) > token


def test_marks_are_raised_where_no_floor_is_kept(program: Program, url: str) -> None:
    """There a resource that a backup lacks has no mark, so it needs no floor to refuse old tokens."""
    program.inside("protect", url, *OPTIONS)
    first, token = take_and_write(program, url), take_and_write(program, url)
    program.json("marks", url, "--resource", "reports", "--lower", str(first), "--reason", "as a restore does")
    shown = program.json("marks", url, "--raise-to", program.url, "--reason", "a restore")
    assert [(one["token"], one["set_by"]) for one in shown["resources"]] == [(str(token), "operator")]
    assert shown["floors"] == []


def test_marks_of_lone_resources_are_not_purged(program: Program, url: str) -> None:
    program.inside("protect", url, *OPTIONS)
    refused = program.inside("purge", "--marks", "--guard", url, "--older-than", "1")
    assert refused.returncode == UNAVAILABLE, refused.stderr
    assert "purges no marks and keeps no floors" in refused.stderr


def test_a_table_is_refused_with_what_to_do_instead(program: Program, url: str) -> None:
    refused = program.inside("protect", url, *OPTIONS, "--table", "reports")
    assert refused.returncode == UNAVAILABLE
    assert "protect() without a table binds resource 'reports'" in refused.stderr


def test_a_database_needs_a_table(program: Program) -> None:
    refused = program.inside("protect", f"sqlite:///{program.folder}/app.db", *OPTIONS)
    assert "name a table to protect: --table T" in refused.stderr
