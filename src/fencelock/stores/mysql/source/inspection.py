"""What in a MySQL source's set-up would break the promise, for `fencelock doctor`."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fencelock.errors import SourceError
from fencelock.model import Finding
from fencelock.protocol.source_requests import ReadSource
from fencelock.stores.mysql.connection.client import MySQLConnection, open_connection
from fencelock.stores.mysql.connection.errors import mapping_errors
from fencelock.stores.mysql.connection.forks import FORKS
from fencelock.stores.mysql.source.codec import SQL

if TYPE_CHECKING:
    from fencelock.stores.mysql.source.store import MySQLSource

REQUEST_TIMEOUT_S = 5.0
_CHANGING = {
    *("ALL PRIVILEGES", "INSERT", "UPDATE", "DELETE", "DROP", "ALTER", "TRIGGER", "ALTER ROUTINE", "SUPER"),
    "CREATE TEMPORARY TABLES",
}
"""Rights by which somebody can give himself any token, or take the rules away: a routine, too, finds a session's own
temporary table in the place of another of that name.
"""
_GRANT = re.compile(r"GRANT (?P<rights>.+?) ON (?P<what>\S+) TO ")
_ON = {"ON", "1"}


def examine(store: "MySQLSource") -> list[Finding]:
    """Return what in the server's settings, and in this role's rights, would break the promise."""
    connection = store.connect(request_timeout_s=REQUEST_TIMEOUT_S)
    try:
        connection.perform(ReadSource())
        return list(_findings(store))
    except SourceError as error:
        return [Finding("source-refused", str(error), "do what the message says, then run doctor again")]
    finally:
        connection.close()


def _findings(store: "MySQLSource") -> Iterator[Finding]:
    native = open_connection(store.place, REQUEST_TIMEOUT_S)
    try:
        with mapping_errors(store.place), native.cursor() as cursor:
            cursor.execute(SQL.settings)
            settings = {name: str(value).upper() for name, value in cursor.fetchall()}
            cursor.execute(SQL.grants)
            grants = [row[0] for row in cursor.fetchall()]
            is_moving = _is_clock_moving(native)
    finally:
        FORKS.close(native)
    url = store.url
    yield from _durability(url, settings)
    yield from _surroundings(url, settings)
    if not is_moving:
        yield Finding(
            "frozen-clock",
            f"{url} runs with sysdate-is-now: a lease would be judged by the time at which a statement began",
            "remove the option, and restart the server",
        )
    if _may_change(grants, store.place.database):
        yield Finding(
            "too-many-rights",
            f"this role may change fencelock's tables at {url} past its routines: it can give itself any token",
            "connect as a role that may EXECUTE fencelock's routines, and nothing else there",
        )


def _is_clock_moving(native: MySQLConnection) -> bool:
    with native.cursor() as cursor:
        cursor.execute(SQL.clock)
        return bool(cursor.fetchone()[1])


def _durability(url: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    """What a crash or a power cut may take of what was acknowledged."""
    again = "restart nothing, and run `fencelock epoch --raise --reason …` if the machine lost power since"
    if (flush := settings.get("innodb_flush_log_at_trx_commit")) != "1":
        what = "a crash of the server or a power cut" if flush == "0" else "a power cut"
        yield Finding(
            "not-flushed",
            f"{url} runs with innodb_flush_log_at_trx_commit = {flush}: after {what} a token may be issued twice",
            f"SET GLOBAL innodb_flush_log_at_trx_commit = 1; {again}",
        )
    if settings.get("log_bin") in _ON and settings.get("sync_binlog") != "1":
        yield Finding(
            "not-flushed",
            f"{url} writes a binary log with sync_binlog = {settings.get('sync_binlog')}: what it lacks after a power "
            f"cut is rolled back, and a token may be issued twice",
            f"SET GLOBAL sync_binlog = 1; {again}",
        )
    if settings.get("innodb_doublewrite") == "OFF":
        yield Finding(
            "torn-pages",
            f"{url} runs with innodb_doublewrite off: a power cut may leave a page of the source that cannot be read",
            "switch it on, unless the file system writes whole pages",
        )


def _surroundings(url: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    """What else runs beside it, or reads along."""
    if settings.get("read_only") in _ON:
        yield Finding(
            "standby", f"{url} is read-only: it can grant nothing", "name the primary, or several hosts in one URL"
        )
    if settings.get("wsrep_on") in _ON:
        yield Finding(
            "several-primaries",
            f"{url} is a node of a Galera cluster, which has not been tried, and whose nodes may lose what one of them "
            f"has acknowledged",
            "let all processes name the same single node, and raise the epoch after each failover",
        )
    if settings.get("general_log") in _ON:
        yield Finding(
            "claims-logged",
            f"{url} writes every statement into its general log, and with them claims, which are proofs of leases",
            "switch general_log off, or let nobody read it",
        )


def _may_change(grants: list[str], database: str) -> bool:
    """Tell whether what SHOW GRANTS says allows to change the tables of a source in this database."""
    for grant in grants:
        found = _GRANT.match(grant)
        if found is None:
            continue
        scope, _, table = found["what"].replace("`", "").replace("\\", "").partition(".")
        is_here = scope in {"*", database} and (table == "*" or table.startswith("fencelock_"))
        if is_here and _CHANGING & {right.partition(" (")[0].strip() for right in found["rights"].split(",")}:
            return True
    return False
