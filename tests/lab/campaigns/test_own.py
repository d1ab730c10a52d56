"""Campaigns against servers that verify starts itself: they stand, and nothing of the servers is left behind."""

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from fencelock_lab.campaigns.command import OWN
from fencelock_lab.campaigns.controls import DOCUMENT_CONTROLS
from fencelock_lab.campaigns.settings import USUAL_TTL_S
from fencelock_lab.campaigns.verdict import CLEAN, NOT_ENOUGH, VIOLATION
from fencelock_lab.servers import programs
from fencelock_lab.servers.setups import SETUPS
from fencelock_lab.servers.watcher import processes_in
from tests.cli.program import Program, program
from tests.lab.campaigns.test_campaign import TELLING, attack
from tests.support.helpers import wait_until
from tests.support.programs import need

__all__ = ["program"]
pytestmark = [pytest.mark.process, pytest.mark.slow]

NEEDS = {
    "postgres": (programs.POSTGRES,),
    "mariadb": (programs.MARIADBD,),
    "etcd": ("/usr/bin/etcd", "/usr/bin/etcdctl"),
    "etcd3": ("/usr/bin/etcd", "/usr/bin/etcdctl"),
    "zookeeper3": (programs.JAVA, programs.ZOOKEEPER),
    "redis": (programs.REDIS,),
    "s3": (),
    "dynamodb": (),
}
SHORT = {
    "postgres": ("--ttl", "0.3", "--duration", "4", "--faults", "freeze,server-kill,server-restore"),
    "mariadb": ("--ttl", "0.3", "--duration", "4", "--faults", "freeze,server-freeze,server-restore"),
    "etcd": ("--duration", "5", "--faults", "freeze,server-kill,server-restore"),
    "etcd3": ("--duration", "5", "--faults", "freeze,server-isolate,server-restart"),
    "zookeeper3": ("--ttl", "1", "--duration", "5", "--faults", "freeze,server-isolate"),
    "redis": ("--ttl", "0.3", "--duration", "4", "--faults", "freeze,drop,server-kill,server-restart"),
    "s3": ("--duration", "8", "--faults", "freeze,drop,server-kill,server-restart"),
    "dynamodb": ("--duration", "20", "--faults", "freeze,drop,server-freeze,server-restart"),
}
"""For each kind a few of its faults, so that all of them come within seconds."""


@pytest.fixture
def place(program: Program) -> Iterator[Path]:
    """Yield the folder in which campaigns make theirs. Servers that run as another user can go through it."""
    folder = Path(tempfile.mkdtemp(prefix="fl-own-", dir="/tmp"))
    folder.chmod(0o755)
    program.environment["TMPDIR"] = str(folder)
    yield folder
    shutil.rmtree(folder)


def is_clean(place: Path) -> bool:
    """Tell whether neither a process nor a file is left."""
    return not list(processes_in(place)) and not list(place.iterdir())


@pytest.mark.campaign
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("kind", "control"),
    [
        *product(("postgres", "mariadb", "etcd", "zookeeper3", "redis"), ("seal-one", "unfenced")),
        *((kind, control) for kind in ("redis", "s3", "dynamodb") for control in DOCUMENT_CONTROLS[kind]),
    ],
)
def test_a_broken_rule_is_found_at_every_store(program: Program, place: Path, kind: str, control: str) -> None:
    need_all(kind)
    history = str(program.folder / "history.jsonl")
    seconds = str(3 * max(2.0, SETUPS[kind].ttl))
    code, verdict = attack(program, "--own", kind, "--control", control, "--history", history, "--duration", seconds)
    assert code == VIOLATION, verdict
    assert {one["rule"] for one in verdict["violations"]} & TELLING[control]
    assert is_clean(place)


def need_all(kind: str) -> None:
    for each in NEEDS[kind]:
        need(each)


