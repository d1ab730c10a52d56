"""Expire or lose a real lease on purpose, so that a test can see how its code reacts.

Promise: everything that follows is production code: the lease's state, `lost`, `on_lost`, hooks, `cancel_on_lost`, the
error at the end of a `with` block, and the release at the source in the background, after which the lock is free.
As in production, callbacks run in another thread (on the loop for async leases) within a second: wait for them.
"""

from typing import Any

from fencelock._api.lease import BaseLease
from fencelock._keeper.lifecycle import keeper
from fencelock._keeper.record import LOST, LeaseRecord
from fencelock.clock import boottime_ms
from fencelock.errors import ConfigError


def expire(lease: Any) -> None:
    """End the lease as if its deadline had passed without a renewal: LeaseExpiredError from now on.

    ConfigError if the argument is not a lease; the lease's own error if it is over already.
    """
    record = _record_of(lease)
    record.deadline_ms = boottime_ms()
    keeper().announce_loss(record)


def lose(lease: Any, reason: str = "a test made it lost") -> None:
    """End the lease as if the source had reported its loss: LeaseLostError with this reason from now on.

    Errors as for `expire`.
    """
    record = _record_of(lease)
    record.leave_held(LOST, reason)
    keeper().announce_loss(record)
    keeper().abandon(record.driver, record.lock, record.claim, record.ttl_ms)


def _record_of(lease: Any) -> LeaseRecord:
    if not isinstance(lease, BaseLease):
        raise ConfigError(f"a lease is what acquire() or `with lock` gives, not {type(lease).__name__}")
    lease.check_valid()
    return lease._record  # noqa: SLF001 - a lease has no public way to end but release.
