"""What a campaign is to do: its settings, the names of what it makes, and which fault hits whom, where, how long.

Promise: the faults are a function of the settings' seed alone. Each tenure of each worker has its own draw, so that the
same seed gives the same faults, however fast the machine gets to them. Never: a name that was not made for this run.
"""

import random
from dataclasses import dataclass
from typing import Any, NamedTuple

import fencelock
from fencelock_lab.campaigns.history import DELAY, DROP, FREEZE, JUMP, KILL, PARTITION, RESTORE, STRAY
from fencelock_lab.proxy import address_of

OWN_NAMES = "fencelock-verify-"
"""What the names of a campaign's locks and resources begin with, and nobody else's."""
NAP = "nap"
"""Not a fault: a process that takes its time between read and write, and goes on renewing its lease meanwhile."""
AIMED_NAP_TTLS = 0.6
"""How long a holder naps because another is frozen. It may have got the lock after two thirds of a ttl, as the frozen
one's last renewal can be a third old, and that one sleeps for a whole ttl at least: both are to meet."""
NETWORK_FAULTS = (PARTITION, DELAY, DROP)
FAULTS = (FREEZE, KILL, STRAY, JUMP, *NETWORK_FAULTS)
CONTROL_FAULTS = (FREEZE, KILL, RESTORE)
TRUSTING = ("etcd", "zookeeper")
"""Stores that have no triggers."""
MS_PER_S = 1000
USUAL_TTL_S = 0.5
"""The length of the leases unless a source has reasons for another."""
SOURCE, GUARD = "source", "guard"
"""The two sides that a worker can be cut off from."""
ACQUIRED, BETWEEN, WRITTEN, LEAVING = "acquired", "between", "written", "leaving"
"""Where a fault hits: after the acquire, between read and write, between write and commit, before the release."""

_USUAL_TTLS_S = {"etcd": 2.0, "zookeeper": 2.0}
"""etcd's shortest lease is one and a half of its election timeout, which is a second unless somebody changed it."""
_POINTS = {ACQUIRED: 4, BETWEEN: 10, WRITTEN: 1, LEAVING: 2}
"""How often each is chosen. One that is frozen inside a write holds a whole SQLite file up, hence seldom."""
_SHARES = {
    FREEZE: 0.20,
    KILL: 0.02,
    PARTITION: 0.04,
    DELAY: 0.04,
    DROP: 0.06,
    RESTORE: 0.05,
    STRAY: 0.03,
    NAP: 0.15,
    JUMP: 0.05,
}
"""The share of tenures that each hits."""
_FREEZE_TTLS = (1.1, 2.4)
_SHORT_FREEZE_TTLS = (0.1, 0.9)
_SHORT_SHARE = 0.15
_LENGTHS_TTLS = {NAP: (0.2, 0.5), PARTITION: (0.2, 2.0), DELAY: (0.2, 1.0), JUMP: (-7200.0, 7200.0)}
_BEARER_SHARE = 0.8
"""The share of tenures that show a sequencer, so that the guard alone judges them: no lease looks at its clock."""


class Fault(NamedTuple):
    """What hits a tenure, and for how long; `kind` None: nothing. `side` is where a network is disturbed."""

    kind: str | None = None
    point: str = ACQUIRED
    seconds: float = 0.0
    is_bearer: bool = True
    side: str = GUARD


