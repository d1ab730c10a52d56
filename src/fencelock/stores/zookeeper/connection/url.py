"""A ZooKeeper URL: what kazoo needs to connect, and what may be displayed of it.

    zookeeper://[user:password@]host[:port][,host[:port]…][/base][?name=value&…]

`base` is the path of the node below which everything is kept, `/fencelock` by default; it is not a chroot, and need not
exist. `user:password` logs in by the scheme `digest`, and creates nodes that nobody else may touch. Parameters:

    tick_ms    the servers' `tickTime`, 2000 by default; the length of a lease depends on it
    acl        scheme:id:permissions for each entry of the nodes' access list, as ZooKeeper's own client writes it;
               `creator`: all rights to the node's creator; `open`: all rights to everybody
    auth       scheme:credential, as often as needed, for schemes other than `digest`
    sasl       DIGEST-MD5 (with `user:password`) or GSSAPI, with `sasl_service` and `sasl_principal` as in pure-sasl
    tls        `true`; `ca`, `cert` and `key` are PEM files, as `stores/tls.py` says

Promise: the displayed URL names the servers and the base, never a user, a password or a file. An unknown parameter is
refused.
Never: a connection made.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id, Permissions

from fencelock.errors import ConfigError, MissingDependencyError
from fencelock.stores.addresses import UrlPartError, parse_address
from fencelock.stores.errors import unknown_parameter
from fencelock.stores.tls import TLS_FILES, TlsFiles, parse_tls

DEFAULT_PORT = 2181
DEFAULT_BASE = "/fencelock"
DEFAULT_TICK_MS = 2000
MIN_TICK_MS, MAX_TICK_MS = 10, 60_000
MAX_BASE_CHARACTERS = 1000
_SINGLE = {"tick_ms", "sasl", "sasl_service", "sasl_principal", "tls", *TLS_FILES}
_REPEATED = {"acl", "auth"}
_MECHANISMS = ("DIGEST-MD5", "GSSAPI")
_PERMISSIONS = {
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "a": Permissions.ADMIN,
}
_FORM = (
    "a ZooKeeper URL is not understood ({reason}): write zookeeper://user:password@host:port,host:port/base?tick_ms=…, "
    "with special characters as %XX"
)


class ZooKeeperConnectionInfo(NamedTuple):
    """A parsed URL: `hosts` in kazoo's form, and `url`, the one spelling for all URLs with the same servers and
    base.
    """

    hosts: str
    base: str
    tick_ms: int
    acl: tuple[ACL, ...]
    auth: tuple[tuple[str, str], ...]
    sasl: Mapping[str, str] | None
    tls: TlsFiles | None
    url: str

    def __repr__(self) -> str:
        return f"ZooKeeperConnectionInfo({self.url!r})"

    def settings(self) -> dict[str, Any]:
        """Return the arguments of a KazooClient, except its session's timeout and its handler."""
        return {
            "hosts": self.hosts,
            "default_acl": list(self.acl),
            "auth_data": list(self.auth),
        }


def parse_url(url: str) -> ZooKeeperConnectionInfo:
    """Return the connection info of a zookeeper:// URL; ConfigError if the URL is not understood."""
    _, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    login, _, servers = authority.rpartition("@")
    user, _, password = (unquote(part) for part in login.partition(":"))
    given, acl, auth = _parameters(query)
    base = base_of(slash + path)
    hosts = ",".join(_address(server) for server in servers.split(","))
    sasl = _sasl(given, user, password)
    if user and sasl is None:
        auth.insert(0, ("digest", f"{user}:{password}"))
    return ZooKeeperConnectionInfo(
        hosts,
        base,
        _tick_ms(given),
        _acl(acl, is_known=bool(auth or sasl)),
        tuple(auth),
        sasl,
        _tls(given),
        f"zookeeper://{hosts}{quote(base)}",
    )


