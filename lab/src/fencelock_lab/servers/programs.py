"""The programs of the servers that a campaign starts: where they are, as whom they run, what to install without them.

Promise: a program is started without a shell, with nothing of the user's environment but PATH. Servers refuse to run
as root, so for root they run as `nobody`.
"""

import glob
import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fencelock.errors import SourceError, UnsupportedError

POSTGRES = "/usr/lib/postgresql/*/bin/postgres"
MARIADBD = "/usr/sbin/mariadbd"
ETCD, ETCDCTL = "etcd", "etcdctl"
JAVA, ZOOKEEPER = "java", "/usr/share/java/zookeeper.jar"
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
    FAKETIME: "libfaketime",
    SETPRIV: "util-linux",
}
"""The Debian package of each. A program that is on no PATH goes by a path, in which * stands for a version."""
_PATIENCE_S = 120.0


def find(program: str) -> str | None:
    """Return the path of a program, of the newest version if there are several; None if it is missing."""
    if not program.startswith("/"):
        return shutil.which(program)
    return max(glob.glob(program), key=lambda path: (len(path), path), default=None)


def need(program: str) -> str:
    """Return the path of a program; UnsupportedError, with what to install, if it is missing."""
    path = find(program)
    if path is None:
        name = Path(program).name
        raise UnsupportedError(f"{name} is not installed: on Debian, as root, run apt-get install {PACKAGES[program]}")
    return path


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which nothing of the user's own (PGHOST, a language) changes what is run."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC", **more}


def as_runner(command: Sequence[object]) -> list[str]:
    """Return the command by which a program runs as an ordinary user.

    Not by Popen's own `user`: that forks, and a child of a process that speaks gRPC may die before it is the program.
    """
    words = [str(word) for word in command]
    if os.geteuid() != 0:
        return words
    nobody = pwd.getpwnam("nobody")
    return [need(SETPRIV), f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", "--", *words]


def new_folder(path: Path) -> Path:
    """Make a folder of the runner's, which nobody else can look into."""
    path.mkdir(mode=0o700)
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    return path


def run(command: Sequence[object], folder: Path, said: bytes = b"", **variables: str) -> bytes:
    """Run a program to its end as the runner, and return what it printed; SourceError if it fails."""
    done = subprocess.run(
        as_runner(command),
        input=said,
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        timeout=_PATIENCE_S,
        start_new_session=True,
        check=False,
    )
    if done.returncode != 0:
        told = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise SourceError(f"{command[0]} ended with {done.returncode}: {told}")
    return done.stdout
