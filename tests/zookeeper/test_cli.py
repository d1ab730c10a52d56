"""The commands at a ZooKeeper source."""

import json
import socket
import time
from typing import Any

import pytest

import fencelock
from fencelock.stores.zookeeper.source.sessions import MAX_OPEN_S, MAX_TRY_S
from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.cli.program import Program, program
from tests.support.helpers import DEADLINE_S
from tests.zookeeper.fix_zookeeper import fresh_base

__all__ = ["program"]
START_S = 15.0
"""What a loaded machine may take to start and end a command. Without a bound it would wait for the ttl, and longer."""


class Commands:
    """The program at one source."""

    def __init__(self, program: Program, url: str) -> None:
        self.program = program
        self.url = url

    def __call__(self, command: str, *words: str) -> tuple[int, str]:
        done = self.program(command, "--source", self.url, *words)
        return done.returncode, done.stdout + done.stderr

    def json(self, command: str, *words: str) -> Any:
        done = self.program(command, "--source", self.url, "--json", *words)
        assert done.returncode == 0, done.stderr
        assert done.stderr == "", "kazoo says nothing of its own"
        return json.loads(done.stdout)


@pytest.fixture
def commands(program: Program, zookeeper: ZooKeeperServer) -> Commands:
    return Commands(program, zookeeper.url(fresh_base(), user="worker", password="secret"))


def test_commands_install_show_break_and_raise(commands: Commands) -> None:
    assert commands("install")[0] == 0
    with fencelock.connect(commands.url) as source:
        lease = source.lock("nightly report", ttl=4.0, holder="the holder").acquire()
        assert lease is not None
        shown = commands.json("show", "nightly report")
        assert (shown["holder"], shown["token"]) == ("the holder", str(lease.token))
        assert [one["lock"] for one in commands.json("locks")] == ["nightly report"]
        broken = commands.json("break", "nightly report", "--reason", "a test")
        assert int(broken["token"]) > lease.token
        assert lease.lost.wait(DEADLINE_S)
        with pytest.raises(fencelock.LeaseLostError, match="a test"):
            lease.check_valid()
    assert commands.json("epoch")["epoch"] == 1
    assert commands.json("epoch", "--raise", "--reason", "a test")["epoch"] == 2
    assert commands("purge")[0] == 0
    assert commands("doctor")[0] == 0
    assert commands("run", "nightly report", "--ttl", "20", "--", "true")[0] == 0


def test_a_lock_that_nobody_holds_can_be_shown_and_broken(commands: Commands) -> None:
    """ZooKeeper keeps its node, and no token; the last holder may still have its own."""
    assert commands("install")[0] == 0
    with fencelock.connect(commands.url) as source, source.lock("idle", ttl=20.0) as lease:
        token = lease.token
    assert commands.json("show", "idle")["lock"] == "idle"
    assert int(commands.json("break", "idle", "--reason", "a test")["token"]) > token
    assert commands("show", "another")[0] == 1


@pytest.mark.parametrize("options", [["--no-wait"], ["--wait", "3"], []])
def test_run_reports_once_that_no_server_is_there(program: Program, options: list[str]) -> None:
    done = program("run", "x", "--source", "zookeeper://127.0.0.1:1/app", "--ttl", "10", *options, "--", "true")
    assert done.returncode == 69
    assert "no server runs there" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.campaign
@pytest.mark.parametrize(("options", "bound_s"), [(["--no-wait"], MAX_TRY_S), (["--wait", "3"], MAX_OPEN_S)])
def test_run_reports_a_server_that_is_silent_in_time(program: Program, options: list[str], bound_s: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"zookeeper://127.0.0.1:{silent.getsockname()[1]}/app"
        started_s = time.monotonic()
        done = program("run", "x", "--source", url, "--ttl", "60", *options, "--", "true")
    assert done.returncode == 69
    assert f"no server answered in {bound_s:g} s" in done.stderr
    assert time.monotonic() - started_s < bound_s + START_S


def test_without_install_each_command_names_it(commands: Commands) -> None:
    for command, code in (("locks", 69), ("epoch", 69), ("doctor", 1)):
        ended, output = commands(command)
        assert ended == code, output
        assert "fencelock install" in output
        assert "Traceback" not in output


def test_doctor_reports_open_nodes_and_a_wrong_tick(program: Program, zookeeper: ZooKeeperServer) -> None:
    commands = Commands(program, zookeeper.url(fresh_base()).replace("tick_ms=200", "tick_ms=100"))
    assert commands("install")[0] == 0
    code, output = commands("doctor")
    assert code == 1
    assert "everybody who reaches the servers" in output
    assert "tickTime is 200 ms, and the URL says 100" in output
