"""The open connections to MySQL of this process: see `stores/forks.py`."""

from typing import TYPE_CHECKING

from fencelock.stores.forks import Forks

if TYPE_CHECKING:
    from fencelock.stores.mysql.connection.client import AsyncMySQLConnection, MySQLConnection


def _close(native: "MySQLConnection | AsyncMySQLConnection") -> None:
    native.hang_up()


def _drop(native: "MySQLConnection | AsyncMySQLConnection") -> None:
    native.let_go()


FORKS: "Forks[MySQLConnection | AsyncMySQLConnection]" = Forks(close=_close, drop=_drop)
