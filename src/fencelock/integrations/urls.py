"""Builds the guard's URLs from the connection parameters of other libraries.

Promise: the server, database, user and password that the parameters name; TLS parameters if the guard's client has the
same ones. Never: opens a connection, or reads a file of options that a parameter names (`read_default_file`).
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from fencelock._install import install_extra
from fencelock.errors import MissingDependencyError

_LOCAL = "localhost"
_MYSQL_WORDS = ("unix_socket", "ssl_mode", "ssl_ca", "ssl_cert", "ssl_key")


def postgres_url(parameters: Mapping[str, Any]) -> str:
    """Return the URL of a PostgreSQL database; parameters unknown to libpq are left out."""
    try:
        from fencelock.stores.postgres.connection.url import url_of
    except ImportError as error:
        raise MissingDependencyError(
            f"the guard seals in PostgreSQL with a client of its own, which is not installed ({error.name}): "
            f"{install_extra('postgres')}"
        ) from error
    return url_of(parameters)


def mysql_url(
    database: str,
    *,
    host: str | None = None,
    port: str | int | None = None,
    user: str | None = None,
    password: str | None = None,
    **parameters: Any,
) -> str:
    """Return the URL of a MySQL or MariaDB database; parameters unknown to the guard's client are left out."""
    login = quote(user or "", safe="") + (f":{quote(password, safe='')}" if password else "")
    name = host or _LOCAL
    server = f"[{name}]" if ":" in name else quote(name, safe="")
    known = {word: value for word in _MYSQL_WORDS if (value := parameters.get(word))}
    query = f"?{urlencode(known, quote_via=quote)}" if known else ""
    return f"mysql://{login}@{server}{f':{port}' if port else ''}/{quote(database, safe='')}{query}"
