"""The commands about locks and sources; those about guards are in test_guards_cli.py."""

import json
import re
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fencelock
from fencelock._api import lock_options
from fencelock.cli.doctor import blind_spots
from fencelock.cli.extensions import LAB_COMMANDS
from fencelock.cli.output import printable, table
from fencelock.protocol import GuardCapabilities
from fencelock.stores.registry import SOURCES, guard_store
from tests.cli.program import Program, program
from tests.support.helpers import wait_until

__all__ = ["program"]


@pytest.fixture
def guard(program: Program) -> fencelock.Guard:
    """Return a guard of a protected table, bound to lock x."""
    file = program.folder / "app.db"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE reports (day TEXT)")
    connection.close()
    made = fencelock.guard(f"sqlite:///{file}", resource="reports", lock="x")
    made.protect("reports")
    return made


# --- locks, show, purge
def test_locks_lists_who_holds_what(program: Program) -> None:
    with program.source() as source, source.lock("held", ttl=60, holder="somebody") as lease:
        with source.lock("free"):
            pass
        free, held = program.json("locks")
        shown = program.inside("locks").stdout
    assert held["lock"] == "held"
    assert held["token"] == str(lease.token)
    assert held["holder"] == "somebody"
    assert 50 < held["remaining"] <= held["ttl"] == 60
    assert held["waiters"] == []
    assert (free["lock"], free["holder"], free["ttl"], free["remaining"]) == ("free", None, None, 0)
    heading, *rows = shown.splitlines()
    assert heading.split() == ["LOCK", "TOKEN", "LEFT", "WAITERS", "HOLDER"]
    assert [row.split()[0] for row in rows] == ["free", "held"]


def test_show_lists_waiters(program: Program) -> None:
    with program.source() as source, source.lock("x"):
        program.start("run", "x", "--holder", "in line", "--", "true")
        wait_until(lambda: source.info("x").waiters)
        assert program.json("show", "x")["waiters"] == ["in line"]
        assert "waiter  in line" in program.inside("show", "x").stdout


def test_show_of_an_unknown_lock_exits_with_1(program: Program) -> None:
    done = program.inside("show", "nobody's")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no such lock: nobody's" in done.stderr


@pytest.mark.parametrize("words", [("show", "nobody's"), ("break", "nobody's", "--reason", "a test")])
def test_an_unknown_lock_is_an_error_in_json_too(program: Program, words: tuple[str, ...]) -> None:
    done = program.inside(*words, "--json")
    assert (done.returncode, done.stdout) == (1, "")
    error = json.loads(done.stderr)["error"]
    assert (error["type"], error["exit_code"]) == ("NoSuchLockError", 1)
    assert "no such lock: nobody's" in error["message"]


def test_break_makes_tokens_stale_of_a_lock_that_the_source_has_forgotten(
    program: Program, guard: fencelock.Guard
) -> None:
    """A token of a lock that was purged at the source may still be in use by its last holder."""
    breaking = ("break", "x", "--reason", "a test")
    with program.source() as source:
        with source.lock("x") as lease:
            old = lease.sequencer
        source.purge()
        assert program.inside(*breaking).returncode == 1
        assert program.json(*breaking, "--guard", guard.url)["guarded"]
    with pytest.raises(fencelock.StaleTokenError):
        guard.seal(old)


def test_purge_deletes_free_locks_and_keeps_tokens_spent(program: Program) -> None:
    with program.source() as source, source.lock("a"):
        with source.lock("b") as lease:
            token = lease.token
        assert program.json("purge") == {"purged": 1}
        assert [info.name for info in source.locks()] == ["a"]
        with source.lock("b") as lease:
            assert lease.token > token


# --- break
def test_break_frees_the_lock_and_mints_a_token(program: Program) -> None:
    with program.source() as source:
        lease = source.lock("x", holder="stuck").acquire()
        assert lease is not None
        broken = program.json("break", "x", "--reason", "stuck since monday")
        assert broken["holder"] == "stuck"
        assert int(broken["token"]) > lease.token
        assert broken["guarded"] == []
        assert not source.info("x").is_held


def test_break_without_a_guard_says_that_the_old_holder_can_still_write(program: Program) -> None:
    with program.source() as source:
        lease = source.lock("x").acquire()
        shown = program.inside("break", "x", "--reason", "a test").stdout
        assert lease is not None
        assert lease.release() is False
    assert "can still write" in shown
    assert "--guard" in shown


def test_break_with_a_guard_makes_the_old_token_stale(program: Program, guard: fencelock.Guard) -> None:
    with program.source() as source:
        lease = source.lock("x", ttl=60).acquire()
        assert lease is not None
        guard.seal(lease)
        broken = program.json("break", "x", "--reason", "a test", "--guard", guard.url)
        assert broken["guarded"] == [{"guard": guard.url, "resource": "reports"}]
        with pytest.raises(fencelock.StaleTokenError):
            guard.seal(lease.sequencer)
        with source.lock("x") as next_lease, guard.transaction(next_lease) as connection:
            connection.execute("INSERT INTO reports VALUES ('tuesday')")


