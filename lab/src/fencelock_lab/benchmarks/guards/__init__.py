"""One module for each store: a guarded write, a hand-written one that reads a mark, and one without a check.

Each has `KINDS`, the kinds of writes compared there, and `variants(url, kind)`, which makes the variants in a writer's
process; `prepare(url)` is called once before. Where a guard remembers what it has replaced, `tidy(url, kind)` lets it
forget that, before each turn. The sequencer is made up, because a guard asks no source.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fencelock import Sequencer
from fencelock.protocol import one_way
from fencelock_lab.benchmarks.peers.contender import run

LEASE = Sequencer("bench", "history", "bench", 1, one_way("the claim of the benchmarks"))
RESOURCE, LOCK = "reports", "bench"
NO_CHECK, BY_HAND, GUARDED = "no check at all", "a look at the mark by hand", "guard.transaction"


@dataclass(frozen=True, slots=True)
class Kind:
    """The number of writers, and of statements in a transaction.

    `aim` is the ratio to the first variant that the guarded write should not be above; `most_requests` the number of
    requests, where they can be counted.
    """

    name: str
    writers: int = 1
    statements: int = 1
    batch: int = 20
    aim: float | None = None
    is_async: bool = False
    """Whether all variants, the floor too, are written for asyncio."""
    most_requests: int | None = None
    replaced: int = 0
    """How many objects were replaced before, where a guard remembers them."""


USUAL = (
    Kind("1 writer, 1 statement"),
    Kind("8 writers, 1 statement", writers=8, batch=10),
    Kind("1 writer, 100 statements", statements=100, batch=2),
)


def on_loop(work: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Any]:
    """Return a function that runs a coroutine function on this process's one loop."""
    return lambda: run(work())
