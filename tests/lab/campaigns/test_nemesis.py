"""What the nemesis has begun it brings to its end, also when something goes wrong in between."""

from types import SimpleNamespace
from typing import Any

import pytest

from fencelock_lab.campaigns.history import SERVER_FREEZE, SERVER_ISOLATE
from fencelock_lab.campaigns.nemesis import Nemesis
from fencelock_lab.campaigns.strikes import ALL, Strike

DEADLINE_S = 20.0


class FaultError(Exception):
    """What goes wrong in these tests."""


class FakeServer:
    def __init__(self, name: str, *, is_stubborn: bool = False) -> None:
        self.name = name
        self.is_stubborn = is_stubborn
        self.is_frozen = False

    def freeze(self) -> None:
        self.is_frozen = True
        if self.is_stubborn:
            raise FaultError(self.name)

    def thaw(self) -> None:
        self.is_frozen = False


class FakeSetup:
    """Servers whose first one leads, and goes on to lead whatever happens."""

    name = "fake"
    guard_url = "fake://"
    longest_freeze_s = float("inf")

    def __init__(self, *servers: FakeServer) -> None:
        self.servers = servers
        self.isolated: str | None = None
        self.network = SimpleNamespace(isolate=self._isolate)

    def _isolate(self, name: str | None) -> None:
        self.isolated = name

    def leader(self) -> FakeServer:
        return self.servers[0]

    def wait_for_leader_but(self, isolated: FakeServer) -> None:
        raise FaultError(isolated.name)


def strike(setup: Any, kind: str) -> None:
    """Let a nemesis strike once, and raise what went wrong."""
    settings: Any = SimpleNamespace(guard=None, faults=(kind,), seed=1, ttl=0.5, patience=0.0, locks=0)
    recorder: Any = SimpleNamespace(note=lambda *_args, **_facts: None)
    with Nemesis(setup, settings, recorder, [Strike(0.0, kind, aim=ALL)]) as nemesis:
        nemesis.begin(dict)
        nemesis._thread.join(DEADLINE_S)
    nemesis.check()


def test_a_freeze_that_fails_halfway_leaves_no_server_frozen() -> None:
    servers = [FakeServer("one"), FakeServer("two", is_stubborn=True), FakeServer("three")]
    with pytest.raises(FaultError, match="two"):
        strike(FakeSetup(*servers), SERVER_FREEZE)
    assert [server.name for server in servers if server.is_frozen] == []


def test_a_server_that_cannot_be_thawed_keeps_no_other_one_frozen() -> None:
    servers = [FakeServer("one"), FakeServer("two"), FakeServer("three")]

    def refuse() -> None:
        raise FaultError("two")

    servers[1].thaw = refuse  # type: ignore[method-assign]
    with pytest.raises(FaultError, match="two"):
        strike(FakeSetup(*servers), SERVER_FREEZE)
    assert [server.name for server in servers if server.is_frozen] == ["two"]


def test_an_isolation_under_which_no_other_server_leads_is_ended() -> None:
    setup = FakeSetup(FakeServer("one"), FakeServer("two"))
    with pytest.raises(FaultError, match="one"):
        strike(setup, SERVER_ISOLATE)
    assert setup.isolated is None
