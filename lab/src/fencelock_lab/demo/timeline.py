"""Turn an act's events into a picture of rows and lanes, which the terminal and the SVG both draw.

Promise: pure. A row is a moment at which something is worth seeing; a lane is a process; a cell
says in which state the process is at that moment and what it does. Rows are evenly spaced, since
nearly all that matters happens within a few milliseconds on either side of one long freeze; each
row says its true time. The moment of a loss is found, not told: it is the first at which the
counter and the sum acknowledged until then disagree.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from fencelock_lab.demo.acts import AMOUNTS
from fencelock_lab.demo.record import ActRecord, DemoEvent

_ROWLESS = ("asked", "released")
"""Events that change a process's state, and are seen in the rows that follow."""


class State(Enum):
    """What a process is at a moment. OVERDUE: it believes that it holds the lock, and does not."""

    IDLE = "idle"
    WAITING = "waiting"
    HOLDING = "holding"
    FROZEN = "frozen"
    OVERDUE = "overdue"


class Tone(Enum):
    """Whether what a cell says is good or bad news for the data."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Cell:
    """One process at one moment. `verb` and `detail` are empty where it does nothing new.

    `lease_is_over`: the lease of a frozen process has ended.
    """

    state: State = State.IDLE
    token: int | None = None
    is_over: bool = False
    verb: str = ""
    detail: str = ""
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Row:
    """One moment: each process, and the resource after it. `lost` is what this very moment lost."""

    time: float
    event: DemoEvent
    cells: dict[str, Cell]
    counter: int = 0
    mark: int | None = None
    is_counter_new: bool = False
    is_mark_new: bool = False
    lost: int = 0

    @property
    def is_sealed(self) -> bool:
        """True if a read raised the mark: sealed first, then read."""
        return self.is_mark_new and self.event.name == "read"


@dataclass(frozen=True, slots=True)
class Timeline:
    """An act, ready to be drawn."""

    number: int
    title: str
    scene: str
    verdict: str
    is_fenced: bool
    is_lossless: bool
    lanes: tuple[str, ...]
    rows: tuple[Row, ...]


def timeline(record: ActRecord) -> Timeline:
    """Return the picture of a played act."""
    return Timeline(
        number=record.act.number,
        title=record.act.title,
        scene=record.act.scene,
        verdict=record.verdict,
        is_fenced=record.act.is_fenced,
        is_lossless=record.lost == 0,
        lanes=tuple(AMOUNTS),
        rows=tuple(_Builder().build(with_expiry(record.events))),
    )


def with_expiry(events: Iterable[DemoEvent]) -> list[DemoEvent]:
    """Return the events with an `expired` one where a frozen process's lease has come to its end.

    Its time is the freeze's plus the time left that the source stated, but not later than the
    next holder's acquisition, which proves that the lease had ended.
    """
    told: list[DemoEvent] = []
    pending: list[DemoEvent] = []
    for event in events:
        if event.name in {"acquired", "thawed"}:
            told.extend(replace(end, time=min(end.time, event.time)) for end in pending)
            pending.clear()
        told.append(event)
        if event.name == "frozen":
            end = event.time + (event.seconds or 0.0)
            pending.append(DemoEvent(end, "expired", event.process))
    return told


@dataclass(slots=True)
class _Builder:
    """Goes through the events once, and remembers in which state each process is."""

    now: dict[str, Cell] = field(default_factory=lambda: {name: Cell() for name in AMOUNTS})
    counter: int | None = None
    mark: int | None = None
    acknowledged: int = 0
    missing: int = 0
    rows: list[Row] = field(default_factory=list)

    def build(self, events: Iterable[DemoEvent]) -> list[Row]:
        for event in events:
            if event.process is None:
                self._see(event)
            else:
                self._happen(event, event.process)
        return self.rows

    def _happen(self, event: DemoEvent, process: str) -> None:
        self.now[process] = after(self.now[process], event)
        if event.name == "accepted":
            self.acknowledged += event.amount or 0
        if event.name not in _ROWLESS:
            self.rows.append(Row(event.time, event, dict(self.now), self.counter or 0, self.mark))
            self.now = {name: _still(cell) for name, cell in self.now.items()}

    def _see(self, event: DemoEvent) -> None:
        """Put what was read from the database into the row of the move that it followed."""
        counter = event.value or 0
        is_first = len(self.rows) == 1
        if self.rows:
            missing = self.acknowledged - counter
            self.rows[-1] = replace(
                self.rows[-1],
                counter=counter,
                mark=event.mark,
                is_counter_new=is_first or self.rows[-1].event.name == "accepted",
                is_mark_new=is_first or event.mark != self.mark,
                lost=max(0, missing - self.missing),
            )
            self.missing = missing
        self.counter, self.mark = counter, event.mark


def _still(cell: Cell) -> Cell:
    return replace(cell, verb="", detail="", tone=Tone.PLAIN)


def after(cell: Cell, event: DemoEvent) -> Cell:
    """Return the cell of a process after an event of its own."""
    match event.name:
        case "asked":
            cell = Cell(State.WAITING, verb="waits")
        case "acquired":
            cell = Cell(State.HOLDING, event.token, verb="gets lock", detail=f"token {event.token}")
        case "read":
            cell = replace(cell, verb=f"reads {event.value}")
        case "frozen":
            cell = replace(cell, state=State.FROZEN, verb="frozen", detail="SIGSTOP")
        case "expired":
            cell = replace(cell, is_over=True, verb="lease ends")
        case "thawed":
            state = State.OVERDUE if cell.is_over else State.HOLDING
            cell = replace(cell, state=state, verb="wakes", detail="SIGCONT")
        case "accepted":
            tone = Tone.BAD if cell.state is State.OVERDUE else Tone.GOOD
            cell = replace(cell, verb=f"writes {event.value}", detail="accepted", tone=tone)
        case "refused":
            verb = f"writes {event.value}"
            cell = replace(cell, verb=verb, detail="REFUSED", tone=Tone.GOOD)
        case "released":
            cell = Cell()
        case name:
            raise ValueError(f"the timeline knows no event {name!r}")
    return cell
