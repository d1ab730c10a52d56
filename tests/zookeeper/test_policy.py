"""The access lists that `fencelock protect --print-policy` prints: they let an application do its work, and poison
nobody.
"""

import os
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_digest_acl_credential

import fencelock
from fencelock.errors import SourceError
from fencelock.protocol import FindOldMarks
from fencelock.stores.registry import guard_store
from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.cli.program import Program, program
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.programs import need
from tests.zookeeper.fix_zookeeper import fresh_base

__all__ = ["program"]
TTL = 30.0
ZKCLI = "/usr/share/zookeeper/bin/zkCli.sh"
CLI_S = 60.0


def digest_of(user: str) -> str:
    return f"digest:{make_digest_acl_credential(user, 'secret')}"


class Limited(NamedTuple):
    """A guard and a source whose nodes have the printed lists, and clients of both users."""

    server: ZooKeeperServer
    base: str
    app: KazooClient

    @property
    def locks(self) -> str:
        return f"{self.base}/locks"

    def guard_url(self, user: str) -> str:
        return self.server.url(f"{self.base}/data", user=user, password="secret") + f"&locks={self.locks}"

    def source_url(self, user: str) -> str:
        operator = f"&acl=creator&acl={digest_of('operator')}:cdrwa" if user == "app" else ""
        return self.server.url(self.locks, user=user, password="secret") + operator


@pytest.fixture(scope="module")
def limited(zookeeper_fleet, tmp_path_factory) -> Iterator[Limited]:
    """Yield what the printed scripts have limited for the user `app`, run by the user `operator`."""
    server = zookeeper_fleet.shared()
    app = KazooClient(server.address, auth_data=[("digest", "app:secret")])
    app.start()
    made = Limited(server, fresh_base(), app)
    fencelock.connect(made.source_url("operator")).install()
    words = ("--resource", RESOURCE, "--lock", LOCK, "--roles", digest_of("app"), "--print-policy")
    printed = Program(tmp_path_factory.mktemp("policy")).inside(
        "protect", made.guard_url("operator"), *words, "--source", made.source_url("operator")
    )
    assert printed.returncode == 0, printed.stderr
    run_script(printed.stdout)
    yield made
    app.stop()
    app.close()