def test_break_with_a_guard_of_another_lock_breaks_nothing(program: Program, guard: fencelock.Guard) -> None:
    with program.source() as source, source.lock("y"):
        done = program.inside("break", "y", "--reason", "a test", "--guard", guard.url)
        assert done.returncode == 1
        assert "nothing was broken" in done.stderr
        assert source.info("y").is_held


def test_break_needs_a_reason_and_a_known_lock(program: Program) -> None:
    assert program.inside("break", "x").returncode == 64
    done = program.inside("break", "x", "--reason", "a test")
    assert (done.returncode, done.stdout) == (1, "")
    assert program.json("locks") == []


# --- install, epoch
def test_install_makes_the_schema_and_is_safe_to_repeat(program: Program) -> None:
    for _ in range(2):
        assert program.json("install") == {"source": program.url, "guards": []}
        assert program.json("install", "--source", program.url) == {"source": program.url, "guards": [program.url]}
    assert (program.folder / "locks.db").exists()


def test_epoch_shows_and_changes_nothing(program: Program) -> None:
    first, second = program.json("epoch"), program.json("epoch")
    assert first == second
    assert (first["epoch"], first["last_token"]) == (1, "0")
    assert first["source_id"] in program.inside("epoch").stdout


def test_raising_the_epoch_jumps_over_every_token_and_ends_every_lease(program: Program) -> None:
    with program.source() as source:
        lease = source.lock("x").acquire()
        assert lease is not None
        before = program.json("epoch")
        after = program.json("epoch", "--raise", "--reason", "restored")
        assert after["source_id"] == before["source_id"]
        assert after["history_id"] != before["history_id"]
        assert (after["epoch"], int(after["last_token"]) >= 2**40) == (2, True)
        assert not source.info("x").is_held


@pytest.mark.parametrize("words", [["--raise"], ["--raise", "--reason", ""], ["--reason", "why"]])
def test_raising_the_epoch_needs_a_reason(program: Program, words: list[str]) -> None:
    done = program.inside("epoch", *words)
    assert done.returncode == 64
    assert "--reason" in done.stderr


