"""Real test runs of Django: of TestCases and TransactionTestCases, in parallel, and twice on one database."""

import re
from pathlib import Path

import pytest

from tests.integrations.databases import GuardedDatabase
from tests.integrations.djangos import managed

pytestmark = pytest.mark.process
RUNNER = ("--testrunner", "fencelock.integrations.django.testing.FencedTestRunner")
SERVERS = [pytest.param(kind, marks=pytest.mark.campaign) for kind in ("postgres", "mysql")]
"""Each run takes seconds, and the first test runs all of the project's tests on every database."""
UNREACHABLE = "sqlite:////nowhere/locks.db"


@pytest.fixture(autouse=True)
def app_with_migrations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the app whose migrations protect its tables."""
    monkeypatch.setenv("BOOKS_APPS", "ledger")


@pytest.fixture
def file_for_tests(empty: GuardedDatabase, tmp_path: Path) -> GuardedDatabase:
    """Return the database; SQLite's test database is a file, because a guard needs one."""
    if empty.kind == "sqlite":
        empty.settings["TEST"] = {"NAME": str(tmp_path / "test.db")}
    return empty


def run_tests(guarded: GuardedDatabase, *words: str) -> int:
    """Run the project's tests; return how many ran."""
    code, said = managed(guarded, "test", "--noinput", *words, source=UNREACHABLE)
    assert code == 0, said
    found = re.search(r"Ran (\d+) tests", said)
    assert found is not None, said
    return int(found[1])


def test_the_runner_and_the_mixin_run_every_kind_of_test(file_for_tests: GuardedDatabase) -> None:
    assert run_tests(file_for_tests, *RUNNER, "books.django_tests") == 12


@pytest.mark.parametrize("empty", ["sqlite", *SERVERS], indirect=True)
def test_the_mixin_needs_no_runner(file_for_tests: GuardedDatabase) -> None:
    assert run_tests(file_for_tests, "books.django_tests.InTestCase", "books.django_tests.Protected") == 8


@pytest.mark.parametrize("empty", ["sqlite"], indirect=True)
def test_protected_tables_need_no_test_before_them(file_for_tests: GuardedDatabase) -> None:
    assert run_tests(file_for_tests, *RUNNER, "books.django_tests.Protected") == 3


@pytest.mark.parametrize("empty", ["sqlite", *SERVERS[:1]], indirect=True)
def test_parallel_workers_have_sources_and_databases_of_their_own(file_for_tests: GuardedDatabase) -> None:
    run_tests(file_for_tests, *RUNNER, "--parallel", "2", "books.django_tests")


@pytest.mark.parametrize("empty", ["sqlite"], indirect=True)
def test_a_kept_test_database_serves_the_next_run(file_for_tests: GuardedDatabase) -> None:
    for words in ((), ("--parallel", "2")):
        run_tests(file_for_tests, *RUNNER, "--keepdb", *words, "books.django_tests")


@pytest.mark.parametrize("empty", ["sqlite"], indirect=True)
def test_on_a_database_in_memory_blocks_are_rehearsed(empty: GuardedDatabase) -> None:
    classes = ("InTestCase", "WithoutMixin", "Flushed")
    assert run_tests(empty, *RUNNER, *(f"books.django_tests.{name}" for name in classes)) == 9
