"""The schedules: every campaign that this project runs against itself, each with its servers, processes and faults.

Promise: a schedule and a seed give the same faults. It runs on private servers that it starts itself, and expects a
clean verdict: what its processes are told must keep every rule of docs/reference/history.md, and enough must happen.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import fencelock
from fencelock_lab.campaigns.amounts import USUAL_LEAST
from fencelock_lab.campaigns.campaign import Campaign, Tell
from fencelock_lab.campaigns.files import new_database
from fencelock_lab.campaigns.history import (
    CUT,
    DROP,
    JUMP,
    LOSE,
    PARTITION,
    SERVER_FREEZE,
    SERVER_ISOLATE,
    SERVER_KILL,
    SERVER_RESTART,
    History,
)
from fencelock_lab.campaigns.http_service import FENCED, TextService
from fencelock_lab.campaigns.settings import (
    ANYWHERE_FREEZE,
    ANYWHERE_KILL,
    USUAL_TTL_S,
    CampaignSettings,
    possible_faults,
    source_part,
)
from fencelock_lab.campaigns.strikes import ALL, LEADER, MAJORITY, Strike
from fencelock_lab.campaigns.verdict import CampaignVerdict, Expectations, judge
from fencelock_lab.servers.programs import FAKETIME, find
from fencelock_lab.servers.setup import Setup
from fencelock_lab.servers.setups import SETUPS

STORES, OWN, FAULTS = "stores", "own", "faults"
"""The groups: stores as a user has them, the same with drawn attacks on the servers, and one fault after the other."""
FILE = "file"
"""As the guard of a schedule: a SQLite file, beside the servers that hold the locks."""
HTTP = "http"
"""As the guard of a schedule: a service whose data are in a SQLite file."""
FILES = "files"
"""As the guard of a schedule: a folder."""
QUORUM_TTL_S = 2.0
WRONG_RATES = (1.0, 1.0, 1.1, 0.9)
"""How fast each worker's clock goes: a lease's margin, a tenth of its ttl, is for clocks that are so wrong."""
_OWN_TTLS = 12
"""How many ttls an attack on servers lasts at least, so that enough processes are frozen past theirs."""
_REFUSALS = frozenset(
    {"OutcomeUnknownError", "StaleTokenError", "SourceUnavailableError", "not obtained"},
)
"""What a guard may answer while leaders change: nothing else, not even a client's own error."""


@dataclass(frozen=True, slots=True)
class CampaignSchedule:
    """One campaign that can be repeated. Times are seconds.

    `setup` names the servers of the source, None for a SQLite file; `guard` those of the resources, if they are others.
    `is_one_place`: the locks are where the resources are, at servers whose set-up keeps them elsewhere.
    `duration` is the shortest that proves something on a free machine. The servers of a schedule with a `script`, or of
    the group `own`, are struck.
    """

    name: str
    group: str
    setup: str | None = None
    guard: str | None = None
    is_one_place: bool = False
    faults: tuple[str, ...] | None = None
    script: tuple[Strike, ...] = ()
    workers: int = 12
    locks: int = 4
    threads: int = 1
    ttl: float | None = None
    duration: float = 10.0
    mix: str = "usual"
    rates: tuple[float, ...] = (1.0,)
    least: Mapping[str, int] = field(default_factory=lambda: USUAL_LEAST)
    errors: frozenset[str] | None = None

    @property
    def is_struck(self) -> bool:
        """Whether the servers are struck, too."""
        return bool(self.script) or self.group == OWN

    @property
    def expected(self) -> Expectations:
        """What the campaign must show."""
        return Expectations(self.least, self.errors)


