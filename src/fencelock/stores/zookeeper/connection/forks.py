"""The ZooKeeper clients of this process: see `stores/forks.py`."""

from contextlib import suppress
from typing import TYPE_CHECKING

from fencelock.stores.forks import Forks

if TYPE_CHECKING:
    from fencelock.stores.zookeeper.connection.client import ZooKeeperClient

CLOSE_S = 1.0
"""How long the end of a session is waited for; the servers end one that they do not hear of by its timeout."""


def _close(client: "ZooKeeperClient") -> None:
    with suppress(Exception):
        client.end(CLOSE_S)


def _drop(client: "ZooKeeperClient") -> None:
    for inherited in client.sockets():
        with suppress(OSError):
            inherited.close()


FORKS: "Forks[ZooKeeperClient]" = Forks(close=_close, drop=_drop)
