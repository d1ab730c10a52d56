"""Certificates for servers that speak TLS, by an authority that a test makes."""

import subprocess
from pathlib import Path

from fencelock_lab.servers.programs import give
from tests.support.programs import need

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")


def openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run([need("openssl"), *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def make_authority(folder: Path, name: str) -> Path:
    """Make an authority's key and certificate, and return the certificate."""
    key = (*_NEW_KEY, f"{name}.key")
    openssl(folder, "req", "-x509", *key, "-out", f"{name}.crt", "-days", "2", "-subj", f"/CN={name}")
    return folder / f"{name}.crt"


def certify_server(folder: Path, authority: str) -> None:
    """Make `server.key`, and `server.crt` signed by the authority of that name in the same folder."""
    (folder / "names").write_text("subjectAltName = DNS:localhost, IP:127.0.0.1\n")
    _certify(folder, authority, "server", "/CN=localhost", "-extfile", "names")
    (folder / "server.key").chmod(0o600)
    give(folder / "server.key")


def certify_client(folder: Path, authority: str) -> None:
    """Make `client.key`, and `client.crt` signed by the authority of that name in the same folder."""
    _certify(folder, authority, "client", "/CN=client")


def _certify(folder: Path, authority: str, name: str, subject: str, *options: str) -> None:
    openssl(folder, "req", "-new", *_NEW_KEY, f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
    signer = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "2")
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signer, *options, "-out", f"{name}.crt")
