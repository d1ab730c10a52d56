"""A member that speaks TLS alone, and one that asks who somebody is."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.etcd.fix_etcd import EtcdFleet
from tests.etcd.fix_server import EtcdCluster
from tests.private_server import give
from tests.sql.postgres.fix_tls import certify_server, make_authority, openssl


@dataclass(frozen=True, slots=True)
class TlsMember:
    """A running member that takes no connection without TLS, nor without a certificate of its authority."""

    cluster: EtcdCluster
    folder: Path

    def url(self, **files: str) -> str:
        """Return its URL, with the given files of the folder."""
        query = "&".join(f"{name}={self.folder / file}" for name, file in files.items())
        return self.cluster.url("app", query=f"?{query}")


def certify_client(folder: Path, authority: str) -> None:
    """Make `client.key`, and `client.crt` signed by the authority of that name in the same folder."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "client.key")
    openssl(folder, "req", "-new", *key, "-out", "client.csr", "-subj", "/CN=client")
    signer = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "2")
    openssl(folder, "x509", "-req", "-in", "client.csr", *signer, "-out", "client.crt")


@pytest.fixture
def tls_etcd(etcd_fleet: EtcdFleet) -> Iterator[TlsMember]:
    """Yield a member of the test's own that takes connections by TLS alone."""
    folder = etcd_fleet.new_folder("tls")
    folder.chmod(0o755)
    make_authority(folder, "authority")
    make_authority(folder, "other")
    certify_server(folder, "authority")
    certify_client(folder, "authority")
    cluster = etcd_fleet.new_cluster(1)
    (server,) = cluster.servers
    server.scheme = "https"
    server.settings |= {
        "cert-file": str(folder / "server.crt"),
        "key-file": str(folder / "server.key"),
        "trusted-ca-file": str(folder / "authority.crt"),
        "client-cert-auth": "true",
    }
    for path in folder.iterdir():
        give(path)
    with cluster:
        yield TlsMember(cluster, folder)


ROOT = "root:secret-of-root"


@pytest.fixture
def guarded_etcd(etcd_fleet: EtcdFleet) -> Iterator[EtcdCluster]:
    """Yield a member that lets user `app`, whose password is `p@ss/word`, at the keys that begin with `app/`."""
    with etcd_fleet.new_cluster(1) as cluster:
        for words in (
            ("user", "add", ROOT),
            ("user", "grant-role", "root", "root"),
            ("role", "add", "app"),
            ("role", "grant-permission", "app", "--prefix=true", "readwrite", "app/"),
            ("user", "add", "app:p@ss/word"),
            ("user", "grant-role", "app", "app"),
            ("auth", "enable"),
        ):
            cluster.ctl(*words)
        yield cluster
