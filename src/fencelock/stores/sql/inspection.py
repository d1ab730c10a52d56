"""What `fencelock doctor` does alike for the two SQL servers: the frame of an examination, and findings of both guards.

Promise: nothing is changed; a store that refuses to answer is a finding, not an exception.
"""

import shlex
from collections.abc import Callable, Iterable
from typing import NamedTuple

from fencelock.errors import SourceError
from fencelock.model import Finding
from fencelock.protocol.source_requests import ReadSource
from fencelock.protocol.stores import SourceConnection
from fencelock.stores.errors import refused_finding

REQUEST_TIMEOUT_S = 5.0


def examine_source(connect: Callable[..., SourceConnection], find: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings about a source that can be reached, or that it refuses."""
    connection = connect(request_timeout_s=REQUEST_TIMEOUT_S)
    try:
        connection.perform(ReadSource())
        return list(find())
    except SourceError as error:
        return [refused_finding("source-refused", error)]
    finally:
        connection.close()


def guard_refused(error: BaseException) -> list[Finding]:
    """Return the finding about a guarded database that cannot be examined."""
    return [refused_finding("guard-refused", error)]


def standby(url: str, what: str) -> Finding:
    """Return the finding about a server that takes no writes."""
    return Finding("standby", f"{url} is {what}: it can grant nothing", "name the primary, or several hosts in one URL")


def no_marks(url: str, *, hint: str = "") -> list[Finding]:
    """Return the finding about a database without marks."""
    message = f"{url} holds no marks{hint}: nothing in it is guarded yet"
    return [Finding("no-marks", message, f"run `fencelock protect {url} --resource R --lock L --table T`")]


def only_observed(url: str, table: str, resource: str) -> Finding:
    """Return the finding about a table in observe mode."""
    message = f"table {table} of resource {resource!r} is only observed: stale writes are counted and let through"
    return Finding(
        "only-observed", message, f"see `fencelock marks {url}`, then protect it with --mode enforce", resource
    )


def tables_lost(url: str, tables: Iterable[str]) -> Finding:
    """Return the finding about a schema of which somebody has dropped tables."""
    message = (
        f"{url} has lost fencelock's own tables ({', '.join(tables)}): a migration has dropped them, perhaps with the "
        f"marks, and writes to protected tables may fail"
    )
    remedy = (
        f"run `fencelock protect {url} … --source SOURCE` for each table with triggers, which raises its mark, or "
        f"`fencelock unprotect`; and keep fencelock's tables out of migrations"
    )
    return Finding("lost-tables", message, remedy)


def orphaned(url: str, table: str, resource: str) -> Finding:
    """Return the finding about a table with triggers, and without a record."""
    message = f"table {table} has triggers of fencelock for resource {resource!r}, and there is no record of it"
    remedy = (
        f"run `fencelock protect {url} --resource … --lock … --table {table} --source SOURCE`, or `fencelock unprotect`"
    )
    return Finding("orphaned-trigger", message, remedy, resource)


def unprotected(url: str, resource: str) -> Finding:
    """Return the finding about a resource without tables."""
    message = f"resource {resource!r} protects no table: only code that uses the guard is checked"
    remedy = f"run `fencelock protect {url} --resource … --lock … --table …`, unless all its data is elsewhere"
    return Finding("unprotected", message, remedy, resource)


class Uses(NamedTuple):
    """What resources are used for besides protecting tables."""

    rights: frozenset[str]
    """The resources, and the prefixes that end with *, which roles have rights to."""
    kept: frozenset[str] | None
    """The resources that keep keys (`once=`, `fencelock.dispatch`); None if this role may not read them."""

    def need_no_table(self, resource: str) -> bool:
        """Return whether a resource with a mark is meant to protect no table: it keeps keys, or it is one of many to
        which a role has a right by their prefix. A role that may not read the keys takes a right to it for a reason.
        """
        is_one_of_many = any(right != "*" and _covers(right, resource) for right in self.rights if right[-1:] == "*")
        return is_one_of_many or resource in (self.rights if self.kept is None else self.kept)

    def is_idle(self, right: str, others: Iterable[str]) -> bool:
        """Return whether a right covers none of these resources, and none that keeps keys."""
        return not any(_covers(right, resource) for resource in (*others, *(self.kept or ())))


def _covers(right: str, resource: str) -> bool:
    return right == resource or (right.endswith("*") and resource.startswith(right[:-1]))


def idle_right(url: str, resource: str, role: str) -> Finding:
    """Return the finding about a right that nothing shows to be used."""
    message = (
        f"{role} has a right to resource {resource!r}, and no table, no mark and no key belongs to such a resource: "
        f"who gets the role or the resource may raise its mark"
    )
    remedy = (
        f"if a program is yet to use it, leave it: its first seal ends this finding. Otherwise run `fencelock revoke "
        f"{url} --resource {shlex.quote(resource)} --role {shlex.quote(role)} --reason …`"
    )
    return Finding("idle-right", message, remedy, resource)


def open_reference(url: str, table: str, parent: str, resource: str) -> Finding:
    """Return the finding about an unprotected table with a foreign key to a protected one."""
    message = (
        f"table {table} is not protected, and has a foreign key to {parent} of resource {resource!r}: any writer of it "
        f"can keep the holder from deleting there, and its rows follow the holder's"
    )
    remedy = f"protect it by the same resource: `fencelock protect {url} --table {table} …`, or drop the key"
    return Finding("open-reference", message, remedy, resource)
