"""A server that speaks TLS, with a certificate of an authority made for the test session, and a wrong authority."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.private_server import give
from tests.servers import need
from tests.sql.postgres.fix_postgres import Fleet
from tests.sql.postgres.fix_server import PostgresServer


@dataclass(frozen=True, slots=True)
class TlsServer:
    """A running server that offers TLS, under the names 127.0.0.1 and localhost."""

    server: PostgresServer
    authority: Path
    """The certificate to trust: `sslrootcert`."""
    other_authority: Path
    """A certificate that has signed nothing."""


def openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run([need("openssl"), *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def make_authority(folder: Path, name: str) -> Path:
    """Make an authority's key and certificate, and return the certificate."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key")
    openssl(folder, "req", "-x509", *key, "-out", f"{name}.crt", "-days", "2", "-subj", f"/CN={name}")
    return folder / f"{name}.crt"


def certify_server(folder: Path, authority: str) -> None:
    """Make `server.key`, and `server.crt` signed by the authority of that name in the same folder."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "server.key")
    openssl(folder, "req", "-new", *key, "-out", "server.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName = DNS:localhost, IP:127.0.0.1\n")
    signer = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "2")
    openssl(folder, "x509", "-req", "-in", "server.csr", *signer, "-extfile", "names", "-out", "server.crt")
    (folder / "server.key").chmod(0o600)
    give(folder / "server.key")


@pytest.fixture
def tls_postgres(postgres_fleet: Fleet) -> Iterator[TlsServer]:
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