def run_script(script: str) -> None:
    path = os.pathsep.join((os.path.dirname(need(ZKCLI)), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "OPERATOR": "operator:secret"}
    subprocess.run(
        ["sh", "-e"], input=script, env=environment, check=True, capture_output=True, text=True, timeout=CLI_S
    )


def test_the_printed_lists_let_an_application_lock_and_write_its_resource(limited: Limited) -> None:
    with fencelock.connect(limited.source_url("app")) as source:
        guard = fencelock.guard(limited.guard_url("app"), resource=RESOURCE, lock=LOCK)
        node = f"{limited.base}/data/{RESOURCE}/value"
        for value in (b"first", b"second"):
            with source.lock(LOCK, ttl=TTL) as lease:
                assert source.check(lease.sequencer).is_current
                with guard.transaction(lease) as txn:
                    if value == b"first":
                        txn.create(node, value)
                    else:
                        txn.set(node, value)
                if value == b"second":
                    with fencelock.dispatch(lease, guard, need=1.0, key="mail") as effect:
                        effect.result = "sent"
                guard.close(lease)
        with pytest.raises(fencelock.StaleTokenError), guard.transaction(lease.sequencer):
            pass
        assert limited.app.get(node)[0] == b"second"
        assert [info.name for info in source.locks()] == [LOCK]


def test_the_printed_lists_keep_an_application_from_other_marks_and_from_the_source(limited: Limited) -> None:
    app, data, locks = limited.app, f"{limited.base}/data", f"{limited.locks}/.fencelock"
    marks = f"{data}/.fencelock/marks"
    with pytest.raises(SourceError, match="does not permit"):
        fencelock.guard(limited.guard_url("app"), resource="salaries", lock=LOCK).seal(HandmadeLease(5))
    for attempt in (
        lambda: app.create(f"{marks}/salaries", b"forged"),
        lambda: app.delete(f"{marks}/{RESOURCE}", recursive=True),
        lambda: app.set(marks, b"forged"),
        lambda: app.set(f"{data}/.fencelock/floors", b"forged"),
        lambda: app.delete(f"{data}/.fencelock/floors"),
        lambda: app.create(f"{data}/.fencelock/floors/child", b"forged"),
        lambda: app.create(f"{data}/.fencelock/effects/salaries", b"forged"),
        lambda: app.create(f"{data}/salaries", b"forged"),
        lambda: app.set_acls(f"{marks}/{RESOURCE}", app.get_acls(f"{marks}/{RESOURCE}")[0]),
        lambda: app.set(f"{locks}/source", b"forged"),
        lambda: app.create(f"{locks}/breaks/x", b"forged"),
        lambda: app.delete(f"{locks}/source"),
    ):
        with pytest.raises(NoAuthError):
            attempt()
    with fencelock.connect(limited.source_url("app")) as source, pytest.raises(SourceError, match="does not permit"):
        source.raise_epoch(reason="a test")


def test_a_node_is_made_with_its_list(limited: Limited, program: Program) -> None:
    """Before any other list is set, nobody makes a mark, or an entry of the audit."""
    base = fresh_base()
    url = limited.server.url(f"{base}/data", user="operator", password="secret")
    words = ("--resource", RESOURCE, "--lock", LOCK, "--roles", digest_of("app"), "--print-policy")
    printed = program.inside("protect", url, *words).stdout
    run_script("\n".join(line for line in printed.splitlines() if not line.startswith("setAcl")))
    stranger = KazooClient(limited.server.address, auth_data=[("digest", "stranger:secret")])
    stranger.start()
    try:
        for path in ("marks/salaries", f"marks/{RESOURCE}/child", "floors/child", "audit/1"):
            with pytest.raises(NoAuthError):
                stranger.create(f"{base}/data/.fencelock/{path}", b"forged")
    finally:
        stranger.stop()
        stranger.close()


def test_an_operator_of_limited_nodes_breaks_and_moves_marks(limited: Limited) -> None:
    with (
        fencelock.connect(limited.source_url("app")) as source,
        fencelock.connect(limited.source_url("operator")) as operators,
    ):
        held = source.lock("another", ttl=TTL).acquire()
        broken = operators.break_lock("another", reason="a test")
        assert broken.holder is not None
        held.release()
        with source.lock("another", ttl=TTL) as following:
            assert following.token > broken.token
        salaries = fencelock.guard(limited.guard_url("operator"), resource="salaries", lock=LOCK)
        salaries.raise_to(operators, reason="a test")
        assert salaries.mark().token >= broken.token


def test_a_purge_leaves_the_mark_that_its_application_could_not_make_again(limited: Limited) -> None:
    operator = limited.guard_url("operator")
    with fencelock.connect(limited.source_url("app")) as source, source.lock(LOCK, ttl=TTL) as lease:
        fencelock.guard(limited.guard_url("app"), resource=RESOURCE, lock=LOCK).seal(lease)
        fencelock.guard(operator, resource="order:42", lock=LOCK).seal(lease)
        found = guard_store(operator).connect().perform(FindOldMarks(lease.sequencer.source_id, 0))
    resources = {mark.resource for mark in found}
    assert "order:42" in resources
    assert RESOURCE not in resources


def test_a_role_that_is_no_user_of_zookeeper_is_named(limited: Limited, program: Program) -> None:
    words = ("--resource", RESOURCE, "--lock", LOCK, "--print-policy")
    refused = program.inside("protect", limited.guard_url("app"), *words, "--roles", "app")
    assert refused.returncode == 64
    assert "digest:NAME:HASH" in refused.stderr
    assert program.inside("protect", limited.guard_url("app"), *words).returncode == 64
