"""`make verify`: one campaign for each store, on private servers, and the page of what came out.

    python -m tests.lab.campaigns.campaigns [--duration S] [--store NAME]… [--own NAME]… [--page FILE]

Without --store and --own all campaigns run: at the stores as a user has them, and at servers that `verify` starts
itself, which it attacks as well. Exits with the worst exit code of all. The page says what this very run has shown, on
which machine and with which versions; it is written even if a campaign finds a violation.
"""

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import fencelock
from fencelock_lab.servers.etcd import EtcdFleet
from fencelock_lab.servers.fleet import fleet_of
from fencelock_lab.servers.mariadb import MariaDBFleet
from fencelock_lab.servers.postgres import PostgresFleet
from fencelock_lab.servers.setups import SETUPS
from fencelock_lab.servers.zookeeper import ZooKeeperFleet
from tests.helpers import ROOT

PAGE = ROOT / "docs" / "explanation" / "verified.md"
POSTGRES = "15"
PREFIX = "fl-verify-"
TTL_S = 0.5
SESSION_TTL_S = 1.0
"""The shortest lease that etcd and ZooKeeper grant."""
_HEAD = """# What `fencelock verify` found

`make verify` wrote this page. It attacks each store for {duration:g} seconds, on a private server, with locks and
guarded data in one place ([how](../how-to/verify-a-setup.md), [by which rules](../reference/history.md)).
{machine}. The counts say how much happened; they are no measure of speed.

"""
_OWN_HEAD = """
## With attacks on the servers

The same by `fencelock verify --own`, which starts the servers itself. They are killed, frozen and restarted, a backup
of them is brought back while processes run on, and in a cluster of three the leader is cut off from the others.

"""
_ROWS = (
    ("verdict", lambda told: told["verdict"]),
    ("violations", lambda told: told["violations_in_all"]),
    ("events", lambda told: told["amounts"]["events"]),
    ("hand-offs to another process", lambda told: told["amounts"]["handoffs"]),
    ("writes accepted", lambda told: told["amounts"]["writes"]),
    ("refused as stale", lambda told: told["amounts"]["refusals"]),
    ("refused without a token", lambda told: told["amounts"]["strays"]),
    ("outcome unknown", lambda told: told["amounts"]["unknown"]),
    ("freezes of a holder past its ttl", lambda told: told["amounts"]["freezes"]),
    ("kills", lambda told: told["amounts"]["kills"]),
    ("disturbances of the network", lambda told: told["amounts"]["disturbances"]),
    ("jumps of a clock", lambda told: told["amounts"]["jumps"]),
    ("faults of the servers", lambda told: told["amounts"]["server_faults"]),
    (
        "overlaps that an expired lease explains",
        lambda told: told["information"].get("overlaps that an expired lease explains", 0),
    ),
)


