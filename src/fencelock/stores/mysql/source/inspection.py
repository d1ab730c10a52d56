"""What `fencelock doctor` finds at a MySQL source: settings and rights that break its guarantees."""

import re
from collections.abc import Callable, Iterator, Mapping

from fencelock.model import Finding
from fencelock.protocol.stores import SourceConnection
from fencelock.stores.mysql.connection.client import FORKS, MySQLConnection
from fencelock.stores.mysql.connection.errors import error_mapper
from fencelock.stores.mysql.connection.opening import open_connection
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.mysql.source.codec import SQL
from fencelock.stores.sql.inspection import REQUEST_TIMEOUT_S, examine_source, standby

_CHANGING = {"ALL PRIVILEGES", "INSERT", "UPDATE", "DELETE", "DROP", "ALTER", "TRIGGER", "ALTER ROUTINE", "SUPER"}
"""Rights that let an account give itself any token, or remove the checks."""
_GRANT = re.compile(r"GRANT (?P<rights>.+?) ON (?P<what>\S+) TO ")
_ON = {"ON", "1"}


def examine(connect: Callable[..., SourceConnection], info: MySQLConnectionInfo) -> list[Finding]:
    """Return what in the server's settings, and in this account's rights, breaks the source's guarantees."""
    return examine_source(connect, lambda: _findings(info))


def _findings(info: MySQLConnectionInfo) -> Iterator[Finding]:
    native = open_connection(info, REQUEST_TIMEOUT_S)
    try:
        with error_mapper(info), native.cursor() as cursor:
            cursor.execute(SQL.settings)
            settings = {name: str(value).upper() for name, value in cursor.fetchall()}
            cursor.execute(SQL.grants)
            grants = [row[0] for row in cursor.fetchall()]
            is_moving = _is_clock_moving(native)
    finally:
        FORKS.close(native)
    url = info.url
    yield from _durability(url, settings)
    yield from _surroundings(url, settings)
    if not is_moving:
        yield Finding(
            "frozen-clock",
            f"{url} runs with sysdate-is-now: a lease would be judged by the time at which its statement began",
            "remove the option, and restart the server",
        )
    if _may_change(grants, info.database):
        yield Finding(
            "too-many-rights",
            f"this account may change fencelock's tables at {url} without its routines: it can give itself any token",
            "connect as an account that may EXECUTE fencelock's routines, and nothing else there",
        )


def _is_clock_moving(native: MySQLConnection) -> bool:
    with native.cursor() as cursor:
        cursor.execute(SQL.clock)
        return bool(cursor.fetchone()[1])


def _durability(url: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the settings by which a crash or a power cut may lose acknowledged commits."""
    again = "restart nothing, and run `fencelock epoch --raise --reason …` if the machine lost power since"
    if (flush := settings.get("innodb_flush_log_at_trx_commit")) != "1":
        what = "a crash of the server or a power cut" if flush == "0" else "a power cut"
        yield Finding(
            "unflushed",
            f"{url} runs with innodb_flush_log_at_trx_commit = {flush}: after {what} a token may be issued twice",
            f"SET GLOBAL innodb_flush_log_at_trx_commit = 1; {again}",
        )
    if settings.get("log_bin") in _ON and settings.get("sync_binlog") != "1":
        yield Finding(
            "unflushed",
            f"{url} writes a binary log with sync_binlog = {settings.get('sync_binlog')}: after a power cut the server "
            f"rolls back what the log lacks, and a token may be issued twice",
            f"SET GLOBAL sync_binlog = 1; {again}",
        )
    if settings.get("innodb_doublewrite") == "OFF":
        yield Finding(
            "torn-pages",
            f"{url} runs with innodb_doublewrite off: a power cut may leave a page of the source that cannot be read",
            "switch it on, unless the file system writes whole pages",
        )


def _surroundings(url: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the settings that add other writers or readers."""
    if settings.get("read_only") in _ON:
        yield standby(url, "read-only")
    if settings.get("wsrep_on") in _ON:
        yield Finding(
            "several-primaries",
            f"{url} is a node of a Galera cluster, which is not tested, and which may lose commits that one node "
            f"acknowledged",
            "let all processes name the same single node, and raise the epoch after each failover",
        )


def _may_change(grants: list[str], database: str) -> bool:
    """Return whether the rows of SHOW GRANTS include a right to change a source's tables in this database."""
    for grant in grants:
        found = _GRANT.match(grant)
        if found is None:
            continue
        scope, _, table = found["what"].replace("`", "").replace("\\", "").partition(".")
        is_here = scope in {"*", database} and (table == "*" or table.startswith("fencelock_"))
        if is_here and _CHANGING & {right.partition(" (")[0].strip() for right in found["rights"].split(",")}:
            return True
    return False
