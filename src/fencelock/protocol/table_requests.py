"""The requests to a guarded store about its protected tables, and what it replies.

Promise: as for `guard_requests.py`, which offers these names too.
"""

from typing import NamedTuple

from fencelock.model import Protection

ENFORCE = "enforce"
OBSERVE = "observe"
ORPHANED = "orphaned"
"""The former mode of a table whose triggers exist without a record: fencelock's own tables were dropped."""


class HoldMarks(NamedTuple):
    """Lock the marks of these resources alone, in the caller's own transaction, before any DDL in it. Reply: None.

    A guarded block locks its mark first and its tables later, so the reverse order would end in a deadlock. GuardError
    if the connection is in no transaction. With it, `Protect`, `Restore` and `Unprotect` may be sent there too.
    """

    resources: tuple[str, ...]


class SetSavepoint(NamedTuple):
    """Set a savepoint in the caller's own transaction, before what may be refused halfway. Reply: None."""


class UndoToSavepoint(NamedTuple):
    """Undo everything since the savepoint, and leave the transaction open. Reply: None."""


class ReadProtections(NamedTuple):
    """Read which tables of a resource are protected, or of all (None). Reply: tuple[Protection, ...]."""

    resource: str | None


class Protect(NamedTuple):
    """Have the store itself enforce or observe writes to these tables, and bind the resource to the lock.

    Reply: Protected.
    """

    resource: str
    lock: str
    tables: tuple[str, ...]
    mode: str


class Protected(NamedTuple):
    """The former protection of each table whose mode has changed."""

    changed: tuple[Protection, ...]


class Unprotect(NamedTuple):
    """Stop protecting these tables, or all tables of the resource if none is named.

    Reply: tuple[Protection, ...], the protections that were removed.
    """

    resource: str
    tables: tuple[str, ...]


class Restore(NamedTuple):
    """Protect these tables of the resource again, in their recorded modes, after they were rebuilt. Reply: None.

    GuardError if a table is gone, or the resource has no record of it.
    """

    resource: str
    tables: tuple[str, ...]


class RecordRefusal(NamedTuple):
    """Count a refusal that observe mode did not carry out. Reply: None."""

    resource: str
    kind: str
