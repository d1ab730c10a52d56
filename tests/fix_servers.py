"""Private servers of a test run, in one folder: its worker processes share what they do not break. A pytest plugin.

A shared server is started once for all workers. A test that counts or changes what belongs to a whole server, such as
its users or global settings, is marked `server_wide`: it shares servers with the tests of its own worker alone. Without
a server's program a test skips, or fails where servers are required.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencelock_lab.servers.etcd import EtcdFleet
from fencelock_lab.servers.fleet import AnyFleet, Fleet, ServerFolder
from fencelock_lab.servers.mariadb import MariaDBFleet
from fencelock_lab.servers.ministack import CREDENTIALS, MinistackFleet
from fencelock_lab.servers.nats import NatsFleet
from fencelock_lab.servers.postgres import PostgresFleet
from fencelock_lab.servers.programs import MissingProgramError
from fencelock_lab.servers.rabbitmq import RabbitFleet
from fencelock_lab.servers.rclone import RcloneFleet
from fencelock_lab.servers.redis import RedisFleet
from fencelock_lab.servers.seaweedfs import SeaweedFleet
from fencelock_lab.servers.zookeeper import ZooKeeperFleet
from tests.support.programs import refuse

FOLDER = "servers_folder"
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
OWN_PROCESS = "FENCELOCK_TESTS_OWN_PROCESS"
"""Set in a process that runs one file of tests for another one of this run: where that has its servers."""
WIDE_FIXTURES = {"level"}
"""Fixtures that change a setting of the whole server for their test."""

_folder = pytest.StashKey[ServerFolder]()
_owner = ""
_fleets: list[Fleet[Any]] = []


def pytest_configure(config: pytest.Config) -> None:
    """Explain the marker."""
    config.addinivalue_line("markers", "server_wide: counts or changes what belongs to a whole server")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where all workers have their servers."""
    node.workerinput[FOLDER] = str(servers_folder(node.config))


def pytest_unconfigure(config: pytest.Config) -> None:
    """End all servers with the process that has made their folder: the only one, or the one that has the workers."""
    if (folder := config.stash.get(_folder, None)) is not None:
        folder.close()


def servers_folder(config: pytest.Config) -> Path:
    """Return the folder in which all processes of this run have their servers."""
    if (folder := known_folder(config)) is not None:
        return folder
    config.stash[_folder] = ServerFolder("fl-tests-")
    return config.stash[_folder].path


def known_folder(config: pytest.Config) -> Path | None:
    """Return that folder, if anybody has asked for it by now."""
    if OWN_PROCESS in os.environ:
        return Path(os.environ[OWN_PROCESS])
    if hasattr(config, "workerinput"):
        return Path(config.workerinput[FOLDER])
    made = config.stash.get(_folder, None)
    return None if made is None else made.path


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Say with whom the test shares servers."""
    global _owner  # noqa: PLW0603 - one test at a time
    is_wide = item.get_closest_marker("server_wide") or WIDE_FIXTURES & set(getattr(item, "fixturenames", ()))
    _owner = WORKER if is_wide else ""
    for fleet in _fleets:
        fleet.owner = _owner
    return (yield from _without_missing_programs())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test that finds a program missing."""
    return (yield from _without_missing_programs())


def _without_missing_programs() -> Iterator[None]:
    try:
        return (yield)
    except MissingProgramError as error:
        refuse(str(error))


def _fleet(kind: Callable[[Path], AnyFleet], request: pytest.FixtureRequest) -> Iterator[AnyFleet]:
    fleet = kind(servers_folder(request.config))
    fleet.owner = _owner
    _fleets.append(fleet)
    yield fleet
    fleet.close()


@pytest.fixture(scope="session")
def postgres_fleet(request: pytest.FixtureRequest) -> Iterator[PostgresFleet]:
    """Yield what makes PostgreSQL servers."""
    yield from _fleet(PostgresFleet, request)


@pytest.fixture(scope="session")
def mysql_fleet(request: pytest.FixtureRequest) -> Iterator[MariaDBFleet]:
    """Yield what makes MariaDB servers."""
    yield from _fleet(MariaDBFleet, request)


@pytest.fixture(scope="session")
def etcd_fleet(request: pytest.FixtureRequest) -> Iterator[EtcdFleet]:
    """Yield what makes etcd members."""
    yield from _fleet(EtcdFleet, request)


@pytest.fixture(scope="session")
def zookeeper_fleet(request: pytest.FixtureRequest) -> Iterator[ZooKeeperFleet]:
    """Yield what makes ZooKeeper servers."""
    for fleet in _fleet(ZooKeeperFleet, request):
        fleet.archives_classes = True
        yield fleet


@pytest.fixture(scope="session")
def nats_fleet(request: pytest.FixtureRequest) -> Iterator[NatsFleet]:
    """Yield what makes NATS servers."""
    yield from _fleet(NatsFleet, request)


@pytest.fixture(scope="session")
def redis_fleet(request: pytest.FixtureRequest) -> Iterator[RedisFleet]:
    """Yield what makes Redis servers."""
    yield from _fleet(RedisFleet, request)


@pytest.fixture(scope="session")
def rabbit_fleet(request: pytest.FixtureRequest) -> Iterator[RabbitFleet]:
    """Yield what makes RabbitMQ servers."""
    yield from _fleet(RabbitFleet, request)


@pytest.fixture(scope="session")
def ministack_fleet(request: pytest.FixtureRequest) -> Iterator[MinistackFleet]:
    """Yield what makes servers that speak the APIs of DynamoDB and S3, and give every client its credentials."""
    yield from _fleet_with_credentials(MinistackFleet, request)


@pytest.fixture(scope="session")
def seaweed_fleet(request: pytest.FixtureRequest) -> Iterator[SeaweedFleet]:
    """Yield what makes servers that speak S3, and give every client its credentials."""
    yield from _fleet_with_credentials(SeaweedFleet, request)


@pytest.fixture(scope="session")
def rclone_fleet(request: pytest.FixtureRequest) -> Iterator[RcloneFleet]:
    """Yield what makes servers that ignore S3's conditions, and give every client its credentials."""
    yield from _fleet_with_credentials(RcloneFleet, request)


def _fleet_with_credentials(kind: Callable[[Path], AnyFleet], request: pytest.FixtureRequest) -> Iterator[AnyFleet]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield from _fleet(kind, request)


_numbers = iter(range(1, 1_000_000))


def fresh_name(prefix: str = "test") -> str:
    """Return a name that no other test of any worker uses on a shared server."""
    return f"{prefix}_{WORKER}_{next(_numbers)}"
