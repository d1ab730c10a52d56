"""The set-ups of private servers whose stores hold documents rather than tables: Redis, S3 and DynamoDB.

Promise: what a client has been told is kept over every fault that a set-up names. Redis and S3 are guards only: their
locks are in a SQLite file beside the servers.
"""

from typing import Self

import fencelock
from fencelock_lab.campaigns.history import SERVER_FREEZE, SERVER_KILL, SERVER_RESTART
from fencelock_lab.servers.cluster import Cluster
from fencelock_lab.servers.ministack import CREDENTIALS, MinistackServer
from fencelock_lab.servers.redis import RedisServer
from fencelock_lab.servers.seaweedfs import BUCKET, SeaweedServer
from fencelock_lab.servers.server import Server
from fencelock_lab.servers.setup import Setup

_NAME = "verify"
_MARKS, _LOCKS = "marks", "locks"
"""The tables of DynamoDB."""


class GuardSetup(Setup):
    """Servers that hold no locks."""

    faults = (SERVER_KILL, SERVER_FREEZE, SERVER_RESTART)

    @property
    def url(self) -> str:
        """The URL of a SQLite file in the folder of the servers."""
        return f"sqlite:///{self._folder.path}/locks.db"


class RedisSetup(GuardSetup):
    """One server, which flushes each write before it answers."""

    name = "redis"
    shown = ("sqlite:///locks.db", "redis://127.0.0.1/0/verify")

    def make(self) -> Cluster[Server]:
        """Return the server, not started yet."""
        self._server = RedisServer(self.new_folder(self.name))
        return Cluster([self._server])

    @property
    def guard_url(self) -> str:
        """The URL of a prefix in the first database."""
        return f"{self._server.url}/0/{_NAME}"


class S3Setup(GuardSetup):
    """SeaweedFS, all of its parts in one process."""

    name = "s3"
    shown = ("sqlite:///locks.db", f"s3://{BUCKET}/{_NAME}?endpoint=http://127.0.0.1")
    ttl = 2.0
    variables = CREDENTIALS
    longest_freeze_s = 4.0  # For longer it promises nothing: it holds a lock of 5 s over comparing and writing.

    def make(self) -> Cluster[Server]:
        """Return the server, not started yet."""
        self._server = SeaweedServer(self.new_folder(self.name))
        return Cluster([self._server])

    @property
    def guard_url(self) -> str:
        """The URL of a prefix in the bucket."""
        return f"s3://{BUCKET}/{_NAME}?endpoint={self._server.url}"


class DynamoDBSetup(Setup):
    """An emulator, which keeps what it has in memory, and writes it to a file when it is stopped: a kill loses all."""

    name = "dynamodb"
    shown = (f"dynamodb://eu-central-1/{_LOCKS}", f"dynamodb://eu-central-1/{_MARKS}")
    least_ttl = ttl = 5.0
    faults = (SERVER_FREEZE, SERVER_RESTART)
    variables = CREDENTIALS

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            fencelock.guard(self.guard_url, resource=_NAME, lock=_NAME).install()
        except BaseException:
            self.close()
            raise
        return self

    def make(self) -> Cluster[Server]:
        """Return the server, not started yet."""
        self._server = MinistackServer(self.new_folder(self.name))
        self._server.variables |= {"PERSIST_STATE": "1", "STATE_DIR": str(self._server.data)}
        return Cluster([self._server])

    @property
    def url(self) -> str:
        """The URL of the table of locks."""
        return self._server.dynamodb_url(_LOCKS)

    @property
    def guard_url(self) -> str:
        """The URL of the table of marks."""
        return self._server.dynamodb_url(_MARKS)
