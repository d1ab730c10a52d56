"""Tests of a Django project that takes locks: a test runner, and what it is made of.

Promise: no test takes a lock at the source that the settings name; each process has a source of its own in a temporary
folder. Tables are unprotected, so that Django's TestCase and its flush work, and `fenced` is rehearsed there
(`rehearsing.py`). `FencedTestMixin` protects the tables for the length of each test of a TransactionTestCase.
Never: a database touched that the tests do not use.
"""

import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.util import Finalize
from pathlib import Path
from shutil import rmtree
from typing import Any

from django.conf import settings
from django.db import connections
from django.test import TestCase, override_settings
from django.test.runner import DiscoverRunner, ParallelTestSuite

import fencelock
from fencelock._api.guard import inspect_resources
from fencelock.errors import GuardError, SchemaError
from fencelock.integrations.django.protecting import has_requests, protect_tables, tables_of, unprotect_all
from fencelock.integrations.django.rehearsing import REHEARSALS
from fencelock.integrations.django.settings import SETTING, SOURCE, source
from fencelock.integrations.django.urls import check_on_disk, is_in_memory, url_of
from fencelock.protocol.guard_requests import ENFORCE

__all__ = ["FencedTestMixin", "FencedTestRunner", "fenced_tests", "protected_tables"]

_ENDED = "a test has ended"


@contextmanager
def fenced_tests(databases: Collection[str]) -> Iterator[None]:
    """Redirect the source, unprotect every table of these test databases, and rehearse `fenced` in TestCases.

    `databases` are aliases that lead to test databases. Does nothing inside a block of its own.
    """
    with redirected_source():
        unprotect_databases(databases)
        yield


@contextmanager
def redirected_source() -> Iterator[None]:
    """Have `source()` lead to a source of this process's own, and rehearse `fenced`. Does nothing inside itself."""
    if REHEARSALS.is_on:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="fencelock-") as folder, _source_in(folder):
        source().install()
        REHEARSALS.is_on = True
        try:
            yield
        finally:
            REHEARSALS.is_on = False


def _source_in(folder: str) -> override_settings:
    given = getattr(settings, SETTING, {})
    return override_settings(**{SETTING: {**given, SOURCE: f"sqlite:///{Path(folder, 'locks.db')}"}})


def unprotect_databases(databases: Collection[str]) -> None:
    """Unprotect every table of these databases that can have a protection."""
    for alias in databases:
        if has_requests(alias) and not is_in_memory(connections[alias]):
            unprotect_all(alias, "tests begin")


@contextmanager
def protected_tables(*databases: str) -> Iterator[None]:
    """Protect the tables of the models that request it, in these test databases, until the end of the block.

    Needs `fenced_tests`, a guard's database (a file for SQLite), and no open transaction.
    """
    with ExitStack() as leaving:
        for alias in databases:
            if has_requests(alias):
                check_on_disk(alias)
                _bind_marks(alias)
                guards: list[fencelock.Guard] = []
                leaving.callback(_unprotect, alias, guards)
                for guard, _ in protect_tables(alias, ENFORCE, tables_of(alias)):
                    guards.append(guard)
        yield


def _unprotect(alias: str, guards: list[fencelock.Guard]) -> None:
    """Unprotect by the guards, whose connections are open already, or else whatever the test has made of it."""
    try:
        for guard in guards:
            guard.unprotect(reason=_ENDED)
    except GuardError:
        unprotect_all(alias, _ENDED)


_bound: set[tuple[str, str]] = set()
"""The databases whose marks are bound to a source of this process, and that source."""


def _bind_marks(alias: str) -> None:
    """Bind the marks that another source's leases left in a test database, or in its copy, to this process's source."""
    url = url_of(alias)
    source().install()
    ours = source().describe()
    if (url, ours.source_id) in _bound:
        return
    _bound.add((url, ours.source_id))
    with suppress(SchemaError):
        for mark in inspect_resources(url).marks:
            if mark.source_id not in (None, ours.source_id):
                guard = fencelock.guard(url, resource=mark.resource, lock=mark.lock)
                if mark.token > 1:
                    guard.lower(1, reason="a test begins")
                if ours.last_token == 0:
                    ours = source().raise_epoch(reason="a test begins")
                guard.rebind(mark.lock, source=ours, reason="a test begins")


class FencedTestMixin:
    """Before TestCase or TransactionTestCase in a class's bases: `class Test(FencedTestMixin, TransactionTestCase)`.

    It needs no FencedTestRunner. In a TransactionTestCase, the tables are protected from `setUp` until the end of each
    test; Django's fixtures are loaded before, and its flush comes after. In a TestCase, `fenced` is rehearsed.
    """

    databases: Any

    @classmethod
    def setUpClass(cls) -> None:
        """Redirect the source, and unprotect the tables."""
        wanted = connections if cls.databases == "__all__" else cls.databases
        cls.enterClassContext(fenced_tests([alias for alias in connections if alias in wanted]))  # type: ignore[attr-defined]
        super().setUpClass()  # type: ignore[misc]

    def setUp(self) -> None:
        """Protect the tables."""
        super().setUp()  # type: ignore[misc]
        if not isinstance(self, TestCase):
            self.enterContext(protected_tables(*sorted(self.databases)))  # type: ignore[attr-defined]


_created: set[str] = set()
"""The databases that FencedTestRunner has created, and copied for each worker with the protection of migrations."""


def _init_worker(*args: Any) -> None:
    """Begin a worker of `--parallel`, with a source of its own, and its copies of the databases unprotected."""
    *_, used = args
    ParallelTestSuite.init_worker(*args)
    folder = tempfile.mkdtemp(prefix="fencelock-")
    Finalize(None, rmtree, (folder,), {"ignore_errors": True}, exitpriority=0)
    _source_in(folder).enable()
    source().install()
    REHEARSALS.is_on = True
    unprotect_databases(_created if used is None else used)


class FencedParallelTestSuite(ParallelTestSuite):
    """The tests of `--parallel`."""

    init_worker = _init_worker


class FencedTestRunner(DiscoverRunner):
    """`TEST_RUNNER = "fencelock.integrations.django.testing.FencedTestRunner"`: `fenced_tests` around all tests."""

    parallel_test_suite = FencedParallelTestSuite

    def setup_test_environment(self, **options: Any) -> None:
        """Redirect the source before a migration of a test database could take a lock."""
        super().setup_test_environment(**options)
        self._fenced = ExitStack()
        self._fenced.enter_context(redirected_source())

    def setup_databases(self, **options: Any) -> Any:
        """Unprotect what the migrations have protected."""
        created = super().setup_databases(**options)
        _created.update(connection.alias for connection, _, _ in created)
        unprotect_databases(_created)
        return created

    def teardown_test_environment(self, **options: Any) -> None:
        """Go back to the configured source."""
        self._fenced.close()
        super().teardown_test_environment(**options)
