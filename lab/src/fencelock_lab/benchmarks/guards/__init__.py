"""One module for each store: a guarded write, a hand-written one that reads a mark, and one without a check.

Each has `KINDS`, the kinds of writes compared there, and `variants(url, kind, statements)`, which makes the variants in
a writer's process; `prepare(url)` is called once before. The sequencer is made up, because a guard asks no source.
"""

from dataclasses import dataclass

from fencelock import Sequencer
from fencelock.protocol import one_way

LEASE = Sequencer("bench", "history", "bench", 1, one_way("the claim of the benchmarks"))
RESOURCE, LOCK = "reports", "bench"
NO_CHECK, BY_HAND, GUARDED = "no check at all", "a look at the mark by hand", "guard.transaction"


@dataclass(frozen=True, slots=True)
class Kind:
    """The number of writers, and of statements in a transaction; `aim` is the ratio to the first variant."""

    name: str
    writers: int = 1
    statements: int = 1
    batch: int = 20
    aim: float | None = None


USUAL = (
    Kind("1 writer, 1 statement"),
    Kind("8 writers, 1 statement", writers=8, batch=10),
    Kind("1 writer, 100 statements", statements=100, batch=2),
)
