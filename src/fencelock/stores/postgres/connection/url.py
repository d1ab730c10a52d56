"""A PostgreSQL URL: what libpq needs to connect, and what may be shown of it.

Promise: everything that libpq understands in a URL works, several hosts and the PG… environment variables included; the
spelling that is shown names the servers and the database, never a user, a password or a file. Never: a connection made.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from psycopg import ProgrammingError, pq
from psycopg.conninfo import conninfo_to_dict

from fencelock.errors import ConfigError


class PostgresConnectionInfo(NamedTuple):
    """Where a URL leads: `parameters` for libpq, and `url`, one spelling for all that lead there."""

    parameters: dict[str, str]
    url: str

    def __repr__(self) -> str:
        return f"Place({self.url!r})"


def parse_url(url: str) -> PostgresConnectionInfo:
    """Return where a postgresql:// or postgres:// URL leads; ConfigError if libpq would not understand it."""
    try:
        given = {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
    except ProgrammingError:
        # libpq's own message may repeat the password.
        raise ConfigError(
            "a PostgreSQL URL is not understood: write postgresql://user:password@host:port/database?sslmode=…, with "
            "special characters as %XX"
        ) from None
    resolved = {**_defaults(), **given}
    if "," in resolved.get("host", ""):
        # Of several servers, the one that takes writes is meant: the others cannot grant.
        given.setdefault("target_session_attrs", "read-write")
    given.setdefault("fallback_application_name", "fencelock")
    return PostgresConnectionInfo(given, _spelt(resolved))


def url_of(parameters: Mapping[str, Any]) -> str:
    """Return a URL for the parameters by which some other library connects; what libpq has no word for is left out."""
    words = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    known = {word: _listed(value) for word, value in parameters.items() if word in words and value not in (None, "")}
    return f"postgresql://?{urlencode(known, quote_via=quote)}"


def _listed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _defaults() -> dict[str, str]:
    """Return what libpq takes from the environment and its own defaults."""
    options = pq.Conninfo.get_defaults()
    return {option.keyword.decode(): option.val.decode() for option in options if option.val is not None}


def _spelt(parameters: dict[str, str]) -> str:
    hosts = (parameters.get("host") or parameters.get("hostaddr") or "localhost").split(",")
    ports = parameters.get("port", "5432").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    servers = ",".join(f"{quote(host, safe=':[]')}:{port}" for host, port in zip(hosts, ports, strict=False))
    database = parameters.get("dbname") or parameters.get("user", "")
    return f"postgresql://{servers}/{quote(database, safe='')}"
