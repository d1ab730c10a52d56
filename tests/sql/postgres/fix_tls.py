"""A server that speaks TLS, with a certificate of an authority made for the test session, and a wrong authority."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fencelock_lab.servers.postgres import PostgresFleet, PostgresServer
from tests.support.certificates import certify_server, make_authority


@dataclass(frozen=True, slots=True)
class TlsServer:
    """A running server that offers TLS, under the names 127.0.0.1 and localhost."""

    server: PostgresServer
    authority: Path
    """The certificate to trust: `sslrootcert`."""
    other_authority: Path
    """A certificate that has signed nothing."""


@pytest.fixture
def tls_postgres(postgres_fleet: PostgresFleet) -> Iterator[TlsServer]:
    """Yield a server of the test's own that takes connections with and without TLS."""
    # The wheel's programs are built without TLS.
    folder = postgres_fleet.new_folder("tls")
    authority, other = make_authority(folder, "authority"), make_authority(folder, "other")
    certify_server(folder, "authority")
    server = postgres_fleet.copied_server("15")
    server.settings |= {
        "ssl": "on",
        "ssl_cert_file": str(folder / "server.crt"),
        "ssl_key_file": str(folder / "server.key"),
    }
    with server:
        yield TlsServer(server, authority, other)
