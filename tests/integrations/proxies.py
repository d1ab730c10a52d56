"""A proxy before the server of a test's database, which can lose one request or reply."""

from typing import Any

from tests.integrations.databases import GuardedDatabase
from tests.sql.mysql.framing import MySQLProxy
from tests.sql.postgres.framing import PostgresProxy


class FrameworksProxy(MySQLProxy):
    """COMMIT is a request of the framework's; our own connections send it when they open, and never again."""

    opening = ("SET NAMES ",)


def proxy_before(guarded: GuardedDatabase) -> Any:
    """Return a proxy before the server."""
    port = int(guarded.settings["PORT"])
    return PostgresProxy(port) if guarded.kind == "postgres" else FrameworksProxy(port)