@pytest.mark.campaign
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", SHORT)
def test_own_servers_stand(program: Program, place: Path, kind: str) -> None:
    """On a loaded machine too little may happen for a verdict: what has happened is judged here, all the same."""
    need_all(kind)
    history = program.folder / "history.jsonl"
    code, verdict = attack(program, "--own", kind, "--history", str(history), *SHORT[kind])
    assert (verdict["violations"], verdict["undecided"]) == ([], []), verdict
    assert code in {CLEAN, NOT_ENOUGH}
    assert verdict["amounts"]["writes"] > 0
    asked = [one for one in SHORT[kind][-1].split(",") if one.startswith("server-")]
    assert verdict["amounts"]["server_faults"] >= len(asked)
    assert not any("which was to come" in one for one in verdict["shortfalls"]), verdict
    assert all(f'"f": "{fault}"' in history.read_text() for fault in asked)
    assert program.left() == []
    assert is_clean(place)


def test_every_kind_has_its_campaign_and_is_offered() -> None:
    assert set(SHORT) == set(NEEDS) == set(SETUPS) == set(OWN)
    assert SETUPS["postgres"].ttl == USUAL_TTL_S


def begun(program: Program, place: Path, *words: str) -> subprocess.Popen[str]:
    """Return a campaign on an etcd of its own, once the servers are attacked."""
    need_all("etcd")
    process = program.start("verify", "--own", "etcd", "--duration", "60", *words)
    wait_until(lambda: any(b"server-freeze" in one.read_bytes() for one in place.glob("*/servers.jsonl")))
    assert list(processes_in(place))
    return process


@pytest.mark.campaign
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_campaign_ends_its_servers(program: Program, place: Path, number: signal.Signals) -> None:
    process = begun(program, place, "--faults", "server-freeze")
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    assert program.left() == []
    assert is_clean(place)


@pytest.mark.campaign
def test_frozen_servers_do_not_outlive_a_killed_campaign(program: Program, place: Path) -> None:
    process = begun(program, place, "--faults", "server-freeze", "--ttl", "60")
    process.kill()
    process.wait()
    wait_until(lambda: not list(processes_in(place)) and not list(place.glob("fencelock-own-*")))
    wait_until(lambda: not program.left())


@pytest.mark.campaign
def test_all_processes_of_a_killed_campaign_on_postgres_end(program: Program, place: Path) -> None:
    """Its processes have sessions of their own, and share memory that outlives them."""
    need_all("postgres")
    before = segments()
    process = program.start("verify", "--own", "postgres", "--duration", "60", "--faults", "server-freeze")
    wait_until(lambda: any(b"server-freeze" in one.read_bytes() for one in place.glob("*/servers.jsonl")))
    process.kill()
    process.wait()
    wait_until(lambda: not list(processes_in(place)) and not list(place.glob("fencelock-own-*")))
    assert segments() <= before


def segments() -> set[str]:
    """Return the ids of the shared memory segments that nobody is attached to."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {words[1] for words in map(str.split, lines) if words[6] == "0"}


def test_without_the_program_it_says_what_to_install(program: Program, place: Path) -> None:
    (folder := program.folder / "bin").mkdir()
    for each in ("setpriv", "sh"):
        (folder / each).symlink_to(need(each))
    program.environment["PATH"] = str(folder)
    done = program("verify", "--own", "etcd", "--duration", "1")
    assert done.returncode == 69
    assert "etcd is not installed: on Debian, as root, run apt-get install etcd-server" in done.stderr
    assert is_clean(place)


@pytest.mark.parametrize("kind", SETUPS)
def test_a_dry_run_starts_nothing(program: Program, place: Path, kind: str) -> None:
    told = program.json("verify", "--own", kind, "--dry-run")
    assert set(SETUPS[kind].faults) <= set(told["faults"])
    assert is_clean(place)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--own", "postgres", "--source", "sqlite:///locks.db"), "--own starts the source itself"),
        (("--own", "oracle"), "'oracle' is not one of"),
        (("--own", "s3", "--control", "seal-one"), "not one of the controls that work with --own s3"),
        (("--own", "etcd", "--ttl", "0.5"), "etcd grants no shorter lease"),
        (("--own", "etcd", "--dry-run", "--faults", "server-isolate"), "'server-isolate' is not a fault that can hit"),
        (("--guard", "sqlite:///app.db", "--dry-run", "--faults", "server-kill"), "'server-kill' is not a fault that"),
    ],
)
def test_a_mistake_is_told_with_what_to_write(
    program: Program, place: Path, words: tuple[str, ...], complaint: str
) -> None:
    done = program("verify", *words)
    assert done.returncode == 64
    assert complaint in done.stderr
    assert is_clean(place)
