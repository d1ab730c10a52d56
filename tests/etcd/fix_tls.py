"""A member that accepts TLS only, and a member that requires a login."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fencelock_lab.servers.etcd import EtcdCluster, EtcdFleet
from fencelock_lab.servers.programs import give
from tests.support.certificates import certify_client, certify_server, make_authority


@dataclass(frozen=True, slots=True)
class TlsMember:
    """A running member that accepts only TLS connections with a certificate of its authority."""

    cluster: EtcdCluster
    folder: Path

    def url(self, **files: str) -> str:
        """Return its URL, with the given files of the folder."""
        query = "&".join(f"{name}={self.folder / file}" for name, file in files.items())
        return self.cluster.url("app", query=f"?{query}")


@pytest.fixture
def tls_etcd(etcd_fleet: EtcdFleet) -> Iterator[TlsMember]:
    """Yield a member of the test's own that accepts TLS only."""
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
    """Yield a member where user `app`, with password `p@ss/word`, may use the keys that begin with `app/`."""
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
