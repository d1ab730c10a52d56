"""The three acts: what stands between a stale write and the data, and who moves when.

Promise: an act is data. Two processes run the same program over one counter, `worker.py`, which
stops before each of its lines; the moves say who passes which line next, who is frozen there and
who is woken. The moves never say what a process reads or whether its write is accepted: that is
found out by playing the act.
"""

from dataclasses import dataclass
from typing import NamedTuple

AMOUNTS = {"A": 1, "B": 10}
"""What each process adds to the counter: powers of ten, so that a digit says whose is missing."""


class Move(NamedTuple):
    """One step of an act: `verb` is freeze, thaw, finish (pass all lines), or the line to pass.

    The lines of the worker's program before which it stops are acquire, read and write.
    """

    process: str
    verb: str


@dataclass(frozen=True, slots=True)
class Act:
    """One scene. `resource` is the kind of resource, by its name in `resources.py`."""

    number: int
    title: str
    scene: str
    resource: str
    is_fenced: bool
    moves: tuple[Move, ...]


def _moves(text: str) -> tuple[Move, ...]:
    return tuple(Move(*step.split()) for step in text.split(","))


# The old holder wakes after the new one has written.
_AFTER_THE_WRITE = _moves(
    "A acquire, A read, A freeze, B acquire, B read, B write, A thaw, A write, A finish, B finish"
)

# The old holder wakes between the new one's read and its write: the harder order, since nothing
# but a seal has raised the mark by then.
_BETWEEN_READ_AND_WRITE = _moves(
    "A acquire, A read, A freeze, B acquire, B read, A thaw, A write, B write, B finish, A finish"
)

ACTS = (
    Act(
        number=1,
        title="A lock alone",
        scene="The token is never checked. A wakes after B has written.",
        resource="unchecked",
        is_fenced=False,
        moves=_AFTER_THE_WRITE,
    ),
    Act(
        number=2,
        title="Tokens checked, nothing sealed",
        scene="Each write checks token >= mark. A wakes between B's read and B's write.",
        resource="unsealed",
        is_fenced=False,
        moves=_BETWEEN_READ_AND_WRITE,
    ),
    Act(
        number=3,
        title="fencelock",
        scene="B's token is sealed before B reads. A wakes at the same moment as in act 2.",
        resource="guarded",
        is_fenced=True,
        moves=_BETWEEN_READ_AND_WRITE,
    ),
)