def _anywhere(name: str, guard: str | None) -> CampaignSchedule:
    """Return a schedule in which 32 processes at one lock are frozen and killed from outside at any instruction."""
    return CampaignSchedule(
        f"{name}-anywhere",
        FAULTS,
        guard=guard,
        faults=(ANYWHERE_FREEZE, ANYWHERE_KILL),
        mix="plain",
        workers=32,
        locks=1,
        ttl=0.6,
        duration=20.0,
        least={"handoffs": 20, "writes": 50, "kills": 5},
    )


def _weather(
    name: str, setup: str | None, *, ttl: float, guard: str | None = None, duration: float = 15.0
) -> CampaignSchedule:
    """Return a schedule of threads that share a source, with leases of two lengths, while the network is always bad."""
    return CampaignSchedule(
        f"{name}-weather",
        FAULTS,
        setup,
        guard=guard,
        faults=(CUT, DROP, LOSE, PARTITION),
        mix="weather",
        workers=3,
        threads=3,
        locks=2,
        ttl=ttl,
        duration=duration,
        least={"handoffs": 10, "disturbances": 10},
    )


def _quorum(kind: str, what: str, *script: Strike, **others: object) -> CampaignSchedule:
    """Return a schedule of takeovers: few workers whose clocks are wrong hold long while three servers are struck."""
    least = {"handoffs": 6, "server_faults": len(script)}
    usual: dict[str, object] = {"guard": FILE, "workers": 4, "locks": 1, "mix": "holders", "rates": WRONG_RATES}
    usual |= {"ttl": QUORUM_TTL_S, "duration": 20.0, "least": least, "faults": ()}
    return CampaignSchedule(f"{kind}-{what}", FAULTS, kind, script=script, **usual | others)  # type: ignore[arg-type]


def _for_quorum(kind: str) -> tuple[CampaignSchedule, ...]:
    """Return the schedules of one kind of three servers."""
    ttl = QUORUM_TTL_S
    kill = Strike(0.0, SERVER_KILL, seconds=ttl, aim=LEADER)
    freeze = Strike(0.0, SERVER_FREEZE, seconds=2 * ttl, aim=LEADER)
    race = {"guard": None, "mix": "race", "rates": (1.0,), "errors": _REFUSALS, "workers": 6}
    return (
        _quorum(
            kind,
            "takeovers",
            kill,
            freeze,
            Strike(0.0, SERVER_FREEZE, seconds=ttl / 4, aim=LEADER),
            Strike(0.0, SERVER_KILL, aim=ALL),
            Strike(0.0, SERVER_ISOLATE, seconds=3 * ttl, aim=LEADER),
        ),
        _quorum(kind, "elsewhere", Strike(0.0, SERVER_KILL, seconds=2 * ttl, aim=MAJORITY), guard="postgres"),
        _quorum(kind, "race", kill, freeze, Strike(0.0, SERVER_RESTART), Strike(0.0, SERVER_KILL, aim=ALL), **race),
    )


SCHEDULES: dict[str, CampaignSchedule] = {
    one.name: one
    for one in (
        CampaignSchedule("sqlite", STORES),
        CampaignSchedule("postgres", STORES, "postgres"),
        CampaignSchedule("mariadb", STORES, "mariadb"),
        CampaignSchedule("etcd", STORES, "etcd", ttl=1.0, duration=15.0),
        CampaignSchedule("zookeeper", STORES, "zookeeper3", ttl=1.0, duration=20.0),
        CampaignSchedule("http", STORES, guard=HTTP),
        CampaignSchedule("files", STORES, guard=FILES),
        CampaignSchedule("redis", STORES, "redis"),
        CampaignSchedule("dynamodb", STORES, "dynamodb", duration=60.0),
        CampaignSchedule("s3", STORES, "s3", duration=30.0),
        _anywhere("sqlite", None),
        _anywhere("files", FILES),
        CampaignSchedule(
            "s3-locks",
            FAULTS,
            "s3",
            is_one_place=True,
            ttl=10.0,
            duration=60.0,
            least={"handoffs": 20, "freezes": 3, "refusals": 2},
        ),
        _weather("zookeeper", "zookeeper3", guard=FILE, ttl=1.5),
        _weather("http", None, guard=HTTP, ttl=1.0),
        _weather("redis", "redis", ttl=1.0),
        _weather("dynamodb", "dynamodb", ttl=5.0, duration=60.0),
        _weather("s3", "s3", ttl=2.0, duration=30.0),
        *(
            CampaignSchedule(f"own-{name}", OWN, name, duration=max(20.0, _OWN_TTLS * kind.ttl))
            for name, kind in SETUPS.items()
        ),
        *_for_quorum("etcd3"),
        *_for_quorum("zookeeper3"),
    )
}


