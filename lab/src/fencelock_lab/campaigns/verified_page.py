"""The page of what campaigns have found: a table for each group of schedules, with how much happened in each.

Promise: every figure on it is in the results file, with the commit, the command, the time and the machine of its run.
It names the campaigns that have shown nothing. It is written even if a campaign found a violation.
"""

import socket
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fencelock.testing import unfenced
from fencelock_lab.campaigns.results import CampaignFinding, CampaignReport
from fencelock_lab.campaigns.schedules import FAULTS, OWN, STORES
from fencelock_lab.campaigns.verdict import NAMES, NOT_ENOUGH
from fencelock_lab.kept_results import filesystem, paragraph

PAGE = Path("docs") / "explanation" / "verified.md"
_LOOK_S = 5.0
_TITLE = "# What `fencelock verify` found\n\n"
_HEAD = """`make verify` wrote this page and [its file](../../lab/results/verified.json), in one run or in several: the
[last table](#runs) says which campaigns ran when, and at which commit. Real processes compete for locks and write to
guarded resources on private servers ([how](../how-to/verify-a-setup.md), [by which
rules](../reference/history.md)).

**In {campaigns} with {freezes:,} freezes of a holder past its ttl, {kills:,} kills, {disturbances:,} disturbances of
the network and {server_faults:,} faults of servers: {violations}.**{too_little} The counts say how much happened; they
are no measure of speed. A campaign may run more than once, because too little happened to prove anything or because
there is time; the table shows its last run, or the first that found a violation.
"""
_RUNS = """
## Runs

| campaigns | commit | when | by | on |
|---|---|---|---|---|
"""
_GROUPS = {
    STORES: """
## Stores as they are

Locks and guarded data are in one place, but for the HTTP service, files, Redis and S3, whose locks are in a SQLite
file here. Processes are frozen and killed, and their clocks disturbed, and their network where there is one.

""",
    OWN: """
## With attacks on the servers

The same with faults of the servers, as `fencelock verify --own` draws them. Servers are killed, frozen and restarted.
A backup of PostgreSQL, MariaDB, etcd and ZooKeeper is restored while processes run on, and in a cluster of three the
leader is isolated from the others. The emulator of DynamoDB keeps nothing over a kill: it is frozen and restarted only.

""",
    FAULTS: """
## One fault after the other

After each fault of a server every lock must go on before the next one comes. `takeovers`: the leader is killed, frozen
for long and for a moment, all are killed, the leader is isolated; clocks of some processes go a tenth too fast or too
slow, and the guarded table is in a SQLite file. `elsewhere`: the quorum is lost, and the table is in PostgreSQL.
`race`: nine of ten holders, as drawn, release the lock before they read and write, so that only the guard keeps them
apart. `anywhere`: 32 processes are frozen and killed at any instruction. `weather`: threads share connections that are
cut, held up and lose requests and replies. `s3-locks`: as in the first table, with the locks in the bucket too.

""",
}
_ROWS: tuple[tuple[str, Callable[[Mapping[str, Any]], object]], ...] = (
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
    ("fewest hand-offs of one lock", lambda told: min(one["handoffs"] for one in told["locks"].values())),
    (
        "longest time without a grant of a lock",
        lambda told: f"{max(one['longest_gap'] for one in told['locks'].values()):.1f} s",
    ),
    ("seconds of the attack", lambda told: round(told["amounts"]["duration"])),
    ("losses told to processes that went on", lambda told: told["amounts"]["losses"]),
    (
        "overlaps that an expired lease explains",
        lambda told: told["information"].get("overlaps that an expired lease explains", 0),
    ),
)


def page(report: CampaignReport) -> str:
    """Return the page of a report, as Markdown."""
    found = list(report.results.values())
    text = _head(found)
    for group, head in _GROUPS.items():
        if members := [one for one in found if one.group == group]:
            text += head + _table(members)
    if blamed := [(one.schedule, told) for one in found for told in one.told["violations"]]:
        text += "\n## Violations\n\n"
        text += "".join(f"- `{name}`: {told['rule']} at {told['place']}: {told['message']}\n" for name, told in blamed)
    if report.missing:
        text += "\n## Campaigns without a result\n\n"
        text += "".join(f"- `{name}` {_in_one_line(reason)}\n" for name, reason in report.missing.items())
    return text + _runs(found)


