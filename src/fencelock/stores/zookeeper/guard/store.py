"""The guard of a subtree of ZooKeeper: marks beside the nodes, and one `multi` that compares them.

Promise: the constructor opens nothing; all connections of one guard share one session. ZooKeeper itself refuses nobody
who writes past the guard: ZooKeeper's access lists have to, and `examine` reports where they do not.
"""

import weakref

from kazoo.exceptions import ZookeeperError
from kazoo.security import Permissions

from fencelock.errors import FencelockError
from fencelock.model import Finding
from fencelock.protocol.guard_requests import InspectResources
from fencelock.protocol.stores import GuardCapabilities
from fencelock.stores.errors import refused_finding
from fencelock.stores.quorum.colocated import split_locks
from fencelock.stores.zookeeper.connection.client import MAX_REQUEST_BYTES
from fencelock.stores.zookeeper.connection.url import base_of, parse_url
from fencelock.stores.zookeeper.guard.codec import ZooKeeperGuardLayout
from fencelock.stores.zookeeper.guard.colocated import ZooKeeperColocatedLocks
from fencelock.stores.zookeeper.guard.connection import ZooKeeperGuardClient, ZooKeeperGuardConnection
from fencelock.stores.zookeeper.policy import guard_policy

_WRITING = Permissions.CREATE | Permissions.DELETE | Permissions.WRITE | Permissions.ADMIN


class ZooKeeperGuard:
    """A guarded subtree."""

    capabilities = GuardCapabilities(enforced_by="policy", keeps_open=False, max_request_bytes=MAX_REQUEST_BYTES)

    def __init__(self, url: str) -> None:
        url, locks = split_locks(url)
        self.info = parse_url(url)
        self.url = self.info.url
        self.layout = ZooKeeperGuardLayout(self.info.base)
        self.locks = None if locks is None else ZooKeeperColocatedLocks(base_of(locks))
        self._client = ZooKeeperGuardClient(self.info)
        weakref.finalize(self, self._client.close)

    def connect(self) -> ZooKeeperGuardConnection:
        """Return a connection over the guard's shared session."""
        return ZooKeeperGuardConnection(self.info, self.layout, self.locks, self._client, self)

    def install(self) -> None:
        """Do nothing: the first seal creates what it needs."""

    def policy(self, resource: str, lock: str, *roles: str) -> str:
        """Return the commands that let these users write one resource, and no more."""
        return guard_policy(self.info.hosts, self.layout, resource, lock, roles)

    def examine(self) -> list[Finding]:
        """Report the nodes where everybody may write past the marks."""
        try:
            marks = self.connect().perform(InspectResources(None)).marks
            nodes = [
                (one.resource, where(one.resource)) for where in (self.layout.mark, self.layout.root) for one in marks
            ]
            return [finding for resource, path in nodes for finding in self._open_to_all(resource, path)]
        except FencelockError as error:
            return [refused_finding("guard-refused", error)]

    def _open_to_all(self, resource: str, path: str) -> list[Finding]:
        try:
            (acls,) = self._client.get_access_lists([path])
        except ZookeeperError:
            return []  # This user may not read its access list.
        if not any(acl.id.scheme == "world" and acl.perms & _WRITING for acl in acls):
            return []
        return [
            Finding(
                "open-to-all",
                f"everybody may write at node {path} of resource {resource!r}, with or without a token: ZooKeeper "
                f"itself refuses nobody",
                "name a user in the URLs of the applications that use the guard, and give the nodes to that user alone "
                "(setAcl -R)",
                resource,
            )
        ]
