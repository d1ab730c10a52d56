"""Resources in stores of documents: one with a line for each write, and one with the counters, written in one block.

Promise: the documents carry the run's own name, and only the holder of the lock reads and writes them. A write that
overwrites another one takes its line away.
"""

import json
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import unquote, urlsplit

import fencelock
from fencelock_lab.campaigns.target import ROWS, GuardTarget, Row, TargetState, rows_of

_LIST, _COUNTERS = "list", "counters"


class DocumentTarget(GuardTarget):
    """The resources of one lock, in a store whose block has `get`, `put` and `delete`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._lists: dict[str, str] = {}

    def look(self, connection: Any, resource: str) -> TargetState:
        """Read the resource. The list is kept until it is written."""
        self._lists[resource] = self._get(connection, self._name(resource, _LIST))
        counters = json.loads(self._get(connection, self._name(resource, _COUNTERS)))
        return TargetState(len(self._lists[resource].splitlines()), {int(row): counters[row] for row in counters})

    def write(self, connection: Any, resource: str, seen: TargetState, name: str, token: int) -> None:
        """Write the list that was read with one more line, and the counters."""
        lines = f"{self._lists[resource]}{name} {seen.position + 1} {token}\n"
        self._put(connection, resource, lines, seen.after_write().counters)

    def final(self, resource: str) -> tuple[list[Row], int]:
        """Return the lines, as the next holder of the lock reads them, and the sum of the counters."""
        with self.holding() as lease:
            state = self.read(lease, resource)
        return rows_of(self._lists[resource]), sum(state.counters.values())

    # --- making and removing ------------------------------------------------------------------------------------------
    def made_for(self, resource: str) -> list[str]:
        """Return the names of the resource's documents."""
        return [self._name(resource, document) for document in (_LIST, _COUNTERS)]

    def check_unused(self, resource: str) -> None:
        """Each run has documents of its own; two at one source and one guard wait for each other's locks."""

    def make(self, resource: str) -> None:
        """Make an empty list, and counters that are 0."""
        self.protect()
        with self.holding() as lease, self.own_block(lease, resource) as connection:
            self._put(connection, resource, "", dict.fromkeys(range(1, ROWS + 1), 0))

    def take_away(self, resource: str) -> None:
        """Delete the documents."""
        with self.holding() as lease, self.own_block(lease, resource) as connection:
            for name in self.made_for(resource):
                self.delete(connection, name)

    def is_there(self, resource: str) -> bool:
        """Return whether one of the documents is there."""
        with self.holding() as lease, self.own_block(lease, resource) as connection:
            return any(self.get(connection, name) is not None for name in self.made_for(resource))

    def protect(self) -> None:
        """Have each resource's guard keep a mark: a guard of two admits nobody while one of them has none."""
        for one in self.resources:
            self.guard_of_one(one).protect()

    def own_block(self, lease: fencelock.Lease, resource: str) -> AbstractContextManager[Any]:
        """Return the guard's block for what this process does itself; no control breaks it."""
        return self.guard.transaction(lease)

    # --- how the store calls them -------------------------------------------------------------------------------------
    @property
    def place(self) -> str:
        """What the names of documents begin with."""
        return ""

    def get(self, connection: Any, name: str) -> bytes | None:
        """Return a document; None if it does not exist."""
        found: bytes | None = connection.get(name)
        return found

    def put(self, connection: Any, name: str, text: str) -> None:
        """Write a document."""
        connection.put(name, text)

    def _put(self, connection: Any, resource: str, lines: str, counters: dict[int, int]) -> None:
        self.put(connection, self._name(resource, _LIST), lines)
        self.put(connection, self._name(resource, _COUNTERS), json.dumps(counters))

    def delete(self, connection: Any, name: str) -> None:
        """Delete a document."""
        connection.delete(name)

    def _get(self, connection: Any, name: str) -> str:
        return (self.get(connection, name) or b"").decode()

    def _name(self, resource: str, document: str) -> str:
        return f"{self.place}{self._stems[resource]}.{document}"


class FilesTarget(DocumentTarget):
    """The resources of one lock in folders."""

    def get(self, connection: Any, name: str) -> bytes | None:
        """Return what a file holds; None if it does not exist."""
        found: bytes | None = connection.read(name)
        return found

    def put(self, connection: Any, name: str, text: str) -> None:
        """Write a file."""
        connection.write(name, text)


class RedisTarget(DocumentTarget):
    """The resources of one lock in keys of Redis, in the slot of the guard's own."""

    @property
    def place(self) -> str:
        """The guard's prefix, in braces."""
        return f"{{{unquote(urlsplit(self.url).path.split('/', 2)[2].strip('/'))}}}:"

    def put(self, connection: Any, name: str, text: str) -> None:
        """Set a key."""
        connection.execute("SET", name, text)

    def delete(self, connection: Any, name: str) -> None:
        """Delete a key."""
        connection.execute("DEL", name)
