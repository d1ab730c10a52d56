"""The leases of etcd that a process is done with, and that etcd has not confirmed to have ended.

Promise: nobody waits for an ending. One that was not confirmed is asked for again when its process next hears from
etcd: a lease that this process has given up may be one that etcd goes on to keep, with all places that hang on it.
"""

import os
from contextlib import suppress
from typing import Any

import grpc

from fencelock.stores.etcd.connection import messages as say
from fencelock.stores.etcd.connection.client import LEASE_REVOKE, EtcdClient
from fencelock.stores.etcd.connection.errors import LeaseGoneError, map_error

REVOKE_S = 1.0


class PendingRevocations:
    """The endings that one process has asked one cluster for."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._asked: dict[int, Any] = {}

    def part(self, lease: int) -> None:
        """Have etcd end a lease."""
        with suppress(Exception):
            revocation = self._client.begin(LEASE_REVOKE, say.LeaseRevokeRequest(id=lease), REVOKE_S)
            self._asked[lease] = revocation
            # The client lives until it is done: a source may be forgotten as soon as it is closed.
            _UNDER_WAY[revocation] = self._client
            revocation.add_done_callback(_UNDER_WAY.pop)

    def part_again(self) -> None:
        """Ask again for what was answered by an error."""
        for lease, revocation in list(self._asked.items()):
            if not revocation.done():
                continue
            self._asked.pop(lease, None)
            if not self._has_ended(revocation):
                self.part(lease)

    def _has_ended(self, revocation: Any) -> bool:
        is_done = revocation.code() is grpc.StatusCode.OK
        return is_done or isinstance(map_error(revocation, self._client.place), LeaseGoneError)


def wait_for_all() -> None:
    """Wait a moment for what is under way, at the interpreter's end."""
    for revocation in list(_UNDER_WAY):
        with suppress(Exception):
            revocation.result(REVOKE_S)


def _after_fork_in_child() -> None:
    _INHERITED.append(dict(_UNDER_WAY))
    _UNDER_WAY.clear()


_INHERITED: list[Any] = []
"""What a forked child has of its parent's: to let go of it would be to use it."""
_UNDER_WAY: dict[Any, EtcdClient] = {}
"""Each with what it is said over."""
os.register_at_fork(after_in_child=_after_fork_in_child)
