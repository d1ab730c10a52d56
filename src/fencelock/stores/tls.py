"""TLS by the parameters of a URL, which mean the same at each store that leaves them to fencelock (etcd, Redis,
ZooKeeper).

    tls     `true` or `false`; each of the others implies it. (Redis has the scheme `rediss` instead.)
    ca      a PEM file with the only authorities that are trusted; without it, the system's are
    cert    a PEM file with the client's own certificate, and with its key unless `key` names another file

Promise: whatever is given, the server's certificate and its name are checked. No file is read before a connection is
opened.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fencelock.errors import ConfigError
from fencelock.stores.addresses import UrlPartError

TLS_FILES = ("ca", "cert", "key")
_HASHED = "????????.[0-9]*"
"""What OpenSSL reads in a folder of authorities."""


class TlsFiles(NamedTuple):
    """The files of a TLS connection; None: the system's authorities, or no certificate of the client's own."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def anonymous(self) -> "TlsFiles":
        """Return the same without the client's own certificate."""
        return TlsFiles(self.ca)

    def context(self, url: str) -> ssl.SSLContext:
        """Return the TLS context; ConfigError if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            # Authorities that an operator makes break RFC 5280 in details; Python 3.13 would refuse them.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            files = ", ".join(filter(None, self))
            raise ConfigError(f"{url}: a file of {files} cannot be used for TLS ({error.strerror or error})") from error
        return context


def parse_tls(given: Mapping[str, str], *, is_on: bool = False) -> TlsFiles | None:
    """Return the files that a URL's parameters name, None without TLS; UrlPartError if they contradict each other.

    `is_on`: the scheme stands for TLS.
    """
    value = given.get("tls", "").lower()
    if value not in {"", "true", "false"}:
        raise UrlPartError("tls is true or false")
    files = TlsFiles(*(given.get(name) for name in TLS_FILES))
    if value == "false" and files != TlsFiles():
        raise UrlPartError("ca, cert and key need TLS, which tls=false forbids")
    if files.key is not None and files.cert is None:
        raise UrlPartError("key needs cert")
    return files if is_on or value == "true" or files != TlsFiles() else None


def system_authorities() -> bytes:
    """Return the system's authorities as PEM, for a client library that would trust others of its own."""
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.cafile)] if paths.cafile else sorted(Path(paths.capath or "/nonexistent").glob(_HASHED))
    found = b"\n".join(file.read_bytes() for file in files)
    if not found:
        raise ConfigError("the system has no authorities that TLS could trust: name a file of them by ca=FILE")
    return found
