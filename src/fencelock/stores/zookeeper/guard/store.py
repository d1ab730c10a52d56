"""The guard of a subtree of ZooKeeper: marks beside the nodes, and one `multi` that compares them.

Promise: making one opens nothing; all guards of one object share one session. ZooKeeper itself refuses nobody who
writes past the guard: its access lists have to, and `examine` says where they do not.
"""

import weakref
from typing import Any

from kazoo.exceptions import ZookeeperError
from kazoo.security import Permissions

from fencelock.errors import FencelockError, GuardError
from fencelock.model import Finding
from fencelock.protocol.generators import run_generator
from fencelock.protocol.guard_requests import Finish, Look
from fencelock.stores.quorum.colocated import split_locks
from fencelock.stores.zookeeper.connection.client import refused
from fencelock.stores.zookeeper.connection.url import base_of, parse_url
from fencelock.stores.zookeeper.guard.block import ZooKeeperTransaction
from fencelock.stores.zookeeper.guard.client import ZooKeeperGuardClient
from fencelock.stores.zookeeper.guard.codec import ZooKeeperGuardCodec, ZooKeeperGuardLayout
from fencelock.stores.zookeeper.guard.colocated import ZooKeeperColocatedLocks

_WRITING = Permissions.CREATE | Permissions.DELETE | Permissions.WRITE | Permissions.ADMIN


class ZooKeeperGuard:
    """A subtree that keeps marks."""

    speaks_asyncio = False

    def __init__(self, url: str) -> None:
        url, locks = split_locks(url)
        self.place = parse_url(url)
        self.url = self.place.url
        self.layout = ZooKeeperGuardLayout(self.place.base)
        self.locks = None if locks is None else ZooKeeperColocatedLocks(base_of(locks))
        self._client = ZooKeeperGuardClient(self.place)
        weakref.finalize(self, self._client.close)

    def connect(self) -> "ZooKeeperGuardConnection":
        """Return a connection of the guard's own, over the session that all of them share."""
        return ZooKeeperGuardConnection(self, self._client)

    def caller_connection(self, native: Any) -> "ZooKeeperGuardConnection":
        """Raise GuardError: ZooKeeper has no transaction that is open."""
        raise GuardError(
            f"ZooKeeper has no transaction that stays open, so nothing can be checked inside {type(native).__name__}: "
            f"write inside `with guard.transaction(lease) as txn:`, whose methods are kazoo's, or call "
            f"guard.seal(lease) without a connection"
        )

    def install(self) -> None:
        """Do nothing: the first seal makes what it needs."""

    def examine(self) -> list[Finding]:
        """Return where everybody may write past the marks."""
        try:
            marks = self.connect().perform(Look(None)).marks
            nodes = [
                (one.resource, where(one.resource)) for where in (self.layout.mark, self.layout.root) for one in marks
            ]
            return [finding for resource, path in nodes for finding in self._open_to_all(resource, path)]
        except FencelockError as error:
            return [Finding("guard-refused", str(error), "do what the message says, then run doctor again")]

    def _open_to_all(self, resource: str, path: str) -> list[Finding]:
        try:
            acls = self._client.get_acls(path)
        except ZookeeperError:
            return []  # There is no such node, or it does not even show its list to this user.
        if not any(acl.id.scheme == "world" and acl.perms & _WRITING for acl in acls):
            return []
        return [
            Finding(
                "open-to-all",
                f"anybody may write at node {path} of resource {resource!r}, with or without a token: ZooKeeper itself "
                f"refuses nobody",
                "name a user in the URLs of the applications that use the guard, and give the nodes to that user alone "
                "(setAcl -R)",
                resource,
            )
        ]


class ZooKeeperGuardConnection:
    """What one thread at a time asks of the guard."""

    def __init__(self, guard: ZooKeeperGuard, client: ZooKeeperGuardClient) -> None:
        # The guard itself: the session lasts as long as somebody uses it.
        self._guard = guard
        self._client = client
        self._codec = ZooKeeperGuardCodec(guard.url, guard.layout, guard.locks)

    @property
    def native(self) -> ZooKeeperTransaction:
        """What `guard.transaction` yields."""
        return self._codec.work  # type: ignore[no-any-return]

    def perform(self, request: Any) -> Any:
        """Answer one request; anything but success leaves nothing to be written."""
        try:
            return run_generator(self._codec.operations(request), lambda call: call(self._client))
        except BaseException as error:
            self.rollback()
            if isinstance(error, ZookeeperError) and not isinstance(request, Finish):
                raise refused(error, self._guard.place) from error
            raise

    def rollback(self) -> None:
        """Write nothing of what was to be written."""
        self._codec.forget()

    def map_error(self, error: BaseException) -> GuardError | None:
        """What leaves a block is of the tree already, or the user's own, or kazoo's about a node."""
        return None

    def close(self) -> None:
        """Write nothing more."""
        self.rollback()
