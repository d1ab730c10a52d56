"""What is done to a campaign's own servers, in which order, to which of them, and for how long.

Promise: drawn strikes are a function of the seed, the faults and the length of the leases alone. Each round has every
fault once, so that a campaign of some length has them all.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

DRAWN, LEADER, MAJORITY, ALL = "drawn", "leader", "majority", "all"
"""At which servers a strike aims: drawn ones, the leader, the leader and as many others as end the quorum, or all."""
_PAUSES_S = (1.0, 3.0)
_LENGTHS_TTLS = (0.3, 2.5)
"""Shorter than a lease and longer: servers that come back in time, and servers that do not."""


class Strike(NamedTuple):
    """One fault, `pause` seconds after the end of the one before it.

    `drawn` chooses the server, or all of them; `seconds` is how long it is down, frozen or isolated.
    """

    pause: float
    kind: str
    drawn: int = 0
    seconds: float = 0.0
    aim: str = DRAWN

    def victims(self, size: int, leader: int = 0) -> list[int]:
        """Return the numbers of the servers that it hits, out of so many."""
        if self.aim == DRAWN:
            number = self.drawn % (size + 1)
            return list(range(size)) if number == size else [number]
        count = {LEADER: 1, MAJORITY: size // 2 + 1, ALL: size}[self.aim]
        return [(leader + at) % size for at in range(count)]


def strikes(seed: int, faults: tuple[str, ...], ttl: float) -> Iterator[Strike]:
    """Yield the drawn strikes of a campaign, without an end."""
    chance = random.Random(f"{seed}/servers")  # noqa: S311 - drawn again from its seed
    while faults:
        for kind in chance.sample(faults, len(faults)):
            pause = chance.uniform(*_PAUSES_S)
            yield Strike(pause, kind, chance.randrange(2**16), ttl * chance.uniform(*_LENGTHS_TTLS))