@contextmanager
def sqlite_place() -> Iterator[tuple[str, str, str]]:
    """Yield the URLs of a source and of a guarded file, and what they are called."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        with closing(sqlite3.connect(f"{folder}/app.db")) as connection:
            connection.execute("CREATE TABLE users_own (value)")
        yield f"sqlite:///{folder}/locks.db", f"sqlite:///{folder}/app.db", f"SQLite {sqlite3.sqlite_version}"


@contextmanager
def postgres_place() -> Iterator[tuple[str, str, str]]:
    """Yield the same for a database on a private server."""
    with fleet_of(PostgresFleet, PREFIX) as fleet:
        server = fleet.shared(POSTGRES)
        ((version,),) = server.rows("SHOW server_version")
        url = server.url(dbname="postgres")
        yield url, url, f"PostgreSQL {version.split()[0]}"


@contextmanager
def mariadb_place() -> Iterator[tuple[str, str, str]]:
    """Yield the same for a database on a private server."""
    with fleet_of(MariaDBFleet, PREFIX) as fleet:
        server = fleet.shared()
        server.rows("CREATE DATABASE app")
        ((version,),) = server.rows("SELECT VERSION()")
        url = server.url(database="app")
        yield url, url, f"MariaDB {version.split('-')[0]}"


@contextmanager
def etcd_place() -> Iterator[tuple[str, str, str]]:
    """Yield the same for two prefixes on a private server."""
    with fleet_of(EtcdFleet, PREFIX) as fleet:
        cluster = fleet.shared(1)
        version = cluster.ctl("version").split()[2]
        yield cluster.url("locks"), cluster.url("data"), f"etcd {version}"


@contextmanager
def zookeeper_place() -> Iterator[tuple[str, str, str]]:
    """Yield the same for two bases on a private server."""
    with fleet_of(ZooKeeperFleet, PREFIX) as fleet:
        server = fleet.shared()
        version = server.version()
        yield server.url("/locks"), server.url("/data"), f"ZooKeeper {version}"


PLACES: dict[str, Callable[[], Any]] = {
    "sqlite": sqlite_place,
    "postgres": postgres_place,
    "mariadb": mariadb_place,
    "etcd": etcd_place,
    "zookeeper": zookeeper_place,
}


def campaign(store: str, duration: float) -> tuple[str, dict[str, Any]]:
    """Attack a store, and return its name and the verdict."""
    with PLACES[store]() as (source_url, guard_url, name):
        with fencelock.connect(source_url) as source:
            source.install()
        ttl = SESSION_TTL_S if store in {"etcd", "zookeeper"} else TTL_S
        words = ["verify", "--source", source_url, "--guard", guard_url, "--ttl", str(ttl)]
        words += ["--duration", str(duration), "--json"]
        return name, verdict(name, words)


def own_campaign(kind: str, duration: float) -> dict[str, Any]:
    """Attack servers of this kind, which the command starts itself, and return the verdict."""
    return verdict(f"own {kind}", ["verify", "--own", kind, "--duration", str(duration), "--json"])


def verdict(name: str, words: list[str]) -> dict[str, Any]:
    """Run a campaign, and return its verdict."""
    done = subprocess.run([sys.executable, "-m", "fencelock.cli", *words], stdout=subprocess.PIPE, check=False)
    if not done.stdout:
        raise SystemExit(f"{name}: the campaign ended with {done.returncode}")
    told: dict[str, Any] = json.loads(done.stdout)
    print(f"{name}: {told['verdict']}", flush=True)
    return told


def page(found: dict[str, dict[str, Any]], own: dict[str, dict[str, Any]], duration: float) -> str:
    """Return the page of what was found, by the names of the stores and of the kinds of servers."""
    machine = f"Linux {platform.release().split('-')[0]}, {os.cpu_count()} cores, Python {platform.python_version()}"
    head = _HEAD.format(duration=duration, machine=machine)
    return head + (table(found) if found else "") + (_OWN_HEAD + table(own) if own else "")


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return a table with a column for each campaign."""
    lines = [f"| | {' | '.join(found)} |", f"|---{'|---' * len(found)}|"]
    for label, value in _ROWS:
        cells = (f"{one:,}" if isinstance(one := value(told), int) else one for told in found.values())
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the campaigns and write the page."""
    parser = argparse.ArgumentParser(prog="make verify")
    parser.add_argument("--duration", type=float, default=60.0)
    parser.add_argument("--store", action="append", choices=list(PLACES))
    parser.add_argument("--own", action="append", choices=list(SETUPS))
    parser.add_argument("--page", type=Path, default=PAGE)
    wanted = parser.parse_args()
    is_all = not (wanted.store or wanted.own)
    found = dict(campaign(store, wanted.duration) for store in (PLACES if is_all else wanted.store or ()))
    kinds = SETUPS if is_all else wanted.own or ()
    own = {kind: own_campaign(kind, wanted.duration) for kind in kinds}
    wanted.page.write_text(page(found, own, wanted.duration))
    return max(told["exit_code"] for told in (*found.values(), *own.values()))


if __name__ == "__main__":
    sys.exit(main())
