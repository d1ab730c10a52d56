"""A plugin for pytest: locks and a guarded database of each test's own, and work that a whole run does once.

A `conftest.py` loads it: `pytest_plugins = ["fencelock.testing.pytest"]`.

Promise: no test meets a lock, a token or a mark of another test, or of the machine's own source: $FENCELOCK_SOURCE
names a source of the test's own in every test. What a fixture made is gone afterwards. Never: loaded without being
asked for; uses a database that it has not made.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

import fencelock
from fencelock import ConfigError, Guard, Lease, LeaseError, Source
from fencelock.testing.once_per_run import OncePerRun

_SERVER_OPTION = "fencelock_server"
_SERVER_HELP = "postgresql:// URL of a server where fencelock_url may make databases; default: SQLite files"
_TTL_S = 30.0


class HeldLocks:
    """Holds locks for a test, as another process would; all are released when the test ends."""

    def __init__(self, source: Source, ends: ExitStack) -> None:
        self._source = source
        self._ends = ends

    def hold(self, name: str, *guards: Guard, ttl: float = _TTL_S) -> Lease:
        """Acquire the lock at once and return its lease; with guards, seal their resources as a holder at work has.

        AcquireTimeoutError if somebody else holds it. `fencelock.testing.lose` and `expire` end such a lease.
        """
        self._ends.enter_context(suppress(LeaseError))  # The test may have ended the lease.
        lease = self._ends.enter_context(self._source.lock(name, ttl=ttl, timeout=0))
        for guard in guards:
            guard.seal(lease)
        return lease

    def overtake(self, name: str, *guards: Guard, ttl: float = _TTL_S) -> Lease:
        """Break the lock and hold it: the present holder goes on, as if it had been frozen and had just woken up.

        With guards, what it writes is refused from now on: StaleTokenError.
        """
        self._source.break_lock(name, reason="a test overtakes the holder")
        return self.hold(name, *guards, ttl=ttl)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--fencelock-server` and the ini option `fencelock_server`."""
    parser.addini(_SERVER_OPTION, _SERVER_HELP, default="")
    parser.getgroup("fencelock").addoption("--fencelock-server", dest=_SERVER_OPTION, metavar="URL", help=_SERVER_HELP)


@pytest.fixture(autouse=True)
def _own_default_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the test away from the machine's own source."""
    monkeypatch.setenv("FENCELOCK_SOURCE", f"memory://test-{secrets.token_hex(8)}")


@pytest.fixture
def fencelock_prepare() -> Callable[[str], None]:
    """Return what fills a new database, given its URL: nothing. Override it to make tables and protect them."""
    return _leave_empty


def _leave_empty(url: str) -> None:
    """Make no table."""


@pytest.fixture
def fencelock_url(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    fencelock_prepare: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """Yield the URL of a new database for sources and guards alike, filled by `fencelock_prepare`.

    A SQLite file; or with `fencelock_server` a database on that server, which is dropped in the end. It is the default
    source of the test too.
    """
    server = request.config.getoption(_SERVER_OPTION) or request.config.getini(_SERVER_OPTION)
    with _postgres_database(server) if server else _sqlite_file(tmp_path) as url:
        monkeypatch.setenv("FENCELOCK_SOURCE", url)
        with fencelock.connect(url) as source:
            source.install()
        fencelock_prepare(url)
        yield url


@contextmanager
def _sqlite_file(folder: Path) -> Iterator[str]:
    yield f"sqlite:///{folder / 'fencelock.db'}"


@contextmanager
def _postgres_database(server: str) -> Iterator[str]:
    scheme, _, _ = server.partition("://")
    if scheme not in {"postgresql", "postgres"}:
        _fail("write the URL of a PostgreSQL server, postgresql://user:password@host:port/database")
    try:
        import psycopg
    except ImportError as error:
        _fail(f"psycopg cannot be loaded ({error}): install fencelock's extra postgres")

    from fencelock.stores.postgres.connection import errors
    from fencelock.stores.postgres.connection import url as urls

    try:
        info = urls.parse_url(server)
    except ConfigError as error:
        _fail(error)
    try:
        connected = psycopg.connect(**info.parameters, autocommit=True)  # type: ignore[arg-type]
    except psycopg.Error as error:
        _fail(errors.map_connect_error(error, info))
    name = f"fencelock_test_{os.getpid()}_{secrets.token_hex(4)}"
    with connected as admin:
        try:
            admin.execute(f'CREATE DATABASE "{name}"')
        except psycopg.errors.InsufficientPrivilege as error:
            _fail(f"{info.url} does not permit it ({error}): name a role that may, by ALTER ROLE … CREATEDB")
        try:
            yield urls.url_of(info.parameters | {"dbname": name})
        finally:
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _fail(reason: object) -> NoReturn:
    """Fail the test with one line about the server that was named, and no traceback."""
    pytest.fail(f"--fencelock-server: {reason}", pytrace=False)


@pytest.fixture
def fencelock_source(fencelock_url: str) -> Iterator[Source]:
    """Yield a source of tokens of the test's own, in the database of `fencelock_url`."""
    with fencelock.connect(fencelock_url) as source:
        yield source


@pytest.fixture
def fencelock_locks(fencelock_source: Source) -> Iterator[HeldLocks]:
    """Yield what holds locks at `fencelock_source` as another process would: `hold(name)`, `overtake(name)`."""
    with ExitStack() as ends:
        yield HeldLocks(fencelock_source, ends)


@pytest.fixture(scope="session")
def fencelock_once(tmp_path_factory: pytest.TempPathFactory) -> OncePerRun:
    """Return what sets a thing up once for all workers of pytest-xdist, as a context manager of its value.

    `with fencelock_once("database", setup, teardown) as value`, in a fixture of the session.
    """
    folder = tmp_path_factory.getbasetemp()
    # Each worker of pytest-xdist has a folder of its own in the run's folder.
    return OncePerRun(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
