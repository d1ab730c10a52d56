"""One guarded transaction as two blocking steps: open it, and end it. The sync and the async block drive them.

Promise: between the two steps the connection is the user's alone; after the second it is given back, with the work
committed if the block ended well, and undone if not.
"""

from typing import TYPE_CHECKING, Any

from fencelock._api.credentials import Credential
from fencelock._api.guard_core import GuardCore
from fencelock._drivers.guard import run
from fencelock.errors import GuardError

if TYPE_CHECKING:
    from fencelock.protocol.stores import GuardConnection


def check_unused(*, is_used: bool) -> None:
    """Raise GuardError if a block was entered before."""
    if is_used:
        raise GuardError("a guarded transaction is entered once: call guard.transaction(lease) for each block")


class GuardedWork:
    """A transaction of one guard for one tenure, used once."""

    __slots__ = ("_connection", "_core", "_is_used", "_presented", "place", "proof")

    def __init__(self, core: GuardCore, proof: Credential) -> None:
        self.proof = proof
        self.place = core.scope.place
        self._core = core
        self._connection: GuardConnection | None = None
        self._presented: tuple[str, ...] = ()
        self._is_used = False

    @property
    def is_open(self) -> bool:
        """True between the two steps."""
        return self._connection is not None

    def use(self) -> None:
        """Raise GuardError if the block was entered before."""
        check_unused(is_used=self._is_used)
        self._is_used = True

    def open(self) -> Any:
        """Seal if need be, begin, present the lease, and return the native connection."""
        core, proof = self._core, self.proof
        self._connection = core.store.connect()
        try:
            opened = run(core.opening(proof), self._connection)
            self._presented = opened.presented
            core.tell_opened(proof, opened)
            native = self._connection.native
        except BaseException as error:
            self.give_back()
            if isinstance(error, GuardError):
                core.tell_refused(proof, error)
            raise
        return native

    def end(self, error: BaseException | None) -> GuardError | None:
        """Commit, or undo what an exception left; return what that exception means if it came from the store."""
        connection = self._connection
        assert connection is not None, "open comes first"
        try:
            if error is None:
                with self._core.telling(self.proof):
                    run(self._core.finishing(self.proof, self._presented), connection)
                return None
            connection.rollback()
            return connection.map_error(error)
        finally:
            self.give_back()

    def give_back(self) -> None:
        """Give back the connection that is not given back yet, with what is open in it undone."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
