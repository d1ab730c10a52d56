"""The guard's URL of an engine's database.

Promise: the database, user and password of the engine's URL. What is said elsewhere (`connect_args`, a `creator`, a
file that `read_default_file` names) is not guessed: then users pass `guard=`. Never: opens a connection.
"""

import os
from collections.abc import Callable

from sqlalchemy import Engine

from fencelock.errors import ConfigError
from fencelock.integrations.urls import mysql_url, postgres_url

_SEE = "pass guard=fencelock.guard(url, …)"


def url_of(engine: Engine) -> str:
    """Return the guard's URL of an engine's database; ConfigError if there is none."""
    backend = engine.url.get_backend_name()
    if (build_url := _URL_BUILDERS.get(backend)) is None:
        known = ", ".join(sorted(_URL_BUILDERS))
        raise ConfigError(f"there is no guard for {backend}://; supported: {known}")
    return build_url(engine)


def _sqlite(engine: Engine) -> str:
    name = engine.url.database
    if not name or name == ":memory:" or name.startswith("file:"):
        raise ConfigError(
            f"the engine's URL names {'a URI' if name else 'no file'}: a guard needs a file on disk, which other "
            f"processes can open; if there is one, {_SEE}"
        )
    return f"sqlite:///{os.path.abspath(name)}"


def _postgres(engine: Engine) -> str:
    _, parameters = engine.dialect.create_connect_args(engine.url)
    named = {"dbname": parameters.get("database"), **parameters}
    return postgres_url({word: value for word, value in named.items() if isinstance(value, (str, int, list, tuple))})


def _mysql(engine: Engine) -> str:
    url = engine.url
    return mysql_url(
        url.database or "", host=url.host, port=url.port, user=url.username, password=url.password, **url.query
    )


_URL_BUILDERS: dict[str, Callable[[Engine], str]] = {
    "mariadb": _mysql,
    "mysql": _mysql,
    "postgresql": _postgres,
    "sqlite": _sqlite,
}
