"""The open connections to PostgreSQL of this process: see `stores/forks.py`."""

import os
from typing import TYPE_CHECKING

from fencelock.stores.forks import Forks

if TYPE_CHECKING:
    from fencelock.stores.postgres.connection.client import AsyncPostgresConnection, PostgresConnection


def _close(native: "PostgresConnection | AsyncPostgresConnection") -> None:
    native.pgconn.finish()


def _drop(native: "PostgresConnection | AsyncPostgresConnection") -> None:
    if not native.closed:
        os.close(native.pgconn.socket)


FORKS: "Forks[PostgresConnection | AsyncPostgresConnection]" = Forks(close=_close, drop=_drop)
