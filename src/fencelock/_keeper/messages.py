"""What other threads tell the keeper through its inbox.

Promise: immutable, so that a signal handler or a finalizer may make and send one. Never decides anything.
"""

from typing import NamedTuple

from fencelock._drivers.sync import SyncDriver
from fencelock._keeper.record import LeaseRecord, Listeners


class Wake(NamedTuple):
    """A lease arrived that is due before the keeper's next check."""


class Abandon(NamedTuple):
    """A claim that the source may have and that will not be used.

    `record` is its lease, if the source's answer still tells whether that was lost before it was released. It keeps the
    listeners alive: the program may have dropped the lease by the time that they are called.
    """

    driver: SyncDriver
    lock: str
    claim: str
    give_up_ms: int
    record: LeaseRecord | None = None
    listeners: Listeners | None = None


class Over(NamedTuple):
    """Another thread saw that a lease is lost or has expired, before the keeper did. Keeps the listeners alive too."""

    record: LeaseRecord
    listeners: Listeners


class Stop(NamedTuple):
    """Release everything that is held, and end."""


Message = Wake | Abandon | Over | Stop
