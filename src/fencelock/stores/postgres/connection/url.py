"""A PostgreSQL URL: the parameters that libpq connects with, and a form that may be shown.

Promise: every URL that libpq understands works, including several hosts and the PG… environment variables. The form
that is shown names the servers and the database, never a user, a password or a file. Never opens a connection.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

from psycopg import ProgrammingError, pq
from psycopg.conninfo import conninfo_to_dict

from fencelock.errors import ConfigError

_PARAMETER = re.compile("[a-z_]+")
_FORM = "write postgresql://user:password@host:port/database?sslmode=…, with special characters as %XX"
_NOT_UNDERSTOOD = f"a PostgreSQL URL is not understood: {_FORM}"


class PostgresConnectionInfo(NamedTuple):
    """What a URL stands for: `parameters` for libpq, and `url`, the same for all URLs of one database."""

    parameters: dict[str, str]
    url: str

    def __repr__(self) -> str:
        return f"PostgresConnectionInfo({self.url!r})"


def parse_url(url: str) -> PostgresConnectionInfo:
    """Return the connection info of a postgresql:// or postgres:// URL; ConfigError if libpq does not understand it."""
    try:
        given = {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
    except ProgrammingError:
        # libpq's own message may repeat the password.
        raise ConfigError(_reason(url)) from None
    if "\0" in url or not _is_address(given.get("host", ""), given.get("port", "")):
        raise ConfigError(_NOT_UNDERSTOOD)
    resolved = {**_defaults(), **given}
    if "," in resolved.get("host", ""):
        # Of several servers, connect to the one that takes writes: a standby cannot grant.
        given.setdefault("target_session_attrs", "read-write")
    given.setdefault("fallback_application_name", "fencelock")
    return PostgresConnectionInfo(given, _shown(resolved))


def _reason(url: str) -> str:
    """Return the message about a URL that libpq does not understand."""
    base, _, query = url.partition("?")
    names = [unquote(pair.partition("=")[0]) for pair in query.split("&")]
    unknown = next((name for name in names if name not in _keywords()), "")
    # The "?" may belong to a password: then an "@" follows it, or the password's beginning is no port.
    if "@" in query or not _PARAMETER.fullmatch(unknown) or not _is_understood(base):
        return _NOT_UNDERSTOOD
    known = ", ".join(sorted(_keywords()))
    return f"a PostgreSQL URL is not understood (there is no parameter {unknown!r}; known: {known}): {_FORM}"


def _is_understood(url: str) -> bool:
    try:
        given = conninfo_to_dict(url)
    except ProgrammingError:
        return False
    return _is_address(str(given.get("host", "")), str(given.get("port", "")))


def _keywords() -> set[str]:
    """Return the names of libpq's parameters."""
    return {option.keyword.decode() for option in pq.Conninfo.get_defaults()}


def _is_address(hosts: str, ports: str) -> bool:
    """Return whether these are hosts and ports: of a password with an @ or a / in it, libpq makes one of them."""
    # A host that begins with an @ is the name of an abstract socket.
    return not any("@" in host[1:] for host in hosts.split(",")) and all(
        port.isdigit() for port in ports.split(",") if port
    )


def url_of(parameters: Mapping[str, Any]) -> str:
    """Return a URL for another library's connection parameters, without those that libpq does not know."""
    keywords = _keywords()
    known = {key: _joined(value) for key, value in parameters.items() if key in keywords and value not in (None, "")}
    return f"postgresql://?{urlencode(known, quote_via=quote)}"


def _joined(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _defaults() -> dict[str, str]:
    """Return libpq's parameters from the environment and its own defaults."""
    options = pq.Conninfo.get_defaults()
    return {option.keyword.decode(): option.val.decode() for option in options if option.val is not None}


def _shown(parameters: dict[str, str]) -> str:
    hosts = (parameters.get("host") or parameters.get("hostaddr") or "localhost").split(",")
    ports = parameters.get("port", "5432").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    servers = ",".join(f"{quote(host, safe=':[]')}:{port}" for host, port in zip(hosts, ports, strict=False))
    database = parameters.get("dbname") or parameters.get("user", "")
    return f"postgresql://{servers}/{quote(database, safe='')}"