def _parameters(query: str) -> tuple[dict[str, str], list[str], list[tuple[str, str]]]:
    """Return the parameters that are given once, the entries of the access list, and the credentials."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError(_FORM.format(reason="its parameters are not name=value&name=value")) from None
    for name, _ in pairs:
        if name not in _SINGLE | _REPEATED:
            raise ConfigError(_FORM.format(reason=unknown_parameter(name, query, _SINGLE | _REPEATED)))
    auth = [value.partition(":") for name, value in pairs if name == "auth"]
    if not all(scheme and credential for scheme, _, credential in auth):
        raise ConfigError(_FORM.format(reason="auth is written scheme:credential"))
    return (
        {name: value for name, value in pairs if name in _SINGLE},
        [value for name, value in pairs if name == "acl"],
        [(scheme, credential) for scheme, _, credential in auth],
    )


def _address(server: str) -> str:
    """Return one `host:port` or `[IPv6 address]:port`."""
    try:
        return parse_address(server, DEFAULT_PORT)
    except UrlPartError as error:
        raise ConfigError(_FORM.format(reason=error)) from None


def base_of(path: str) -> str:
    """Return the base that a path means, DEFAULT_BASE if it is empty; ConfigError if it cannot be a base."""
    parts = [unquote(part) for part in path.split("/") if part]
    base = "/" + "/".join(parts) if parts else DEFAULT_BASE
    if any(part in {".", ".."} or "/" in part for part in parts) or not base.isprintable():
        raise ConfigError(_FORM.format(reason="its path cannot be a ZooKeeper path"))
    if len(base) > MAX_BASE_CHARACTERS:
        raise ConfigError(_FORM.format(reason=f"its path has more than {MAX_BASE_CHARACTERS} characters"))
    return base


def _tick_ms(given: Mapping[str, str]) -> int:
    text = given.get("tick_ms", str(DEFAULT_TICK_MS))
    if not text.isascii() or not text.isdigit() or not MIN_TICK_MS <= int(text) <= MAX_TICK_MS:
        reason = f"tick_ms is the servers' tickTime, from {MIN_TICK_MS} to {MAX_TICK_MS} milliseconds"
        raise ConfigError(_FORM.format(reason=reason))
    return int(text)


def _tls(given: Mapping[str, str]) -> TlsFiles | None:
    try:
        return parse_tls(given)
    except UrlPartError as error:
        raise ConfigError(_FORM.format(reason=error)) from None


def _sasl(given: Mapping[str, str], user: str, password: str) -> Mapping[str, str] | None:
    """Return the options for pure-sasl; None without SASL."""
    mechanism = given.get("sasl")
    if mechanism is None:
        return None
    if mechanism not in _MECHANISMS:
        raise ConfigError(_FORM.format(reason=f"sasl is {' or '.join(_MECHANISMS)}"))
    if find_spec("puresasl") is None:
        raise MissingDependencyError("sasl=… needs pure-sasl, which is not installed: pip install pure-sasl")
    fields = {"mechanism": mechanism}
    if user:
        fields |= {"username": user, "password": password}
    return fields | {name.removeprefix("sasl_"): given[name] for name in given if name.startswith("sasl_")}


def _acl(entries: list[str], *, is_known: bool) -> tuple[ACL, ...]:
    """Return the access list of every created node; users who log in keep their nodes to themselves."""
    if not entries:
        entries = ["creator" if is_known else "open"]
    if "creator" in entries and not is_known:
        raise ConfigError(_FORM.format(reason="acl=creator needs user:password, auth or sasl"))
    return tuple(one for entry in entries for one in _entry(entry))


def _entry(entry: str) -> list[ACL]:
    if entry == "open":
        return list(OPEN_ACL_UNSAFE)
    if entry == "creator":
        return list(CREATOR_ALL_ACL)
    scheme, _, rest = entry.partition(":")
    identity, _, letters = rest.rpartition(":")
    if not scheme or not identity or not letters or set(letters) - set(_PERMISSIONS):
        raise ConfigError(_FORM.format(reason="acl is open, creator, or scheme:id:permissions with letters of cdrwa"))
    return [ACL(sum(_PERMISSIONS[letter] for letter in set(letters)), Id(scheme, identity))]
