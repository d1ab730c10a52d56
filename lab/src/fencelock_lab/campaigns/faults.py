"""Which fault hits which process in which of its tenures, at which point, and for how long.

Promise: the faults are a function of the settings alone. Each tenure of each worker has its own draw, so that the same
seed gives the same faults, however fast the machine reaches them.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fencelock_lab.campaigns.history import (
    CUT,
    DELAY,
    DROP,
    FREEZE,
    JUMP,
    KILL,
    LOSE,
    PARTITION,
    RESTORE,
    STRAY,
)
from fencelock_lab.campaigns.settings import GUARD, CampaignSettings

NAP = "nap"
"""Not a fault: a process that takes its time between read and write, and goes on renewing its lease meanwhile."""
EARLY_RELEASE, FORGET = "early-release", "forget"
"""A process that releases the lock before it reads and writes; a process that drops its lease without a release."""
AIMED_NAP_TTLS = 0.6
"""How long a holder naps because another process is frozen. It may have got the lock after two thirds of a ttl, as the
last renewal of the frozen one can be a third old, and that one sleeps for a whole ttl at least: the two must meet."""
ACQUIRED, READING, BETWEEN, WRITTEN, LEAVING = "acquired", "reading", "between", "written", "leaving"
"""Where a fault hits: after the acquire, after the first read, between reads and writes, between write and commit,
before the release."""

_POINTS = {ACQUIRED: 4, READING: 3, BETWEEN: 10, WRITTEN: 1, LEAVING: 2}
"""How often each is chosen. A process that is frozen inside a write blocks a whole SQLite file, hence seldom."""
_SERVICE_POINTS = _POINTS | {WRITTEN: 10}
"""The same at a service, where a process stands still in the middle of its request and blocks nobody."""
_FREEZE_TTLS = (1.1, 2.4)
_SHORT_FREEZE_TTLS = (0.1, 0.9)
_SHORT_SHARE = 0.15
_LENGTHS_TTLS = {PARTITION: (0.2, 2.0), DELAY: (0.2, 1.0), JUMP: (-7200.0, 7200.0)}
_HARMLESS = (NAP, EARLY_RELEASE, FORGET)
"""What a mix may hold without being named among the settings' faults: programs do it, with or without a fault."""


@dataclass(frozen=True, slots=True)
class Mix:
    """How often what happens to the tenures of a campaign.

    `shares` is the share of tenures that each fault hits; `nap_ttls` how long a nap lasts. `bearers` is the share of
    tenures that show a sequencer, so that the guard alone judges them: no lease looks at its clock. The first tenures
    of a mix that `is_aimed` meet the faults without which a campaign proves nothing.
    """

    shares: Mapping[str, float]
    nap_ttls: tuple[float, float] = (0.2, 0.5)
    bearers: float = 0.8
    is_aimed: bool = False


MIXES: Mapping[str, Mix] = {
    "usual": Mix(
        {
            FREEZE: 0.20,
            KILL: 0.02,
            PARTITION: 0.04,
            DELAY: 0.04,
            DROP: 0.06,
            RESTORE: 0.05,
            STRAY: 0.03,
            NAP: 0.15,
            JUMP: 0.05,
        },
        is_aimed=True,
    ),
    # A quarter of the tenures lasts so long that servers fail in them, and each looks at its lease.
    "holders": Mix({NAP: 0.25}, nap_ttls=(0.0, 1.5), bearers=0.0),
    # The lock protects nobody: many tokens meet at the guard at the same time.
    "race": Mix({EARLY_RELEASE: 0.9}, bearers=1.0),
    # Nothing happens to the processes but a network that is bad all the time.
    "weather": Mix({CUT: 0.15, DROP: 0.08, LOSE: 0.08, PARTITION: 0.15, FORGET: 0.1}, bearers=0.0),
    # Whatever happens comes from outside, at any instruction.
    "plain": Mix({}, bearers=0.0),
}


class Fault(NamedTuple):
    """What hits a tenure, and for how long; `kind` None: nothing.

    `side` is where a network is disturbed: on the way to one `server` of a cluster, or to all of them.
    """

    kind: str | None = None
    point: str = ACQUIRED
    seconds: float = 0.0
    is_bearer: bool = True
    side: str = GUARD
    server: int | None = None


def fault_of(settings: CampaignSettings, worker: int, tenure: int) -> Fault:
    """Return what hits this tenure of this worker: the first ones are aimed, the others drawn."""
    mix = MIXES[settings.mix]
    aimed = _aimed(settings, worker) if mix.is_aimed and tenure == 1 else None
    return aimed or _drawn(settings, mix, worker, tenure)


def _aimed(settings: CampaignSettings, worker: int) -> Fault | None:
    """Return what hits the first tenure of each lock's first and last worker, so that no run is without it."""
    if FREEZE in settings.faults and worker < settings.locks:
        point = WRITTEN if settings.is_service and worker % 2 else BETWEEN
        return Fault(FREEZE, point, settings.ttl * _FREEZE_TTLS[1])
    if worker < settings.workers - settings.locks:
        return None
    if KILL in settings.faults and settings.is_service:
        return Fault(KILL, WRITTEN)
    return Fault(RESTORE) if RESTORE in settings.faults else None


def _drawn(settings: CampaignSettings, mix: Mix, worker: int, tenure: int) -> Fault:
    chance = random.Random(f"{settings.seed}/{worker}/{tenure}")  # noqa: S311 - drawn again from its seed
    drawn = chance.random()
    points = _SERVICE_POINTS if settings.is_service else _POINTS
    (point,) = chance.choices(list(points), list(points.values()))
    # Inside a write it is the lease that limits how long a frozen process may block others.
    is_bearer = chance.random() < mix.bearers and (point != WRITTEN or settings.is_service)
    for kind, share in mix.shares.items():
        if drawn < share:
            if kind not in _HARMLESS and kind not in settings.faults:
                break
            point = {NAP: nap_point(tenure), STRAY: BETWEEN, EARLY_RELEASE: ACQUIRED, FORGET: ACQUIRED}.get(kind, point)
            seconds = settings.ttl * _length(kind, mix, chance)
            side = chance.choice(settings.disturbed_sides)
            server = chance.choice((None, chance.randrange(2**16)))
            return Fault(kind, point, seconds, is_bearer or kind == EARLY_RELEASE, side, server)
        drawn -= share
    return Fault(is_bearer=is_bearer)


def nap_point(tenure: int) -> str:
    """Return where a tenure takes its time: between its reads, or between them and its writes, in turns."""
    return READING if tenure % 2 else BETWEEN


def _length(kind: str, mix: Mix, chance: random.Random) -> float:
    if kind == FREEZE:
        is_short = chance.random() < _SHORT_SHARE
        return chance.uniform(*(_SHORT_FREEZE_TTLS if is_short else _FREEZE_TTLS))
    return chance.uniform(*(mix.nap_ttls if kind == NAP else _LENGTHS_TTLS.get(kind, (0, 0))))
