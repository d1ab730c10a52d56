"""A Redis URL: the servers, the login, TLS, the database, and the prefix of the guard's own keys.

    redis://[user:password@]host[:port][,host[:port]…]/DATABASE/PREFIX[?unflushed=accept]
    rediss://…[?ca=FILE&cert=FILE&key=FILE]

The guard's keys begin with `{PREFIX}.fencelock/`: in a cluster, the braces put them into one slot with all keys that
contain `{PREFIX}`. `rediss://` uses TLS, with files as `stores/tls.py` says. `unflushed=accept` accepts a server that
does not flush what it acknowledges. Special characters are written as %XX.

Promise: the displayed URL names the servers, the database and the prefix, never a user, a password or a file.
Never: a connection made, or a file read.
"""

from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote

from fencelock.errors import ConfigError
from fencelock.stores.addresses import UrlPartError, parse_address, parse_authority
from fencelock.stores.errors import unknown_parameter
from fencelock.stores.tls import TLS_FILES, TlsFiles, parse_tls

DEFAULT_PORT = 6379
MAX_SERVERS = 64
MAX_DATABASE = 2**31 - 1
_FORM = "write redis://user:password@host:port/0/prefix, or rediss:// for TLS, with special characters as %XX"
_PARAMETERS = {"unflushed", *TLS_FILES}


class RedisAddress(NamedTuple):
    """Where one server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class RedisConnectionInfo(NamedTuple):
    """A parsed URL. `url` is the one spelling for all URLs with the same servers, database and prefix."""

    addresses: tuple[RedisAddress, ...]
    database: int
    prefix: str
    user: str | None
    password: str | None
    tls: TlsFiles | None
    accepts_unflushed: bool
    url: str

    def __repr__(self) -> str:
        return f"RedisConnectionInfo({self.url!r})"


def parse_url(url: str) -> RedisConnectionInfo:
    """Return the connection info of a redis:// or rediss:// URL; ConfigError if the URL is not understood."""
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    scheme = scheme.lower()
    try:
        user, password, servers = parse_authority(authority, needs_user=False)
        addresses = tuple(map(_address, servers.split(",")))
        values = _parameters(query)
        tls = parse_tls(values, is_on=scheme == "rediss")
    except UrlPartError as error:
        # Without the URL itself, which may contain a password.
        raise ConfigError(f"a Redis URL is not understood ({error}): {_FORM}") from None
    if len(addresses) > MAX_SERVERS:
        raise ConfigError(f"a Redis URL names {len(addresses)} servers: name {MAX_SERVERS} at most")
    if tls is not None and scheme != "rediss":
        raise ConfigError("a Redis URL names files for TLS without using it: write rediss:// instead of redis://")
    database, prefix = _database_and_prefix(path)
    shown = f"{scheme}://{','.join(map(str, addresses))}/{database}/{quote(prefix)}"
    return RedisConnectionInfo(addresses, database, prefix, user, password, tls, "unflushed" in values, shown)


def _address(member: str) -> RedisAddress:
    host, _, port = parse_address(member, DEFAULT_PORT).rpartition(":")
    return RedisAddress(host.strip("[]"), int(port))


def _database_and_prefix(path: str) -> tuple[int, str]:
    number, _, rest = path.partition("/")
    prefix = unquote(rest.strip("/"))
    if not (number.isascii() and number.isdigit() and int(number) <= MAX_DATABASE):
        raise ConfigError(f"a Redis URL names no database by its number: {_FORM}")
    if not prefix or set(prefix) & set("{}"):
        raise ConfigError(f"a Redis URL names a prefix for the guard's keys, without braces: {_FORM}")
    return int(number), prefix


def _parameters(query: str) -> dict[str, str]:
    given = parse_qs(query, keep_blank_values=True)
    if unknown := given.keys() - _PARAMETERS:
        raise UrlPartError(unknown_parameter(min(unknown), query, _PARAMETERS))
    values = {name: texts[-1] for name, texts in given.items()}
    if values.get("unflushed", "accept") != "accept":
        raise UrlPartError("unflushed can only be accept")
    return values