@dataclass(frozen=True, slots=True)
class CampaignSettings:
    """One campaign. Times are seconds.

    `run` tells this run's tables from those of every other. Locks and resources keep their names from run to run, since
    a mark is never deleted: `of` is the beginning of the source's id.
    """

    source: str | None
    guard: str
    run: str
    of: str
    workers: int = 12
    locks: int = 4
    ttl: float = USUAL_TTL_S
    duration: float = 60.0
    seed: int = 0
    faults: tuple[str, ...] = (FREEZE, KILL, STRAY)
    control: str | None = None

    @property
    def patience(self) -> float:
        """How long everything may stand still after the faults have ended: long enough for a machine that has too much
        to do, and for who has asked a server that was struck, waits for its answer, and then looks for another.
        """
        return 3 * self.ttl + 30.0

    def lock(self, number: int) -> str:
        """Return the name of a lock."""
        return f"{OWN_NAMES}{self.of}-{number}"

    def resources(self, number: int) -> list[str]:
        """Return the names of what a lock protects: one resource, or two for every other lock."""
        return [f"{self.lock(number)}-{letter}" for letter in "ab"[: 1 + number % 2]]

    def stems(self, number: int) -> dict[str, str]:
        """Return for each resource of a lock the part of names that is this run's own."""
        return {resource: f"verify_{self.run}_{number}_{resource[-1]}" for resource in self.resources(number)}

    def is_reentrant(self, number: int) -> bool:
        """Tell whether the lock's holders enter again: one lock in three, if there are so many."""
        return number % 3 == 2  # noqa: PLR2004 - the third of each three

    def lock_of_worker(self, worker: int) -> int:
        """Return the number of the lock that a worker competes for."""
        return worker % self.locks

    def shown_urls(self) -> dict[str, str]:
        """Return the URLs of the source and the guard as they may be shown: without users and passwords."""
        with fencelock.connect(self.source) as source:
            return {"source": source.url, "guard": self.guard_of(0).url}

    def guard_of(self, number: int) -> fencelock.Guard:
        """Return the guard of what a lock protects; ConfigError if the guard's URL is not understood."""
        return fencelock.guard(self.guard, resources=self.resources(number), lock=self.lock(number))

    def bindings(self) -> dict[str, str]:
        """Return the lock of each resource."""
        return {resource: self.lock(number) for number in range(self.locks) for resource in self.resources(number)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "CampaignSettings":
        """Return the settings that were written as JSON."""
        return cls(**data | {"faults": tuple(data["faults"])})


def fault_of(settings: CampaignSettings, worker: int, tenure: int) -> Fault:
    """Return what hits this tenure of this worker: the first ones are aimed, the others drawn."""
    return (_aimed(settings, worker) if tenure == 1 else None) or _drawn(settings, worker, tenure)


def _aimed(settings: CampaignSettings, worker: int) -> Fault | None:
    """Return what hits the first tenure of each lock's first worker and of its last one, so that no run is without."""
    if FREEZE in settings.faults and worker < settings.locks:
        return Fault(FREEZE, BETWEEN, settings.ttl * _FREEZE_TTLS[1])
    if RESTORE in settings.faults and worker >= settings.workers - settings.locks:
        return Fault(RESTORE)
    return None


def _drawn(settings: CampaignSettings, worker: int, tenure: int) -> Fault:
    chance = random.Random(f"{settings.seed}/{worker}/{tenure}")  # noqa: S311 - drawn again from its seed
    drawn = chance.random()
    (point,) = chance.choices(list(_POINTS), list(_POINTS.values()))
    # Inside a write it is the lease that limits how long a frozen process may hold others up.
    is_bearer = chance.random() < _BEARER_SHARE and point != WRITTEN
    for kind, share in _SHARES.items():
        if drawn < share:
            if kind != NAP and kind not in settings.faults:
                break
            point = BETWEEN if kind in {NAP, STRAY} else point
            return Fault(kind, point, settings.ttl * _length(kind, chance), is_bearer, chance.choice((SOURCE, GUARD)))
        drawn -= share
    return Fault(is_bearer=is_bearer)


def _length(kind: str, chance: random.Random) -> float:
    if kind == FREEZE:
        is_short = chance.random() < _SHORT_SHARE
        return chance.uniform(*(_SHORT_FREEZE_TTLS if is_short else _FREEZE_TTLS))
    return chance.uniform(*_LENGTHS_TTLS.get(kind, (0, 0)))


def usual_ttl(source: str | None) -> float:
    """Return how many seconds leases of this source last unless the user says otherwise."""
    with fencelock.connect(source) as opened:
        return max(
            opened.capabilities.ttl_min_ms / MS_PER_S,
            _USUAL_TTLS_S.get(opened.url.partition("://")[0].lower(), USUAL_TTL_S),
        )


def possible_faults(source: str | None, guard: str, control: str | None) -> tuple[str, ...]:
    """Return the faults that can hit this set-up.

    Those of the network need a URL that names one host. A resource is restored only where nobody's data is behind it. A
    write without a token is none where nothing but access rights would refuse it.
    """
    if control is not None:
        return CONTROL_FAULTS
    has_network = address_of(source) is not None or address_of(guard) is not None
    faults = FAULTS if has_network else (FREEZE, KILL, STRAY, JUMP)
    return faults if guard.partition("://")[0].lower() not in TRUSTING else tuple(one for one in faults if one != STRAY)
