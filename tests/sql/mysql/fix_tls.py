"""A MariaDB server that speaks TLS, with a certificate of an authority made for the test session, and a wrong one."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fencelock_lab.servers.mariadb import MariaDBFleet, MariaDBServer
from tests.support.certificates import certify_server, make_authority


@dataclass(frozen=True, slots=True)
class TlsServer:
    """A running server that offers TLS, under the names 127.0.0.1 and localhost."""

    server: MariaDBServer
    authority: Path
    """The certificate to trust: `ssl_ca`."""
    other_authority: Path
    """A certificate that has signed nothing."""


@pytest.fixture
def tls_mysql(mysql_fleet: MariaDBFleet) -> Iterator[TlsServer]:
    """Yield a server of the test's own that takes connections with and without TLS."""
    folder = mysql_fleet.new_folder("tls")
    authority, other = make_authority(folder, "authority"), make_authority(folder, "other")
    certify_server(folder, "authority")
    server = mysql_fleet.new_server()
    server.settings |= {"ssl_cert": str(folder / "server.crt"), "ssl_key": str(folder / "server.key")}
    with server:
        yield TlsServer(server, authority, other)
