"""Where a guard at Redis keeps what: pure.

    {prefix}.fencelock/marks/<resource>      the mark of a resource
    {prefix}.fencelock/resources             a set: the resources that have a mark, or had one that was not purged
    {prefix}.fencelock/floors                the floors of purged marks, by their sources
    {prefix}.fencelock/audit                 a list: what operators did, in order
    {prefix}.fencelock/effects/<resource>    a hash: each job that is done once (`once=`, `dispatch`) by its key
    {prefix}.fencelock/slot                  never written

The braces put all keys into one slot of a cluster. Promise: names are escaped, so two resources never share a key.
"""

from fencelock.stores.encoding import RESERVED, escape_name
from fencelock.stores.optimistic.stored_values import FLOORS
from fencelock.stores.redis.connection.url import RedisConnectionInfo


class RedisLayout:
    """The keys of a guard's own: they begin with `{prefix}.fencelock/`."""

    def __init__(self, info: RedisConnectionInfo) -> None:
        self.info = info
        self.own = f"{{{info.prefix}}}{RESERVED}/".encode()
        self.slot = self.own + b"slot"
        """A key that is never written: whatever is named beside it must be in the same slot."""
        self.floors = self.own + b"floors"
        self.resources = self.own + b"resources"
        self.audit = self.own + b"audit"

    def mark(self, resource: str) -> bytes:
        """Return the key of a mark; of the floors for FLOORS."""
        return self.floors if resource == FLOORS else self.own + f"marks/{escape_name(resource)}".encode()

    def effects(self, resource: str) -> bytes:
        """Return the key of a resource's effects."""
        return self.own + f"effects/{escape_name(resource)}".encode()
