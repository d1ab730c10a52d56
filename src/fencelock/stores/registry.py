"""The store of each URL scheme: the built-in table, and the entry points by which other packages add stores.

Promise: looking up a scheme imports that store's module only. A scheme that cannot be safe is refused with the reason,
and a missing client with the extra to install. Never: lets another package replace a built-in scheme.
"""

import os
import re
from importlib import import_module
from typing import Any, cast

from fencelock._install import install_extra
from fencelock._platform import check_store
from fencelock.errors import (
    ConfigError,
    MissingDependencyError,
    UnknownSchemeError,
    UnsafeSourceError,
)
from fencelock.protocol.stores import GuardStore, SourceStore

SOURCE_GROUP = "fencelock.sources"
GUARD_GROUP = "fencelock.guards"

Location = str | os.PathLike[str]
"""A URL, or the path of a SQLite file."""

SOURCES = {
    "dynamodb": "fencelock.stores.dynamodb.source.store:DynamoDBSource",
    "etcd": "fencelock.stores.etcd.source.store:EtcdSource",
    "mariadb": "fencelock.stores.mysql.source.store:MySQLSource",
    "memory": "fencelock.stores.memory.source:MemorySource",
    "mysql": "fencelock.stores.mysql.source.store:MySQLSource",
    "postgres": "fencelock.stores.postgres.source.store:PostgresSource",
    "postgresql": "fencelock.stores.postgres.source.store:PostgresSource",
    "s3": "fencelock.stores.s3.source.store:S3Source",
    "sqlite": "fencelock.stores.sqlite.source.store:SQLiteSource",
    "zookeeper": "fencelock.stores.zookeeper.source.store:ZooKeeperSource",
}
GUARDS = {
    "dynamodb": "fencelock.stores.dynamodb.guard.store:DynamoGuard",
    "etcd": "fencelock.stores.etcd.guard.store:EtcdGuard",
    "file": "fencelock.stores.files.guard.store:FilesGuard",
    "mariadb": "fencelock.stores.mysql.guard.store:MySQLGuard",
    "mysql": "fencelock.stores.mysql.guard.store:MySQLGuard",
    "postgres": "fencelock.stores.postgres.guard.store:PostgresGuard",
    "postgresql": "fencelock.stores.postgres.guard.store:PostgresGuard",
    "redis": "fencelock.stores.redis.guard.store:RedisGuard",
    "rediss": "fencelock.stores.redis.guard.store:RedisGuard",
    "s3": "fencelock.stores.s3.guard.store:S3Guard",
    "sqlite": "fencelock.stores.sqlite.guard.store:SQLiteGuard",
    "zookeeper": "fencelock.stores.zookeeper.guard.store:ZooKeeperGuard",
}
EXTRAS = {
    "dynamodb": "aws",
    "etcd": "etcd",
    "mariadb": "mysql",
    "mysql": "mysql",
    "postgres": "postgres",
    "postgresql": "postgres",
    "redis": "redis",
    "rediss": "redis",
    "s3": "aws",
    "zookeeper": "zookeeper",
}
"""The extra that installs a scheme's client, for the stores that need one."""

_REDIS = (
    "its asynchronous failover loses acknowledged grants, and Redlock has no order to take tokens from. It can be a "
    "guard: take the lock from another source, and write your keys inside fencelock.guard('redis://…').transaction(lease)"
)
UNSAFE_SOURCES = {
    "memcached": "it may evict the counter at any time, and then counts from the beginning",
    "nats": "by default it acknowledges before it flushes, so a power cut can make it issue a revision twice",
    "redis": _REDIS,
    "rediss": _REDIS,
}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_AFTER_MARK = re.compile(r"([:=]).*", re.DOTALL)


def source_store(url: Location) -> SourceStore:
    """Return the source store of the URL, unopened; ConfigError or UnsafeSourceError if there is none."""
    url = location_url(url)
    scheme = _scheme(url)
    if scheme in UNSAFE_SOURCES:
        raise UnsafeSourceError(
            f"{scheme}:// cannot be a source of fencing tokens: {UNSAFE_SOURCES[scheme]}. Use one of: {_known(SOURCES)}"
        )
    return cast("SourceStore", _load(scheme, SOURCES, SOURCE_GROUP)(url))


