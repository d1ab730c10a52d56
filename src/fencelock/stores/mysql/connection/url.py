"""A MySQL URL: what the clients need to connect, and what may be shown of it.

Promise: `mysql://user:password@host:port,host:port/database?ssl_mode=…` in all its parts, several hosts included; the
spelling that is shown names the servers and the database, never a user, a password or a file. A host or a port that is
left out is what `MYSQL_HOST` and `MYSQL_TCP_PORT` say, as to the servers' own programs. A parameter that is not known
is refused, so that a misspelt `ssl_mode` is no silent loss of TLS. Never: a connection made.
"""

import os
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from fencelock.errors import ConfigError

DEFAULT_PORT = 3306
DISABLED, PREFERRED, REQUIRED = "DISABLED", "PREFERRED", "REQUIRED"
VERIFY_CA, VERIFY_IDENTITY = "VERIFY_CA", "VERIFY_IDENTITY"
SSL_MODES = (DISABLED, PREFERRED, REQUIRED, VERIFY_CA, VERIFY_IDENTITY)
"""As the servers' own programs name them; PREFERRED takes TLS where the server offers it, and checks nothing."""
PARAMETERS = {"unix_socket", "ssl_mode", "ssl_ca", "ssl_cert", "ssl_key"}
_FORM = (
    "a MySQL URL is not understood ({reason}): write mysql://user:password@host:port/database?ssl_mode=…, with special "
    "characters as %XX"
)


class Address(NamedTuple):
    """One server: a host and a port, or a socket's path."""

    host: str
    port: int = DEFAULT_PORT
    unix_socket: str | None = None


class MySQLConnectionInfo(NamedTuple):
    """Where a URL leads: the addresses that are tried in turn, and `url`, one spelling for all that lead there."""

    addresses: tuple[Address, ...]
    user: str
    password: str
    database: str
    ssl_mode: str
    ssl_ca: str | None
    ssl_cert: str | None
    ssl_key: str | None
    url: str

    def __repr__(self) -> str:
        return f"Place({self.url!r})"

    @property
    def needs_tls(self) -> bool:
        """Whether a server without TLS is refused before anything secret is sent to it."""
        return self.ssl_mode not in {DISABLED, PREFERRED}

    def tls(self) -> ssl.SSLContext | None:
        """Return what TLS is to be made with, None for none; ConfigError if a file cannot be used."""
        if self.ssl_mode == DISABLED:
            return None
        is_checked = self.ssl_mode in {VERIFY_CA, VERIFY_IDENTITY}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.ssl_mode == VERIFY_IDENTITY
        context.verify_mode = ssl.CERT_REQUIRED if is_checked else ssl.CERT_NONE
        # Servers make themselves certificates that are not strict to the letter; Python 3.13 would refuse each.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        try:
            if self.ssl_ca is not None:
                context.load_verify_locations(self.ssl_ca)
            elif is_checked:
                context.load_default_certs()
            if self.ssl_cert is not None:
                context.load_cert_chain(self.ssl_cert, self.ssl_key)
        except OSError as error:
            raise ConfigError(f"{self.url}: a certificate or key cannot be used ({error.strerror or error})") from error
        return context


def parse_url(url: str) -> MySQLConnectionInfo:
    """Return where a mysql:// or mariadb:// URL leads; ConfigError if it is not understood."""
    _, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    login, _, servers = authority.rpartition("@")
    user, _, password = login.partition(":")
    database = unquote(path)
    if not database or "/" in database:
        raise ConfigError(_FORM.format(reason="it names no database"))
    given = _parameters(query)
    addresses = _addresses(servers, given.get("unix_socket"))
    return MySQLConnectionInfo(
        addresses,
        unquote(user),
        unquote(password),
        database,
        _ssl_mode(given),
        given.get("ssl_ca"),
        given.get("ssl_cert"),
        given.get("ssl_key"),
        _spelt(addresses, database),
    )


def _parameters(query: str) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError(_FORM.format(reason="its parameters are not name=value&name=value")) from None
    for name, _ in pairs:
        if name not in PARAMETERS:
            raise ConfigError(_FORM.format(reason=f"there is no parameter {name!r}; known: {sorted(PARAMETERS)}"))
    return dict(pairs)


def _ssl_mode(given: Mapping[str, str]) -> str:
    """Return the mode that is asked for; who names an authority, and no mode, wants the server's identity checked."""
    mode = given.get("ssl_mode", VERIFY_IDENTITY if "ssl_ca" in given else PREFERRED).upper()
    if mode not in SSL_MODES:
        raise ConfigError(_FORM.format(reason=f"ssl_mode {mode!r} is not one of {', '.join(SSL_MODES)}"))
    if "ssl_key" in given and "ssl_cert" not in given:
        raise ConfigError(_FORM.format(reason="ssl_key needs ssl_cert"))
    return mode


def _addresses(servers: str, unix_socket: str | None) -> tuple[Address, ...]:
    if unix_socket:
        return (Address("localhost", DEFAULT_PORT, unix_socket),)
    return tuple(_address(server) for server in servers.split(","))


def _address(server: str) -> Address:
    """Return one `host`, `host:port` or `[IPv6 address]:port`."""
    host, separator, port = server.rpartition(":")
    if not separator or server.endswith("]"):
        host, port = server, os.environ.get("MYSQL_TCP_PORT", str(DEFAULT_PORT))
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
        # What stands for a port may be a piece of a password with an @ or / in it: it is not repeated.
        raise ConfigError(_FORM.format(reason="a port is a number from 1 to 65535"))
    return Address(unquote(host.removeprefix("[").removesuffix("]")) or _default_host(), int(port))


def _default_host() -> str:
    return os.environ.get("MYSQL_HOST", "localhost")


def _spelt(addresses: tuple[Address, ...], database: str) -> str:
    servers = ",".join(_shown(address) for address in addresses)
    return f"mysql://{servers}/{quote(database, safe='')}"


def _shown(address: Address) -> str:
    if address.unix_socket is not None:
        return quote(address.unix_socket, safe="")
    host = f"[{address.host}]" if ":" in address.host else quote(address.host, safe="")
    return f"{host}:{address.port}"