def _runs(found: list[CampaignFinding]) -> str:
    """Return a table with a row for each run."""
    runs = dict.fromkeys(one.run for one in found)
    names = {run: ", ".join(f"`{one.schedule}`" for one in found if one.run == run) for run in runs}
    return _RUNS + "".join(
        f"| {names[run]} | `{run.commit}` | {run.measured} | `{run.command}` | {run.machine} |\n" for run in runs
    )


def _head(found: list[CampaignFinding]) -> str:
    broken = sum(one.told["violations_in_all"] for one in found)
    short = [f"`{one.schedule}`" for one in found if one.told["verdict"] == NAMES[NOT_ENOUGH]]
    told = _HEAD.format(
        campaigns=f"{len(found)} campaigns" if len(found) != 1 else "1 campaign",
        violations=f"{broken:,} violation{'s' * (broken != 1)}" if broken else "the checkers found no violation",
        too_little=f" Too little happened to prove anything in {', '.join(short)}." if short else "",
        **{
            what: sum(one.told["amounts"][what] for one in found)
            for what in ("freezes", "kills", "disturbances", "server_faults")
        },
    )
    return _TITLE + "\n".join(paragraph(each) for each in told.split("\n\n"))


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def _table(findings: list[CampaignFinding]) -> str:
    """Return a table with a column for each campaign."""
    names = [one.version if one.group == STORES else f"{one.schedule}, {one.version}" for one in findings]
    lines = [f"| | {' | '.join(names)} |", f"|---{'|---' * len(names)}|"]
    lines.append(f"| verdict of each run | {' | '.join(', '.join(one.verdicts) for one in findings)} |")
    for label, value in _ROWS:
        cells = (f"{cell:,}" if isinstance(cell := value(one.told), int) else str(cell) for one in findings)
        lines.append(f"| {label} | {' | '.join(cells)} |")
    lines.append(f"| seed | {' | '.join(str(one.seed) for one in findings)} |")
    return "\n".join(lines) + "\n"


def version_of(url: str) -> str:
    """Return the name and version of the store at the URL of a guard; without the version if that cannot be read."""
    try:
        return _read_version(url)
    except Exception:  # Whatever a client raises: a campaign does not fail for it.
        return f"{url.partition('://')[0]}, version unknown"


def _read_version(url: str) -> str:
    scheme = url.partition("://")[0]
    if scheme in _VERSIONS:
        return _VERSIONS[scheme](url)
    with unfenced(url) as connection:
        if scheme == "zookeeper":
            return f"ZooKeeper {'.'.join(map(str, connection.server_version()))}"
        cursor = connection.cursor()
        cursor.execute({"sqlite": "SELECT sqlite_version()", "postgresql": "SHOW server_version"}.get(scheme, _SQL))
        version = str(cursor.fetchone()[0])
    names = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
    return f"{names.get(scheme, 'MariaDB')} {version.split(maxsplit=1)[0].partition('-')[0]}"


_SQL = "SELECT VERSION()"


def _etcd_version(url: str) -> str:
    """Ask the first member over HTTP, which needs no client."""
    import json

    answer = _ask(url, "GET /version HTTP/1.0\r\n\r\n")
    return str(json.loads(answer.partition("\r\n\r\n")[2])["etcdserver"])


def _redis_version(url: str) -> str:
    answer = _ask(url, "INFO server\r\nQUIT\r\n")
    return answer.partition("redis_version:")[2].split()[0]


def _ask(url: str, words: str) -> str:
    """Return what the first server in the URL answers until it hangs up."""
    host, _, port = url.partition("://")[2].partition("/")[0].partition(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), _LOOK_S) as talking:
        talking.sendall(words.encode())
        return b"".join(iter(lambda: talking.recv(65536), b"")).decode()


_VERSIONS: dict[str, Callable[[str], str]] = {
    "dynamodb": lambda _: "DynamoDB by ministack, an emulator",
    "etcd": lambda url: f"etcd {_etcd_version(url)}",
    "file": lambda url: f"files on {filesystem(Path(urlsplit(url).path))}",
    "http": lambda _: f"an HTTP service over SQLite {sqlite3.sqlite_version}",
    "redis": lambda url: f"Redis {_redis_version(url)}",
    "s3": lambda _: "S3 by SeaweedFS",
}
"""How to read the version of a store that `unfenced` does not connect to, or that tells none over its connection."""
