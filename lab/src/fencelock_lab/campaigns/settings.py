"""The settings of a campaign: what it attacks, with how many processes, for how long, and by which faults.

Promise: what is named here was made for this run, and has names that no other program uses.
"""

from dataclasses import dataclass
from typing import Any

import fencelock
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
from fencelock_lab.proxy import addresses_of

OWN_NAMES = "fencelock-verify-"
"""What the names of a campaign's locks and resources begin with, and no others."""
NETWORK_FAULTS = (PARTITION, DELAY, DROP, CUT, LOSE)
FAULTS = (FREEZE, KILL, STRAY, JUMP, PARTITION, DELAY, DROP)
CONTROL_FAULTS = (FREEZE, KILL, RESTORE)
ANYWHERE_FREEZE, ANYWHERE_KILL = "freeze-anywhere", "kill-anywhere"
"""A freeze and a kill from outside, at any instruction, where the others hit a process at a point of its tenure."""
OWN_GUARD = "python:"
"""What the guard is called that a user has written: `python:MODULE:NAME`."""
SERVICE = ("http://", "https://")
"""How the URL of a service begins, which keeps a text for each resource."""
UNTOLD = "untold"
"""The control in which processes have no `on_lost`: it breaks no rule of a guard."""
SOURCE, GUARD = "source", "guard"
"""The two sides from which a worker can be cut off."""
MS_PER_S = 1000
_TRIAL_TTL_S = 10.0
_SOURCE_ID_CHARACTERS = 8
USUAL_TTL_S = 0.5
"""The length of the leases unless a source has reasons for another."""
_USUAL_TTLS_S = {"etcd": 2.0, "zookeeper": 2.0}
"""etcd's shortest lease is one and a half of its election timeout, which is a second by default."""


@dataclass(frozen=True, slots=True)
class CampaignSettings:
    """One campaign. Times are seconds.

    `run` tells this run's tables from those of every other. Locks and resources keep their names from run to run, since
    a mark is never deleted: `of` is the beginning of the source's id. The processes of a `control` show each other
    their tokens in `control_folder`. `mix` names how often each fault comes. Each process has so many `threads`, which
    share its source and compete as processes do. `rates` are how fast the clocks go by which the processes judge their
    leases, one process after the other.
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
    control_folder: str = ""
    mix: str = "usual"
    threads: int = 1
    rates: tuple[float, ...] = (1.0,)

    @property
    def is_service(self) -> bool:
        """Whether the guard is behind HTTP."""
        return self.guard.startswith(SERVICE)

    @property
    def has_texts(self) -> bool:
        """Whether the resources are texts: what a user has written keeps them, a guard or a service."""
        return self.guard.startswith((OWN_GUARD, *SERVICE))

    @property
    def disturbed_sides(self) -> tuple[str, ...]:
        """The sides that have a network which can be disturbed; both if neither has."""
        urls = {SOURCE: self.source, GUARD: self.guard}
        return tuple(side for side, url in urls.items() if addresses_of(url)) or (SOURCE, GUARD)

    @property
    def trial_ttl(self) -> float:
        """The length of the leases under which a setup is tried: a slow machine is no reason to refuse it."""
        return max(self.ttl, _TRIAL_TTL_S)

    @property
    def patience(self) -> float:
        """How long everything may stand still after the faults have ended: long enough for a loaded machine, and for a
        client that waits for the answer of a server that was hit, and then looks for another.
        """
        return 3 * self.ttl + 30.0

    def lock(self, number: int) -> str:
        """Return the name of a lock."""
        return f"{OWN_NAMES}{self.of}-{number}"

    def resources(self, number: int) -> list[str]:
        """Return the names of what a lock protects: one resource, or two for every other lock.

        What a user has written is not told which resources belong together, and some stores cannot seal two in one
        step: there each lock has one.
        """
        is_lone = self.has_texts or not _some_guard(self.guard).capabilities.spans_resources
        count = 1 if is_lone else 1 + number % 2
        return [f"{self.lock(number)}-{letter}" for letter in "ab"[:count]]

    def stems(self, number: int) -> dict[str, str]:
        """Return for each resource of a lock the part of names that is this run's own."""
        return {resource: f"verify_{self.run}_{number}_{resource[-1]}" for resource in self.resources(number)}

    def is_reentrant(self, number: int) -> bool:
        """Return whether the lock's holders enter it again: every third lock."""
        return number % 3 == 2  # noqa: PLR2004 - the third of each three

    def lock_of_worker(self, worker: int) -> int:
        """Return the number of the lock for which a worker competes."""
        return worker % self.locks

    def competitors(self, worker: int) -> range:
        """Return the numbers of a worker's threads: the first ones have those of their workers."""
        return range(worker, self.workers * self.threads, self.workers)

    def rate(self, worker: int) -> float:
        """Return how fast the clock of a worker goes."""
        return self.rates[worker % len(self.rates)]

    def shown_urls(self) -> dict[str, str]:
        """Return the URLs of the source and the guard as they may be shown: without users and passwords."""
        with fencelock.connect(self.source) as source:
            return {"source": source.url, "guard": self.guard if self.has_texts else self.guard_of(0).url}

    def guard_of(self, number: int) -> fencelock.Guard:
        """Return the guard of what a lock protects; ConfigError if the guard's URL is not understood."""
        return fencelock.guard(self.guard, resources=self.resources(number), lock=self.lock(number))

    def bindings(self) -> dict[str, str]:
        """Return the lock of each resource."""
        return {resource: self.lock(number) for number in range(self.locks) for resource in self.resources(number)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "CampaignSettings":
        """Return the settings that were written as JSON."""
        return cls(**data | {"faults": tuple(data["faults"]), "rates": tuple(data["rates"])})


def usual_ttl(source: str | None) -> float:
    """Return how many seconds leases of this source last unless the user says otherwise."""
    with fencelock.connect(source) as opened:
        return max(
            opened.capabilities.ttl_min_ms / MS_PER_S,
            _USUAL_TTLS_S.get(opened.url.partition("://")[0].lower(), USUAL_TTL_S),
        )


def possible_faults(source: str | None, guard: str, control: str | None) -> tuple[str, ...]:
    """Return the faults that can hit this setup.

    Those of the network need a URL that names hosts, and a client that does not check their names. A resource is
    restored only where a control's own data is behind it. A write without a token is no fault where nothing but access
    rights would refuse it.
    """
    if control is not None:
        return CONTROL_FAULTS
    has_network = bool(addresses_of(source) or addresses_of(guard))
    faults = FAULTS if has_network else (FREEZE, KILL, STRAY, JUMP)
    return faults if _is_enforced(guard) else tuple(one for one in faults if one != STRAY)


def _is_enforced(guard: str) -> bool:
    """Return whether what is behind the guard's URL itself refuses a write without a token."""
    if guard.startswith((OWN_GUARD, *SERVICE)):
        return guard.startswith(SERVICE)
    return _some_guard(guard).capabilities.enforced_by == "store"


def _some_guard(url: str) -> fencelock.Guard:
    """Return a guard at the URL, of whichever resource: it tells what its store can do."""
    return fencelock.guard(url, resource=OWN_NAMES, lock=OWN_NAMES)


def source_part(source: fencelock.Source) -> str:
    """Return what the names of a campaign have of its source: the beginning of the source's id."""
    return source.describe().source_id[:_SOURCE_ID_CHARACTERS]
