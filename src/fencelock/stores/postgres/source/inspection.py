"""What `fencelock doctor` finds at a PostgreSQL source: settings and rights that break its guarantees."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fencelock.model import Finding
from fencelock.protocol.stores import SourceConnection
from fencelock.stores.postgres.connection.client import FORKS, is_pooled, open_connection
from fencelock.stores.postgres.connection.errors import error_mapper
from fencelock.stores.postgres.connection.inspection import open_functions
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.postgres.source.codec import SQL
from fencelock.stores.sql.inspection import REQUEST_TIMEOUT_S, examine_source, standby


class Examined(NamedTuple):
    """One row of `examine`."""

    is_standby: bool
    is_flushing: bool
    writes_full_pages: bool
    may_write: bool
    may_create: bool
    is_superuser: bool
    is_open: bool
    unpinned: list[str]


def examine(connect: Callable[..., SourceConnection], info: PostgresConnectionInfo) -> list[Finding]:
    """Return what in the server's settings, and in this role's rights, breaks the source's guarantees."""
    return examine_source(connect, lambda: _findings(info.url, *_examined(info)))


def _examined(info: PostgresConnectionInfo) -> tuple[Examined, bool]:
    """Return what the server reports, and whether a pooler stands in between."""
    native = open_connection(info, REQUEST_TIMEOUT_S)
    try:
        with error_mapper(info):
            *row, backend_id = native.execute(SQL.examine).fetchall()[0]
        return Examined._make(row), is_pooled(native, backend_id)
    finally:
        FORKS.close(native)


def _findings(url: str, found: Examined, is_behind_pooler: bool) -> Iterator[Finding]:
    if found.is_standby:
        yield standby(url, "a standby")
    if not (found.is_flushing and found.writes_full_pages):
        yield Finding(
            "unflushed",
            f"{url} runs with fsync or full_page_writes off: after a power cut a token may be issued twice",
            "set both on, restart the server, and run `fencelock epoch --raise --reason …`",
        )
    if is_behind_pooler:
        yield Finding(
            "pooler",
            f"{url} is a pooler: it passes on no notifications, so waiters poll ten times a second",
            "let fencelock connect to the server itself, or accept the longer waits",
        )
    if found.is_superuser or found.may_write or found.may_create:
        yield Finding(
            "too-many-rights",
            f"this role may change fencelock's tables at {url} without its functions: it can give itself any token",
            "connect as a role that has USAGE on the schema fencelock, and nothing else there",
        )
    if found.is_open:
        yield open_functions(url, "break locks, raise the epoch and purge")
    if found.unpinned:
        yield Finding(
            "unpinned-functions",
            f"functions at {url} run with their owner's rights and the caller's search_path: {found.unpinned}",
            "drop the schema and run `fencelock install` again, then `fencelock epoch --raise --reason …`",
        )