class CampaignOutcome(NamedTuple):
    """How a schedule ended: with which seed, verdict and history."""

    schedule: CampaignSchedule
    seed: int
    verdict: CampaignVerdict
    history: History


class _Place(NamedTuple):
    source: str
    guard: str
    servers: Setup | None


def run_schedule(
    schedule: CampaignSchedule,
    history_file: Path,
    *,
    seed: int | None = None,
    duration: float | None = None,
    tell: Tell = lambda _: None,
    warn: Tell = lambda _: None,
    started: Callable[[str], object] = lambda _: None,
) -> CampaignOutcome:
    """Run a schedule on servers of its own, leave the history in the file, and judge it.

    `started` is told the URL of the guard as soon as its servers run.
    """
    seed = int.from_bytes(os.urandom(4)) if seed is None else seed
    with _placed(schedule) as place:
        started(place.guard)
        settings = _settings(schedule, place, seed, schedule.duration if duration is None else duration)
        servers = place.servers if schedule.is_struck else None
        history = Campaign(settings, servers, schedule.script).run(history_file, tell, warn)
    return CampaignOutcome(schedule, seed, judge(history, schedule.expected), history)


@contextmanager
def _placed(schedule: CampaignSchedule) -> Iterator[_Place]:
    """Start the servers of a schedule, and yield where its locks and resources are."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fencelock-schedule-"))
        servers = None if schedule.setup is None else stack.enter_context(SETUPS[schedule.setup]())
        source = f"sqlite:///{folder}/locks.db" if servers is None else servers.url
        if schedule.guard in {None, schedule.setup} and servers is not None:
            guard = servers.guard_url
        elif schedule.guard in {None, FILE}:
            guard = new_database(Path(folder, "app.db"))
        elif schedule.guard == HTTP:
            guard = stack.enter_context(TextService(FENCED, Path(folder))).url
        elif schedule.guard == FILES:
            guard = f"file://{folder}/data"
            Path(folder, "data").mkdir()
        else:
            guard = stack.enter_context(SETUPS[schedule.guard]()).guard_url
        yield _Place(guard if schedule.is_one_place else source, guard, servers)


def _settings(schedule: CampaignSchedule, place: _Place, seed: int, duration: float) -> CampaignSettings:
    with fencelock.connect(place.source) as source:
        source.install()
        of = source_part(source)
    faults = schedule.faults
    if faults is None:
        faults = possible_faults(place.source, place.guard, None)
        if find(FAKETIME) is None:
            faults = tuple(one for one in faults if one != JUMP)
        if schedule.group == OWN and place.servers is not None:
            faults += place.servers.faults
    struck = tuple(dict.fromkeys(strike.kind for strike in schedule.script))
    usual_ttl = place.servers.ttl if place.servers is not None else USUAL_TTL_S
    return CampaignSettings(
        source=place.source,
        guard=place.guard,
        run=os.urandom(3).hex(),
        of=of,
        workers=schedule.workers,
        locks=schedule.locks,
        threads=schedule.threads,
        ttl=usual_ttl if schedule.ttl is None else schedule.ttl,
        duration=duration,
        seed=seed,
        faults=(*faults, *struck),
        mix=schedule.mix,
        rates=schedule.rates,
    )
