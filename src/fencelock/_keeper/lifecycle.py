"""The process's keeper: started by the first acquire, inherited by no child, stopped at the interpreter's end.

Promise: a forked child starts without leases: those of its parent are inherited (H6), fencelock's own mutexes are
replaced, and the child's first acquire starts a keeper. At the interpreter's end waiters get SourceError, and leases
are released within EXIT_TIMEOUT_S.
"""

import atexit

from fencelock._drivers.shutdown import SHUTDOWN
from fencelock._keeper.keeper import Keeper
from fencelock._keeper.record import PROCESS
from fencelock._platform import at_fork

EXIT_TIMEOUT_S = 2.0


class _Keepers:
    """The keeper of this process."""

    def __init__(self) -> None:
        self.keeper = Keeper()


_KEEPERS = _Keepers()


def keeper() -> Keeper:
    """Return this process's keeper."""
    return _KEEPERS.keeper


def _after_fork_in_child() -> None:
    PROCESS.after_fork_in_child()
    # The parent's keeper has no thread here, but it believes that it has: its leases would never be renewed.
    _KEEPERS.keeper = Keeper()


def _at_exit() -> None:
    # First, so that threads in a queue abandon their claims to the keeper while its thread still runs.
    SHUTDOWN.begin()
    _KEEPERS.keeper.stop(EXIT_TIMEOUT_S)


at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
