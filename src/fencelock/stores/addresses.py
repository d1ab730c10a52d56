"""The login and the servers in the URL of a cluster: `user:password@host[:port][,host[:port]…]`, an IPv6 address in
brackets.

Promise: pure. An error message never repeats text that it could not parse: it may be part of a password with an @ or
a / in it.
"""

from typing import NamedTuple
from urllib.parse import unquote

MAX_PORT = 65_535


class UrlPartError(ValueError):
    """A part of a URL cannot be parsed; the message says why. Never leaves the stores."""


class Authority(NamedTuple):
    """The part of a URL between `//` and the path: who logs in, and the text of the servers' addresses."""

    user: str | None
    password: str | None
    servers: str


def parse_authority(text: str, *, needs_user: bool = True) -> Authority:
    """Return the parts of an authority; UrlPartError if its login is not whole. `needs_user`: a password alone is no
    login.
    """
    login, at, servers = text.rpartition("@")
    user, _, password = login.partition(":")
    if at and not (password and (user or not needs_user)):
        raise UrlPartError("it names a user without a password, or the other way round")
    return Authority(unquote(user) or None, unquote(password) or None, servers)


def parse_address(member: str, default_port: int) -> str:
    """Return one member as `host:port`; UrlPartError if it is not an address."""
    host, port = _split(member, default_port)
    if host in ("", "[]"):
        raise UrlPartError("it names no host")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= MAX_PORT:
        raise UrlPartError(f"a port is a number from 1 to {MAX_PORT}")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if set(host[1:-1] if is_bracketed else host) & set("[]") or (":" in host and not is_bracketed):
        raise UrlPartError("an IPv6 address stands in brackets, as in [::1]:80")
    return f"{host}:{port}"


def _split(member: str, default_port: int) -> tuple[str, str]:
    host, colon, port = member.rpartition(":")
    # A colon inside brackets belongs to the IPv6 address: such a member has no port.
    if not colon or member.endswith("]"):
        return member, str(default_port)
    return host, port
