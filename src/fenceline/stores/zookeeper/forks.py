"""The ZooKeeper clients of this process: see `stores/forks.py`."""

from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from fenceline.stores.forks import Forks

if TYPE_CHECKING:
    from fenceline.stores.zookeeper.client import Client

CLOSE_S = 1.0
"""How long the end of a session is waited for; the server ends one that it does not hear of by its timeout."""


def _close(client: "Client") -> None:
    # In a thread, since a client that is just connecting to a frozen server would hold up its caller.
    closing = Thread(target=_stop, args=(client,), name="fenceline-zookeeper-close", daemon=True)
    with suppress(RuntimeError):  # The interpreter ends, and starts no more threads.
        closing.start()
        closing.join(CLOSE_S)


def _stop(client: "Client") -> None:
    with suppress(Exception):
        client.stop()
        client.close()


def _drop(client: "Client") -> None:
    for inherited in client.sockets():
        with suppress(OSError):
            inherited.close()


FORKS: "Forks[Client]" = Forks(close=_close, drop=_drop)
