"""The guard's URL of a Django database, and the names of its tables there.

Promise: the URL leads to the database that the settings name, which is the test database in a test;
`FENCELOCK["GUARDS"]` overrides it, and is needed where a file of options names the server or the user
(`read_default_file` of MySQL). Never: a password in a message.
"""

import os
from collections.abc import Callable
from typing import Any

from django.db import connections

from fencelock.errors import ConfigError
from fencelock.integrations.django.settings import GUARDS, SETTING, read
from fencelock.integrations.urls import mysql_url, postgres_url


def url_of(alias: str) -> str:
    """Return the guard's URL of a database; ConfigError if there is none."""
    configured = read().guards.get(alias)
    if configured is not None:
        return configured
    connection = connections[alias]
    if (build_url := _URL_BUILDERS.get(connection.vendor)) is None:
        raise ConfigError(
            f"database {alias!r} is {connection.display_name}, which has no guard; supported: "
            f"{', '.join(sorted(_URL_BUILDERS))}"
        )
    return build_url(connection)


def is_in_memory(connection: Any) -> bool:
    """Return whether the database is in the memory of this process, where no other process can write it."""
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def check_on_disk(alias: str) -> None:
    """Raise ConfigError if the database is one of SQLite's, and no file."""
    connection = connections[alias]
    is_uri = connection.vendor == "sqlite" and str(connection.settings_dict["NAME"]).startswith("file:")
    if is_in_memory(connection) or is_uri:
        raise ConfigError(
            f"database {alias!r} is not a file on disk that other processes can open by its path: name a file (for "
            f"tests in DATABASES['{alias}']['TEST']['NAME']), or give the guard's URL in {SETTING}['{GUARDS}']"
        )


def transaction_of(connection: Any) -> Any:
    """Return the driver's connection if a transaction is open on it in which DDL can be undone, else None."""
    is_inside = connection.in_atomic_block and connection.features.can_rollback_ddl
    return connection.connection if is_inside else None


def _sqlite(connection: Any) -> str:
    check_on_disk(connection.alias)
    return f"sqlite:///{os.path.abspath(connection.settings_dict['NAME'])}"


def _postgres(connection: Any) -> str:
    parameters = dict(connection.get_connection_params())
    if role := connection.settings_dict["OPTIONS"].get("assume_role"):
        parameters["options"] = f"{parameters.get('options', '')} -c role={role}".strip()
    return postgres_url(parameters)


def _mysql(connection: Any) -> str:
    settings, options = connection.settings_dict, connection.settings_dict["OPTIONS"]
    host, tls = settings["HOST"], options.get("ssl") or {}
    parameters = {f"ssl_{word}": tls.get(word) for word in ("ca", "cert", "key")}
    parameters["ssl_mode"] = options.get("ssl_mode")
    parameters["unix_socket"] = host if host.startswith("/") else options.get("unix_socket")
    login = {"host": host, "port": settings["PORT"], "user": settings["USER"], "password": settings["PASSWORD"]}
    return mysql_url(settings["NAME"], **login, **parameters)


_URL_BUILDERS: dict[str, Callable[[Any], str]] = {"mysql": _mysql, "postgresql": _postgres, "sqlite": _sqlite}


def name_for_guard(connection: Any, table: str) -> str:
    """Return a table's name as the guard expects it from `protect`."""
    return table if connection.vendor == "sqlite" else str(connection.ops.quote_name(table))


def name_at_guard(connection: Any, table: str) -> str | None:
    """Return a table's name as the guard shows it; None if there is no such table."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT format('%%I.%%I', nspname, relname) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = "
                "relnamespace WHERE pg_class.oid = to_regclass(%s)",
                [connection.ops.quote_name(table)],
            )
            row = cursor.fetchone()
        return None if row is None else str(row[0])
    known = {name.casefold(): name for name in connection.introspection.table_names()}
    name = known.get(table.casefold())
    if name is None or connection.vendor == "sqlite":
        return name
    return f"{connection.settings_dict['NAME']}.{name}"
