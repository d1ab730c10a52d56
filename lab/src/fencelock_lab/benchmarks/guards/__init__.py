"""One module a store: a guarded write, one by hand that looks at a mark, and one that looks at nothing.

Each has `KINDS`, what is compared there, and `variants(url, kind, statements)`, which makes the variants in the process
of a writer; `prepare(url)` is called once before. The sequencer is made up: what is measured is the guard, and nothing
asks its source.
"""

from dataclasses import dataclass

from fencelock import Sequencer

LEASE = Sequencer("bench", "history", "bench", 1, "claim")
RESOURCE, LOCK = "reports", "bench"
NO_CHECK, BY_HAND, GUARDED = "no check at all", "a look at the mark by hand", "guard.transaction"


@dataclass(frozen=True, slots=True)
class Kind:
    """So many writers at once, and so many statements in a transaction; `aim` is against the first variant."""

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
