"""What the sync and the async source share: the store, the hooks, and making a lease out of a grant.

Promise: a claim whose acquire was interrupted anywhere, by a signal, a cancellation or an error, is handed to the
keeper (H5).
"""

from typing import TypeVar

from fencelock._api.base_lease import BaseLease
from fencelock._api.lock_options import LockOptions, check_lock_options, resolve_url
from fencelock._drivers.sync import SyncDriver
from fencelock._flows.acquire import Attempt, Grant
from fencelock._keeper.keeper import REQUEST_TIMEOUT_S
from fencelock._keeper.lifecycle import keeper
from fencelock._keeper.record import RELEASED, LeaseRecord, Listeners
from fencelock.hooks import Hooks
from fencelock.model import BrokenLock, Finding, Sequencer
from fencelock.protocol.source_requests import Broken
from fencelock.protocol.stores import Capabilities
from fencelock.stores.registry import shown_url, source_store

AnyLease = TypeVar("AnyLease", bound=BaseLease)


class BaseSource:
    """A source of tokens behind one URL; opens nothing until it is used."""

    def __init__(self, url: str | None, hooks: Hooks) -> None:
        self._store = source_store(resolve_url(url))
        self._hooks = hooks
        self._keeper_driver = SyncDriver(self._store, request_timeout_s=REQUEST_TIMEOUT_S)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """The source's URL, without a password."""
        return shown_url(self._store.url)

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do: the shortest and the longest ttl that it grants, and whether it notifies waiters."""
        return self._store.capabilities

    def _terms(self, name: str, ttl: float, timeout: float | None, holder: str | None, on_lost: object) -> LockOptions:
        return check_lock_options(self._store.capabilities, name, ttl, timeout, holder, on_lost)  # type: ignore[arg-type]

    def _attempt(self, terms: LockOptions) -> Attempt:
        keeper().start()
        return Attempt(terms.name, terms.holder_now(), terms.ttl_ms)

    def _record(self, attempt: Attempt, grant: Grant, audience: Listeners) -> LeaseRecord:
        assert attempt.claim is not None, "a grant without a claim"
        return LeaseRecord(
            self._keeper_driver,
            attempt.lock,
            attempt.claim,
            attempt.holder,
            attempt.ttl_ms,
            grant,
            audience,
        )

    def _keep(self, lease: AnyLease, record: LeaseRecord, audience: Listeners) -> AnyLease:
        """Have the lease renewed from now on, and tell of it."""
        keeper().add(record)
        waited_ms = record.grant.waited_ms
        if waited_ms is not None:
            audience.tell(record, "waited", duration=waited_ms / 1000)
        audience.tell(record, "acquired")
        return lease

    def _give_up(self, attempt: Attempt, record: LeaseRecord | None) -> None:
        """Undo an acquire that was interrupted, in the background; nobody is told of the loss of what nobody got."""
        if record is not None:
            record.leave_held(RELEASED, "its acquire was interrupted")
        if attempt.claim is not None:
            keeper().abandon(self._keeper_driver, attempt.lock, attempt.claim, attempt.ttl_ms)

    def examine(self) -> list[Finding]:
        """Return what in the source's set-up would break the promise, as `fencelock doctor` prints it."""
        return self._store.examine()


def broken_lock(name: str, claim: str, reply: Broken) -> BrokenLock:
    """Return what a break brought, for the breaker."""
    sequencer = Sequencer(reply.source_id, reply.history_id, name, reply.token, claim)
    return BrokenLock(name, reply.token, reply.holder, sequencer)
