"""An etcd URL: the members of the cluster, the login, TLS, and the prefix of the keys.

    etcd://[user:password@]host[:port][,host[:port]…][/prefix][?tls=true&ca=FILE&cert=FILE&key=FILE]

Every key begins with `prefix` and a slash. `stores/tls.py` says what the parameters mean. Special characters are
written as %XX.

Promise: the displayed URL names the members and the prefix, never a user, a password or a file.
Never: a connection made, or a file read.
"""

from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote

from fencelock.errors import ConfigError
from fencelock.stores.addresses import UrlPartError, parse_address, parse_authority
from fencelock.stores.errors import unknown_parameter
from fencelock.stores.tls import TLS_FILES, TlsFiles, parse_tls

SCHEME = "etcd"
DEFAULT_PORT = 2379
MAX_MEMBERS = 64
_FORM = "write etcd://user:password@host:port,host:port/prefix?ca=…&cert=…&key=…, with special characters as %XX"
_PARAMETERS = {"tls", *TLS_FILES}


class EtcdConnectionInfo(NamedTuple):
    """A parsed URL. `url` is the one spelling for all URLs with the same members and prefix."""

    endpoints: tuple[str, ...]
    prefix: bytes
    user: str | None
    password: str | None
    tls: TlsFiles | None
    url: str

    def __repr__(self) -> str:
        return f"EtcdConnectionInfo({self.url!r})"


def parse_url(url: str) -> EtcdConnectionInfo:
    """Return the connection info of an etcd:// URL; ConfigError if the URL is not understood."""
    rest, _, query = url.partition("://")[2].partition("?")
    text, _, path = rest.partition("/")
    try:
        user, password, servers = parse_authority(text)
        endpoints = tuple(parse_address(server, DEFAULT_PORT) for server in servers.split(","))
        tls = parse_tls(_parameters(query))
    except UrlPartError as error:
        # Without the URL itself, which may contain a password.
        raise ConfigError(f"an etcd URL is not understood ({error}): {_FORM}") from None
    if len(endpoints) > MAX_MEMBERS:
        raise ConfigError(f"an etcd URL names {len(endpoints)} members: name {MAX_MEMBERS} at most")
    prefix = prefix_of(path)
    return EtcdConnectionInfo(
        endpoints,
        prefix,
        user,
        password,
        tls,
        f"{SCHEME}://{','.join(endpoints)}{'/' if prefix else ''}{quote(prefix[:-1])}",
    )


def prefix_of(path: str) -> bytes:
    """Return the key prefix that the path of a URL names."""
    prefix = unquote(path.strip("/")).encode()
    return prefix + b"/" if prefix else b""


def _parameters(query: str) -> dict[str, str]:
    given = parse_qs(query, keep_blank_values=True)
    if unknown := given.keys() - _PARAMETERS:
        raise UrlPartError(unknown_parameter(min(unknown), query, _PARAMETERS))
    return {name: texts[-1] for name, texts in given.items()}
