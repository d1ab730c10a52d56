"""The open connections to MySQL of this process: see `stores/forks.py`."""

from typing import TYPE_CHECKING

from fencelock.stores.forks import Forks

if TYPE_CHECKING:
    from fencelock.stores.mysql.connection.client import AsyncConnection, Connection


def _close(native: "Connection | AsyncConnection") -> None:
    native.hang_up()


def _drop(native: "Connection | AsyncConnection") -> None:
    native.let_go()


FORKS: "Forks[Connection | AsyncConnection]" = Forks(close=_close, drop=_drop)