# --- doctor
@pytest.mark.disk  # In memory it would find that a reboot loses the file.
def test_doctor_finds_nothing_in_a_sound_set_up_and_says_what_it_cannot_see(
    program: Program, guard: fencelock.Guard
) -> None:
    program.inside("install")
    done = program.inside("doctor", "--guard", guard.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing found" in done.stdout
    assert "What this command cannot see" in done.stdout
    assert program.json("doctor")["unseen"]


@pytest.mark.parametrize(
    ("source", "guards", "named", "not_named"),
    [
        ("sqlite:///locks.db", [], "copied over the source's file", "etcd|ZooKeeper|server|pg_|guard's"),
        ("postgresql:///app", ["postgres:///app"], "pg_resetwal", "etcd|ZooKeeper|file|sequencer"),
        ("mariadb://h/app", ["sqlite:///app.db"], "failed over", "etcd|ZooKeeper|pg_|sequencer"),
        ("etcd://h", ["etcd://h/app"], "written at etcd://h:2379/app without the guard", "zookeeper|file|pg_"),
        ("zookeeper://h/locks", ["zookeeper://h/app"] * 2, "access control lets write there", "etcd|file|pg_"),
        ("other://h", [], "behind any of the --guard URLs", "etcd|ZooKeeper|server|file|a source"),
    ],
)
def test_doctor_names_what_it_cannot_see_of_the_stores_in_use_alone(
    source: str, guards: list[str], named: str, not_named: str
) -> None:
    spots = blind_spots(source, list(map(guard_store, guards)))
    assert [spot for spot in spots if named in spot]
    assert len(set(spots)) == len(spots)
    assert re.findall(not_named, "; ".join(spots)) == []


@pytest.mark.parametrize("scheme", sorted(SOURCES))
def test_doctor_knows_the_blind_spots_of_each_source(scheme: str) -> None:
    assert len(blind_spots(f"{scheme}://h", [])) > 1 or scheme == "memory"


@pytest.mark.parametrize(
    ("capabilities", "named"),
    [
        (GuardCapabilities(enforced_by="nobody"), "without the guard, by anybody who reaches it"),
        (GuardCapabilities(enforced_by="policy"), "by a user whom its access control lets write there"),
        (GuardCapabilities(enforced_by="store", seal_is_durable=False), "acknowledged and lost"),
        (GuardCapabilities(enforced_by="store"), None),
    ],
)
def test_doctor_says_what_a_guard_cannot_do(capabilities: GuardCapabilities, named: str | None) -> None:
    store: Any = SimpleNamespace(url="other://user:secret@h/app", capabilities=capabilities)
    spots = [spot for spot in blind_spots("other://h", [store]) if "at other://" in spot or "seal that" in spot]
    assert len(spots) == (named is not None)
    assert all(named in spot and "secret" not in spot for spot in spots if named is not None)


def test_doctor_finds_a_source_that_lost_tokens_which_a_guard_has_seen(
    program: Program, guard: fencelock.Guard
) -> None:
    with program.source() as source, source.lock("x") as lease:
        guard.seal(lease)
        source_id = lease.sequencer.source_id
        history_id = lease.sequencer.history_id
    ahead = fencelock.Sequencer(source_id, history_id, "x", 4000, "c" * 32)
    guard.seal(ahead)
    done = program.inside("doctor", "--guard", guard.url, "--json")
    assert done.returncode == 1
    assert '"source-went-back"' in done.stdout
    shown = program.inside("doctor", "--guard", guard.url).stdout
    assert "4000" in shown
    assert "remedy:" in shown
    assert "fencelock epoch --raise" in shown


def test_doctor_finds_a_resource_of_another_source(program: Program, guard: fencelock.Guard) -> None:
    with fencelock.connect(f"sqlite:///{program.folder}/other.db") as source, source.lock("x") as lease:
        guard.seal(lease)
    with program.source() as source, source.lock("x"):
        pass
    done = program.inside("doctor", "--guard", guard.url)
    assert done.returncode == 1
    assert "other-source" in done.stdout


def test_doctor_reports_a_source_that_cannot_be_opened(program: Program) -> None:
    (program.folder / "locks.db").write_bytes(b"this is no database" * 100)
    done = program.inside("doctor")
    assert done.returncode == 1
    assert "source-refused" in done.stdout


def test_doctor_says_that_there_is_no_source_and_makes_none(
    program: Program, guard: fencelock.Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fencelock.connect(f"sqlite:///{program.folder}/other.db") as source, source.lock("x") as lease:
        guard.seal(lease)
    for file in program.folder.glob("locks.db*"):
        file.unlink()
    before = sorted(program.folder.iterdir())
    done = program.inside("doctor", "--guard", guard.url)
    assert done.returncode == 1
    assert f"no-source: {program.folder}/locks.db is no source yet" in done.stdout
    assert "other-source" not in done.stdout
    assert sorted(program.folder.iterdir()) == before
    monkeypatch.setattr(lock_options, "default_folder", lambda: tmp_path / "state" / "fencelock")
    program.environment["FENCELOCK_SOURCE"] = ""
    assert "fencelock/locks.db is no source yet" in program.inside("doctor").stdout
    assert not (tmp_path / "state").exists()


# --- output
def test_other_users_names_cannot_control_the_terminal(program: Program) -> None:
    with program.source() as source, source.lock("\x1b[2Jred\n", holder="\x07bell\u202e"):
        for shown in (program.inside("locks").stdout, program.inside("show", "\x1b[2Jred\n").stdout):
            assert "\x1b" not in shown
            assert "\x07" not in shown
            assert "\u202e" not in shown
            assert r"\x1b[2Jred\n" in shown


def test_printable_keeps_printable_characters() -> None:
    assert printable("nächtlicher Bericht ☃") == "nächtlicher Bericht ☃"
    assert printable("a\tb") == r"a\tb"


def test_a_table_is_aligned() -> None:
    shown = table(("A", "LONG", "LAST"), [("aaa", "b", "c"), ("d", "eeeeee", "ff")])
    assert shown.splitlines() == ["A    LONG    LAST", "aaa  b       c", "d    eeeeee  ff"]


# --- help
ABOUT_WRITERS = ("rights", "grant", "revoke", "unpoison", "keys", "sequencer")


@pytest.mark.parametrize(
    "command",
    ["run", "lead", "locks", "show", "break", "purge", "install", "uninstall", "epoch", "doctor", *ABOUT_WRITERS],
)
def test_help_says_what_a_command_does(program: Program, command: str) -> None:
    done = program.inside(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: fencelock {command} ")
    assert all(len(line) <= 100 for line in done.stdout.splitlines())


@pytest.mark.parametrize("command", ["run", "lead", "break", "doctor"])
def test_help_says_that_guard_may_be_repeated(program: Program, command: str) -> None:
    done = program.inside(command, "--help")
    assert "May be repeated." in " ".join(done.stdout.split())


def test_help_lists_every_command(program: Program) -> None:
    done = program.inside("--help")
    listed = done.stdout.partition("Commands:\n")[2].split("\n")
    assert [line.split()[0] for line in listed if line] == [
        *("run", "lead", "locks", "show", "break", "purge", "install", "uninstall", "epoch"),
        *("protect", "unprotect", "rebind", "marks"),
        *(*ABOUT_WRITERS, "doctor"),
        *LAB_COMMANDS,
    ]
    assert all(len(line.split()) > 3 for line in listed if line)
    assert not [line for line in listed if line.endswith("...")], "each fits into its line"


def test_version(program: Program) -> None:
    assert program.inside("--version").stdout == f"fencelock {fencelock.__version__}\n"
