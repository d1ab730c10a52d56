"""What is done to a campaign's own servers, in which order, to which of them, and for how long.

Promise: the schedule is a function of the seed, the faults and the length of the leases alone. Each round has every
fault once, so that a campaign of some length has them all.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

_PAUSES_S = (1.0, 3.0)
_LENGTHS_TTLS = (0.3, 2.5)
"""Shorter than a lease and longer: servers that come back in time, and such that do not."""


class Strike(NamedTuple):
    """One fault, `pause` seconds after the end of the one before it.

    `drawn` chooses the server, or all of them; `seconds` is how long it is down, frozen or cut off.
    """

    pause: float
    kind: str
    drawn: int
    seconds: float

    def victims(self, size: int) -> range:
        """Return the numbers of the servers that it hits, of so many: one of them, or now and then all."""
        number = self.drawn % (size + 1)
        return range(size) if number == size else range(number, number + 1)


def strikes(seed: int, faults: tuple[str, ...], ttl: float) -> Iterator[Strike]:
    """Yield the strikes of a campaign, without an end."""
    chance = random.Random(f"{seed}/servers")  # noqa: S311 - drawn again from its seed
    while faults:
        for kind in chance.sample(faults, len(faults)):
            pause = chance.uniform(*_PAUSES_S)
            yield Strike(pause, kind, chance.randrange(2**16), ttl * chance.uniform(*_LENGTHS_TTLS))
