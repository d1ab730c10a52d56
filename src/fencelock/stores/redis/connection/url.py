"""A Redis URL: the servers, the login, TLS, the database, and the prefix of the guard's own keys.

    redis://[user:password@]host[:port][,host[:port]…]/DATABASE/PREFIX[?unflushed=accept]
    rediss://…[?ca=FILE&cert=FILE&key=FILE]

The guard's keys begin with `{PREFIX}.fencelock/`: in a cluster, the braces put them into one slot with all keys that
contain `{PREFIX}`. `rediss://` uses TLS, and trusts the system's authorities and the one in the file `ca`; `cert` with
`key` are the client's own certificate. `unflushed=accept` accepts a server that does not flush what it acknowledges.
Special characters are written as %XX.

Promise: the displayed URL names the servers, the database and the prefix, never a user, a password or a file.
Never: a connection made, or a file read.
"""

from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote

from fencelock.errors import ConfigError
from fencelock.stores.addresses import AddressError, parse_address
from fencelock.stores.errors import unknown_parameter

DEFAULT_PORT = 6379
MAX_SERVERS = 64
MAX_DATABASE = 2**31 - 1
_FORM = "write redis://user:password@host:port/0/prefix, or rediss:// for TLS, with special characters as %XX"
_TLS_FILES = ("ca", "cert", "key")
_PARAMETERS = {"unflushed", *_TLS_FILES}


class RedisAddress(NamedTuple):
    """Where one server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class RedisTls(NamedTuple):
    """The files of a TLS connection; None: the system's authorities alone, or no certificate of the client's own."""

    ca: str | None
    cert: str | None
    key: str | None


class RedisConnectionInfo(NamedTuple):
    """A parsed URL. `url` is the one spelling for all URLs with the same servers, database and prefix."""

    addresses: tuple[RedisAddress, ...]
    database: int
    prefix: str
    user: str | None
    password: str | None
    tls: RedisTls | None
    accepts_unflushed: bool
    url: str

    def __repr__(self) -> str:
        return f"RedisConnectionInfo({self.url!r})"


def parse_url(url: str) -> RedisConnectionInfo:
    """Return the connection info of a redis:// or rediss:// URL; ConfigError if the URL is not understood."""
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    hosts, _, path = rest.partition("/")
    login, at, hosts = hosts.rpartition("@")
    user, colon, password = login.partition(":")
    if bool(at) != bool(colon and password):
        # Without the URL itself, which may contain a password.
        raise ConfigError(f"a Redis URL names a user without a password, or an empty login: {_FORM}")
    addresses = tuple(_address(host) for host in hosts.split(","))
    if len(addresses) > MAX_SERVERS:
        raise ConfigError(f"a Redis URL names {len(addresses)} servers: name {MAX_SERVERS} at most")
    database, prefix = _database_and_prefix(path)
    scheme = scheme.lower()
    values = _parameters(query, scheme)
    tls = RedisTls(*(values.get(name) for name in _TLS_FILES)) if scheme == "rediss" else None
    shown = f"{scheme}://{','.join(map(str, addresses))}/{database}/{quote(prefix)}"
    return RedisConnectionInfo(
        addresses,
        database,
        prefix,
        unquote(user) or None,
        unquote(password) if at else None,
        tls,
        "unflushed" in values,
        shown,
    )


def _address(member: str) -> RedisAddress:
    try:
        host, _, port = parse_address(member, DEFAULT_PORT).rpartition(":")
    except AddressError as error:
        raise ConfigError(f"a Redis URL is not understood ({error}): {_FORM}") from None
    return RedisAddress(host.strip("[]"), int(port))


def _database_and_prefix(path: str) -> tuple[int, str]:
    number, _, rest = path.partition("/")
    prefix = unquote(rest.strip("/"))
    if not (number.isascii() and number.isdigit() and int(number) <= MAX_DATABASE):
        raise ConfigError(f"a Redis URL names no database by its number: {_FORM}")
    if not prefix or set(prefix) & set("{}"):
        raise ConfigError(f"a Redis URL names a prefix for the guard's keys, without braces: {_FORM}")
    return int(number), prefix


def _parameters(query: str, scheme: str) -> dict[str, str]:
    given = parse_qs(query, keep_blank_values=True)
    if unknown := given.keys() - _PARAMETERS:
        reason = unknown_parameter(min(unknown), query, _PARAMETERS)
        raise ConfigError(f"a Redis URL is not understood ({reason}): {_FORM}")
    values = {name: texts[-1] for name, texts in given.items()}
    if values.get("unflushed", "accept") != "accept":
        raise ConfigError(f"a Redis URL's unflushed can only be accept: {_FORM}")
    if scheme != "rediss" and not values.keys().isdisjoint(_TLS_FILES):
        raise ConfigError("a Redis URL names files for TLS without using it: write rediss:// instead of redis://")
    if ("cert" in values) != ("key" in values):
        raise ConfigError(f"a Redis URL names a client's certificate without its key, or the other way round: {_FORM}")
    return values
