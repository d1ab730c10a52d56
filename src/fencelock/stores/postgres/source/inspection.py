"""What in a PostgreSQL source's set-up would break the promise, for `fencelock doctor`."""

from typing import TYPE_CHECKING, NamedTuple

from fencelock.errors import SourceError
from fencelock.model import Finding
from fencelock.protocol.source_requests import ReadSource
from fencelock.stores.postgres.connection.client import is_pooled, mapping_errors, open_connection
from fencelock.stores.postgres.connection.forks import FORKS
from fencelock.stores.postgres.source.codec import SQL

if TYPE_CHECKING:
    from fencelock.stores.postgres.source.store import PostgresSource

REQUEST_TIMEOUT_S = 5.0


class Examined(NamedTuple):
    """One row of `examine`."""

    is_standby: bool
    is_flushing: bool
    writes_full_pages: bool
    may_write: bool
    may_create: bool
    is_superuser: bool
    unpinned: list[str]


def examine(store: "PostgresSource") -> list[Finding]:
    """Return what in the database's set-up, and in this role's rights, would break the promise."""
    connection = store.connect(request_timeout_s=REQUEST_TIMEOUT_S)
    try:
        connection.perform(ReadSource())
        return [*_findings(store.url, *_examined(store))]
    except SourceError as error:
        return [Finding("source-refused", str(error), "do what the message says, then run doctor again")]
    finally:
        connection.close()


def _examined(store: "PostgresSource") -> tuple[Examined, bool]:
    """Return what the server says of itself, and whether a pooler stands before it."""
    native = open_connection(store.place, REQUEST_TIMEOUT_S)
    try:
        with mapping_errors(store.place):
            *row, backend_id = native.execute(SQL.examine).fetchall()[0]
        return Examined._make(row), is_pooled(native, backend_id)
    finally:
        FORKS.close(native)


def _findings(url: str, found: Examined, is_behind_pooler: bool) -> list[Finding]:
    checks = (
        (
            found.is_standby,
            Finding(
                "standby", f"{url} is a standby: it can grant nothing", "name the primary, or several hosts in one URL"
            ),
        ),
        (
            not (found.is_flushing and found.writes_full_pages),
            Finding(
                "not-flushed",
                f"{url} runs with fsync or full_page_writes off: after a power cut a token may be issued twice",
                "set both on, restart the server, and run `fencelock epoch --raise --reason …`",
            ),
        ),
        (
            is_behind_pooler,
            Finding(
                "pooler",
                f"{url} is a pooler: it passes on no notification, so waiters look for themselves ten times a second",
                "let fencelock connect to the server itself, or live with the wait",
            ),
        ),
        (
            found.is_superuser or found.may_write or found.may_create,
            Finding(
                "too-many-rights",
                f"this role may change fencelock's tables at {url} past its functions: it can give itself any token",
                "connect as a role that has USAGE on the schema fencelock, and nothing else there",
            ),
        ),
        (
            bool(found.unpinned),
            Finding(
                "unpinned-functions",
                f"functions at {url} run with their owner's rights and the caller's search_path: {found.unpinned}",
                "drop the schema and run `fencelock install` again, then `fencelock epoch --raise --reason …`",
            ),
        ),
    )
    return [finding for is_wrong, finding in checks if is_wrong]
