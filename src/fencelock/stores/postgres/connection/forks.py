"""The open connections to PostgreSQL of this process: see `stores/forks.py`."""

import os
from typing import TYPE_CHECKING

from fencelock.stores.forks import Forks

if TYPE_CHECKING:
    from fencelock.stores.postgres.connection.client import AsyncConnection, Connection


def _close(native: "Connection | AsyncConnection") -> None:
    native.pgconn.finish()


def _drop(native: "Connection | AsyncConnection") -> None:
    if not native.closed:
        os.close(native.pgconn.socket)


FORKS: "Forks[Connection | AsyncConnection]" = Forks(close=_close, drop=_drop)
