"""An etcd URL: the members of the cluster, the login, TLS, and the prefix of the keys.

    etcd://[user:password@]host[:port][,host[:port]…][/prefix][?tls=on&ca=FILE&cert=FILE&key=FILE]

Every key begins with `prefix` and a slash. TLS is used if any of its parameters is given: `tls=on` trusts the
authorities that gRPC brings along, `ca` the authority in the file, and `cert` with `key` are the client's own
certificate. Special characters are written as %XX.

Promise: the displayed URL names the members and the prefix, never a user, a password or a file.
Never: a connection made, or a file read.
"""

from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote

from fencelock.errors import ConfigError
from fencelock.stores.addresses import AddressError, parse_address
from fencelock.stores.errors import unknown_parameter

SCHEME = "etcd"
DEFAULT_PORT = 2379
MAX_MEMBERS = 64
_FORM = "write etcd://user:password@host:port,host:port/prefix?ca=…&cert=…&key=…, with special characters as %XX"
_PARAMETERS = {"tls", "ca", "cert", "key"}


class Tls(NamedTuple):
    """The files of a TLS connection; None: gRPC's own authorities, or no certificate of the client's own."""

    ca: str | None
    cert: str | None
    key: str | None


class EtcdConnectionInfo(NamedTuple):
    """A parsed URL. `url` is the one spelling for all URLs with the same members and prefix."""

    endpoints: tuple[str, ...]
    prefix: bytes
    user: str | None
    password: str | None
    tls: Tls | None
    url: str

    def __repr__(self) -> str:
        return f"EtcdConnectionInfo({self.url!r})"


def parse_url(url: str) -> EtcdConnectionInfo:
    """Return the connection info of an etcd:// URL; ConfigError if the URL is not understood."""
    rest, _, query = url.partition("://")[2].partition("?")
    hosts, _, path = rest.partition("/")
    login, at, hosts = hosts.rpartition("@")
    user, colon, password = login.partition(":")
    if bool(at) != bool(colon and user):
        # Without the URL itself, which may contain a password.
        raise ConfigError(f"an etcd URL names a user without a password, or the other way round: {_FORM}")
    endpoints = tuple(_endpoint(host) for host in hosts.split(","))
    if len(endpoints) > MAX_MEMBERS:
        raise ConfigError(f"an etcd URL names {len(endpoints)} members: name {MAX_MEMBERS} at most")
    prefix = prefix_of(path)
    return EtcdConnectionInfo(
        endpoints,
        prefix,
        unquote(user) or None,
        unquote(password) if at else None,
        _tls(query),
        f"{SCHEME}://{','.join(endpoints)}{'/' if prefix else ''}{quote(prefix[:-1])}",
    )


def prefix_of(path: str) -> bytes:
    """Return the key prefix that the path of a URL names."""
    prefix = unquote(path.strip("/")).encode()
    return prefix + b"/" if prefix else b""


def _endpoint(host: str) -> str:
    """Return a member's host and port."""
    try:
        return parse_address(host, DEFAULT_PORT)
    except AddressError as error:
        raise ConfigError(f"an etcd URL is not understood ({error}): {_FORM}") from None


def _tls(query: str) -> Tls | None:
    """Return the TLS parameters of a URL's query, if it has any."""
    given = parse_qs(query, keep_blank_values=True)
    if unknown := given.keys() - _PARAMETERS:
        reason = unknown_parameter(min(unknown), query, _PARAMETERS)
        raise ConfigError(f"an etcd URL is not understood ({reason}): {_FORM}")
    values = {name: texts[-1] for name, texts in given.items()}
    if values.pop("tls", "on") != "on":
        raise ConfigError(f"an etcd URL's tls can only be on: {_FORM}")
    if ("cert" in values) != ("key" in values):
        raise ConfigError(f"an etcd URL names a client's certificate without its key, or the other way round: {_FORM}")
    return Tls(values.get("ca"), values.get("cert"), values.get("key")) if given else None
