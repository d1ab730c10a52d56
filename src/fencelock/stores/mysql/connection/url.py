"""A MySQL URL: the parameters that the clients connect with, and a form that may be shown.

Promise: all parts of `mysql://user:password@host:port,host:port/database?ssl_mode=…` work, including several hosts. The
form that is shown names the servers and the database, never a user, a password or a file. A missing host or port comes
from `MYSQL_HOST` and `MYSQL_TCP_PORT`, as in the servers' own programs. An unknown parameter is refused, so that a
misspelt `ssl_mode` does not silently drop TLS. Never opens a connection.
"""

import os
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from fencelock.errors import ConfigError
from fencelock.stores.errors import unknown_parameter

DEFAULT_PORT = 3306
DISABLED, PREFERRED, REQUIRED = "DISABLED", "PREFERRED", "REQUIRED"
VERIFY_CA, VERIFY_IDENTITY = "VERIFY_CA", "VERIFY_IDENTITY"
SSL_MODES = (DISABLED, PREFERRED, REQUIRED, VERIFY_CA, VERIFY_IDENTITY)
"""The names of the servers' own programs. PREFERRED uses TLS where the server offers it, and verifies nothing."""
PARAMETERS = {"unix_socket", "ssl_mode", "ssl_ca", "ssl_cert", "ssl_key"}
_FORM = (
    "a MySQL URL is not understood ({reason}): write mysql://user:password@host:port/database?ssl_mode=…, with special "
    "characters as %XX"
)


class Address(NamedTuple):
    """One server: a host and a port, or the path of a socket."""

    host: str
    port: int = DEFAULT_PORT
    unix_socket: str | None = None


class MySQLConnectionInfo(NamedTuple):
    """What a URL stands for: the addresses to try in turn, and `url`, the same for all URLs of one database."""

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
        return f"MySQLConnectionInfo({self.url!r})"

    @property
    def needs_tls(self) -> bool:
        """Whether to refuse a server without TLS before anything secret is sent to it."""
        return self.ssl_mode not in {DISABLED, PREFERRED}

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context, None for no TLS; ConfigError if a file cannot be used."""
        if self.ssl_mode == DISABLED:
            return None
        is_checked = self.ssl_mode in {VERIFY_CA, VERIFY_IDENTITY}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.ssl_mode == VERIFY_IDENTITY
        context.verify_mode = ssl.CERT_REQUIRED if is_checked else ssl.CERT_NONE
        # Certificates that the servers generate break RFC 5280 in details; Python 3.13 would refuse every one.
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
    """Return the connection info of a mysql:// or mariadb:// URL; ConfigError if the URL is malformed."""
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
        _format(addresses, database),
    )


def _parameters(query: str) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError(_FORM.format(reason="its parameters are not name=value&name=value")) from None
    for name, _ in pairs:
        if name not in PARAMETERS:
            raise ConfigError(_FORM.format(reason=unknown_parameter(name, query, PARAMETERS)))
    return dict(pairs)


def _ssl_mode(given: Mapping[str, str]) -> str:
    """Return the URL's mode; a URL with `ssl_ca` and no mode means VERIFY_IDENTITY."""
    mode = given.get("ssl_mode", VERIFY_IDENTITY if "ssl_ca" in given else PREFERRED).upper()
    if mode not in SSL_MODES:
        raise ConfigError(_FORM.format(reason=f"ssl_mode is one of {', '.join(SSL_MODES)}"))
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
        # The text may be part of a password that contains @ or /, so the message does not repeat it.
        raise ConfigError(_FORM.format(reason="a port is a number from 1 to 65535"))
    return Address(unquote(host.removeprefix("[").removesuffix("]")) or _default_host(), int(port))


def _default_host() -> str:
    return os.environ.get("MYSQL_HOST", "localhost")


def _format(addresses: tuple[Address, ...], database: str) -> str:
    servers = ",".join(_shown(address) for address in addresses)
    return f"mysql://{servers}/{quote(database, safe='')}"


def _shown(address: Address) -> str:
    if address.unix_socket is not None:
        return quote(address.unix_socket, safe="")
    host = f"[{address.host}]" if ":" in address.host else quote(address.host, safe="")
    return f"{host}:{address.port}"


_SETTINGS = (
    "SET NAMES utf8mb4, autocommit = 1, completion_type = 0, time_zone = '+00:00', "
    "sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_safe_updates = 0, "
    "innodb_lock_wait_timeout = {lock_wait_s}, "
    "/*M! tx_isolation = 'READ-COMMITTED' */ /*!80003 transaction_isolation = 'READ-COMMITTED' */"
)
"""The two servers name the isolation level differently, and each executes only the comment that is meant for it. The
SQL modes are exactly these: a routine keeps the modes under which it was created, and some of the server's own change
the meaning of `NOT a <=> b`.
"""


def client_arguments(
    info: MySQLConnectionInfo, address: Address, *, connect_s: float, lock_wait_s: int
) -> dict[str, Any]:
    """Return the arguments of PyMySQL's connection to one of the addresses."""
    tls = None if address.unix_socket is not None and info.ssl_mode == PREFERRED else info.tls()
    return {
        "host": address.host,
        "port": address.port,
        "unix_socket": address.unix_socket,
        "user": info.user or None,
        "password": info.password.encode(),
        "database": info.database,
        "charset": "utf8mb4",
        "autocommit": None,
        "init_command": _SETTINGS.format(lock_wait_s=lock_wait_s),
        "ssl": tls,
        "ssl_disabled": tls is None,
        "connect_timeout": connect_s,
        "read_timeout": connect_s,
        "write_timeout": connect_s,
        "program_name": "fencelock",
    }


def async_client_arguments(
    info: MySQLConnectionInfo, address: Address, *, connect_s: float, lock_wait_s: int
) -> dict[str, Any]:
    """Return the arguments of aiomysql's connection, which takes a password as text in Latin 1."""
    given = client_arguments(info, address, connect_s=connect_s, lock_wait_s=lock_wait_s)
    same = ("host", "port", "unix_socket", "user", "charset", "autocommit", "init_command", "ssl", "program_name")
    return {
        **{name: given[name] for name in same},
        "db": info.database,
        "password": info.password.encode().decode("latin1"),
    }