def guard_store(url: Location) -> GuardStore:
    """Return the guard store of the URL, unopened; ConfigError if there is none."""
    url = location_url(url)
    return cast("GuardStore", _load(_scheme(url), GUARDS, GUARD_GROUP)(url))


def guard_url(url: str) -> str:
    """Return a guard's URL without user, password and options, which must not be shown."""
    return shown_url(guard_store(url).url)


def location_url(url: object) -> str:
    """Return the URL; a path is that of a SQLite file."""
    found = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(found, str):
        raise ConfigError(f"a URL must be a str or a path, not {type(url).__name__}")
    return found if found is url else f"sqlite:///{os.path.abspath(found)}"


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        raise ConfigError(f"{shown_url(url)!r} is not a URL: write for example {_example(url)}")
    return scheme.lower()


def _example(url: str) -> str:
    """Return the beginning of the URL that was meant, if the text begins as one of a known scheme does."""
    scheme = url.partition(":")[0].lower()
    is_known = ":" in url and scheme in SOURCES | GUARDS and scheme != "sqlite"
    return f"{scheme}://…" if is_known else "sqlite:///locks.db"


def shown_url(url: str) -> str:
    """Return the URL without user, password and options, which only a URL with a host can have.

    Of text that is no URL, nothing that follows a ":" or "=" is shown: it may be `user:secret`, or libpq's `host=db
    password=secret`.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        scheme, separator, rest = "", "", _AFTER_MARK.sub(r"\1…", url)
    elif rest.startswith("/"):
        return url
    _, at, target = rest.rpartition("@")
    target, mark, _ = target.partition("?")
    return f"{scheme}{separator}{'…@' if at else ''}{target}{'?…' if mark else ''}"


def _load(scheme: str, table: dict[str, str], group: str) -> Any:
    target = table.get(scheme)
    if target is None:
        return _load_entry_point(scheme, table, group)
    check_store(scheme)
    module_name, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module_name), attribute)
    except ImportError as error:
        if scheme not in EXTRAS:
            raise
        # The cause of a client that is not installed says nothing more.
        raise _missing_client(scheme, error) from (None if isinstance(error, ModuleNotFoundError) else error)


def _missing_client(scheme: str, error: ImportError) -> MissingDependencyError:
    if isinstance(error, ModuleNotFoundError):
        return MissingDependencyError(
            f"{scheme}:// needs a client that is not installed ({error.name}): {install_extra(EXTRAS[scheme])}"
        )
    # The client is installed and lacks something itself, as psycopg does on a machine without libpq.
    problem = " ".join(str(error).split())
    return MissingDependencyError(
        f"{scheme}:// needs a client that cannot be loaded ({problem}): install what it needs"
    )


def _load_entry_point(scheme: str, table: dict[str, str], group: str) -> Any:
    from importlib.metadata import entry_points

    found = entry_points(group=group, name=scheme)
    if len(found) == 1:
        (point,) = found
        try:
            return point.load()
        except (ImportError, AttributeError) as error:
            raise MissingDependencyError(
                f"{scheme}:// is offered by {point.value!r}, which cannot be loaded ({error}): install what that "
                f"package needs, or uninstall it"
            ) from error
    if found:
        names = ", ".join(sorted(point.value for point in found))
        raise ConfigError(f"several packages offer {scheme}:// ({names}): uninstall all but one")
    system, plus, _ = scheme.partition("+")
    if plus and system in table:
        raise UnknownSchemeError(
            f"{scheme}:// names a driver, as SQLAlchemy's URLs do, and fencelock has connections of its own: write "
            f"{system}://"
        )
    if scheme in GUARDS and table is SOURCES:
        raise UnknownSchemeError(
            f"{scheme}:// is a guard, and no source of tokens: take the lock from another store, and write inside "
            f"fencelock.guard('{scheme}://…').transaction(lease). Sources are: {_known(table)}"
        )
    if scheme in SOURCES and table is GUARDS:
        raise UnknownSchemeError(
            f"{scheme}:// is a source of tokens, and no guard: it protects nothing. Guards are: {_known(table)}"
        )
    from difflib import get_close_matches

    near = get_close_matches(scheme, table, 1)
    meant = f" (did you mean {near[0]}://?)" if near else ""
    raise UnknownSchemeError(f"no store is known for {scheme}://{meant}; known here: {_known(table)}")


def _known(table: dict[str, str]) -> str:
    return ", ".join(f"{scheme}://" for scheme in sorted(table))
