"""The roles that `fencelock protect --print-policy` prints: they let an application do its work, and poison nobody."""

import os
import subprocess

import pytest

import fencelock
from fencelock.errors import SourceError
from fencelock.stores.etcd.source.layout import EtcdLayout
from fencelock_lab.servers.etcd import EtcdCluster, ctl_environment
from tests.cli.program import Program, program
from tests.etcd.fix_tls import ROOT
from tests.etcd.guarded import Direct
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.helpers import DEADLINE_S

__all__ = ["program"]
TTL = 60.0
GUARDS, LOCKS = "data?locks=locks", "locks"


@pytest.fixture
def limited(own_etcd: EtcdCluster, program: Program) -> EtcdCluster:
    """Return a cluster that requires logins, after the printed scripts have run for user and role `app`."""
    fencelock.connect(own_etcd.url(LOCKS)).install()
    words = ("--resource", RESOURCE, "--lock", LOCK, "--roles", "app", "--print-policy")
    printed = program.inside("protect", own_etcd.url(GUARDS), *words, "--source", own_etcd.url(LOCKS))
    assert printed.returncode == 0, printed.stderr
    for _ in range(2):  # It may run again.
        run_script(own_etcd, printed.stdout)
    own_etcd.ctl("user", "add", ROOT)
    own_etcd.ctl("user", "grant-role", "root", "root")
    own_etcd.ctl("user", "add", "app:secret")
    own_etcd.ctl("user", "grant-role", "app", "app")
    own_etcd.ctl("auth", "enable")
    return own_etcd


def run_script(cluster: EtcdCluster, script: str) -> None:
    environment = {**os.environ, **ctl_environment(), "ETCDCTL_ENDPOINTS": cluster.addresses}
    subprocess.run(
        ["sh", "-e"], input=script, env=environment, check=True, capture_output=True, text=True, timeout=DEADLINE_S
    )


def url(cluster: EtcdCluster, path: str, login: str = "app:secret") -> str:
    return cluster.url(path, login=login)


def test_the_printed_roles_let_an_application_lock_and_write_its_resource(limited: EtcdCluster):
    with fencelock.connect(url(limited, LOCKS)) as source:
        lock = source.lock(LOCK, ttl=TTL, timeout=DEADLINE_S)
        guard = fencelock.guard(url(limited, GUARDS), resource=RESOURCE, lock=LOCK)
        with lock as lease:
            for name in ("%another-", "a/b"):
                with source.lock(name, ttl=TTL):
                    assert source.info(name).is_held
            assert source.check(lease.sequencer).is_current
            with guard.transaction(lease) as txn:
                txn.put(f"data/{RESOURCE}/value", "mine")
                assert txn.get_prefix(f"data/{RESOURCE}/other") == {}
            with fencelock.dispatch(lease, guard, need=1.0, key="mail") as effect:
                effect.result = "sent"
            guard.close(lease)
        with pytest.raises(fencelock.StaleTokenError), guard.transaction(lease.sequencer):
            pass
        assert {info.name for info in source.locks()} == {LOCK, "%another-", "a/b"}


def test_the_printed_roles_keep_an_application_from_other_marks_and_from_the_source(limited: EtcdCluster):
    app = Direct(url(limited, "data"))
    layout = EtcdLayout(b"locks/")
    with pytest.raises(SourceError, match="does not permit"):
        fencelock.guard(url(limited, "data"), resource="salaries", lock=LOCK).seal(HandmadeLease(5))
    for key in (
        "data/.fencelock/marks/salaries",
        f"data/.fencelock/marks/{RESOURCE}2",
        "data/.fencelock/floors",
        "data/.fencelock/effects/salaries/mail",
        "data/salaries/value",
        layout.record.decode(),
        layout.last_break(LOCK).decode(),
        layout.audit("x").decode(),
    ):
        for attempt in (lambda key=key: app.put(key, "forged"), lambda key=key: app.delete(key)):
            with pytest.raises(SourceError, match="does not permit"):
                attempt()
    with fencelock.connect(url(limited, LOCKS)) as source:
        with pytest.raises(SourceError, match="does not permit"):
            source.raise_epoch(reason="a test")
        with pytest.raises(SourceError, match="does not permit"):
            source.break_lock(LOCK, reason="a test")


def test_an_operator_of_a_limited_cluster_breaks_and_seals(limited: EtcdCluster):
    with fencelock.connect(url(limited, LOCKS)) as source, fencelock.connect(url(limited, LOCKS, ROOT)) as operators:
        held = source.lock(LOCK, ttl=TTL).acquire()
        broken = operators.break_lock(LOCK, reason="a test")
        fencelock.guard(url(limited, GUARDS, ROOT), resource=RESOURCE, lock=LOCK).outrank(broken, reason="a test")
        guard = fencelock.guard(url(limited, GUARDS), resource=RESOURCE, lock=LOCK)
        with pytest.raises(fencelock.FencelockError):
            guard.seal(held)
        held.release()
        with source.lock(LOCK, ttl=TTL) as following:
            guard.seal(following)
