"""Draw timelines as text: time runs down, one lane per process, the resource between the lanes.

Promise: 78 columns, and no information in colour alone, so that it reads the same in a file, in a
narrow window and without colour. Where the output cannot carry line-drawing characters, plain ones
stand in for them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from fencelock_lab.demo.record import DemoEvent
from fencelock_lab.demo.timeline import Cell, Row, State, Timeline, Tone

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH = 78
_TIME_WIDTH = 9
_LANE_WIDTH = 23
_COUNTER_WIDTH = 13
_MARK_WIDTH = 10

_RAILS = {
    State.IDLE: (" ", ""),
    State.WAITING: ("┊", "dim"),
    State.HOLDING: ("┃", "bold green"),
    State.FROZEN: ("▒", "bold cyan"),
    State.OVERDUE: ("╏", "bold red"),
}
_TONES = {Tone.PLAIN: "", Tone.GOOD: "bold green", Tone.BAD: "bold red"}
_LEGEND = (
    (State.HOLDING, "holds the lock"),
    (State.WAITING, "waits for it"),
    (State.FROZEN, "frozen"),
    (State.OVERDUE, "thinks that it holds the lock"),
)
_PLAIN = str.maketrans({"┃": "|", "┊": ":", "▒": "#", "╏": "!", "─": "-"})


def show(timelines: list[Timeline], output: TextIO, explanation: str) -> None:
    """Write the explanation, the timelines one below the other, and a legend.

    Colour appears on a terminal only, and not where NO_COLOR is set.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(file=output, highlight=False, soft_wrap=True)
    # Captured, since rich would answer a reader that has gone with an exit code of its own.
    with console.capture() as captured:
        for sentence in (*explanation.splitlines(), ""):
            _print(console, Text(sentence))
        for timeline in timelines:
            for line in _act(timeline):
                _print(console, line)
        _print(console, _legend())
    output.write(captured.get())


def _print(console: "Console", line: "Text") -> None:
    if console.options.ascii_only:
        line.plain = line.plain.translate(_PLAIN)
    line.rstrip()
    console.print(line)


def _act(timeline: Timeline) -> Iterator["Text"]:
    from rich.text import Text

    yield Text(f"Act {timeline.number}: {timeline.title}", "bold")
    yield Text(timeline.scene)
    yield Text("─" * WIDTH, "dim")
    yield _header(timeline)
    for row in timeline.rows:
        yield _row(row, timeline.lanes)
    yield Text("─" * WIDTH, "dim")
    yield Text(timeline.verdict, "bold green" if timeline.is_lossless else "bold red")
    yield Text()


def _header(timeline: Timeline) -> "Text":
    from rich.text import Text

    first, second = (f"  process {lane}".ljust(_LANE_WIDTH) for lane in timeline.lanes)
    resource = "counter".ljust(_COUNTER_WIDTH) + "mark".ljust(_MARK_WIDTH)
    return Text("time".ljust(_TIME_WIDTH) + first + resource + second, "dim")


def _row(row: Row, lanes: tuple[str, ...]) -> "Text":
    from rich.text import Text

    first, second = (row.cells[lane] for lane in lanes)
    line = Text()
    line.append(f"{row.time:6.3f} s".ljust(_TIME_WIDTH), "dim")
    _add_cell(line, first)
    _add_resource(line, row)
    _add_cell(line, second)
    return line


def _add_cell(line: "Text", cell: Cell) -> None:
    rail, style = _RAILS[cell.state]
    text = ": ".join(filter(None, (cell.verb, cell.detail)))
    line.append(rail, style)
    line.append(f" {text}".ljust(_LANE_WIDTH - len(rail)), _TONES[cell.tone])


def _add_resource(line: "Text", row: Row) -> None:
    counter = f"{row.counter}" if row.is_counter_new else ""
    if row.lost:
        counter += f"  LOST {row.lost}"
    mark = f"{row.mark}" if row.is_mark_new and row.mark is not None else ""
    if row.is_sealed:
        mark += " sealed"
    line.append(counter.ljust(_COUNTER_WIDTH), "bold red" if row.lost else "bold")
    line.append(mark.ljust(_MARK_WIDTH), "bold green" if row.is_sealed else "")


def _legend() -> "Text":
    from rich.text import Text

    line = Text()
    for state, meaning in _LEGEND:
        rail, style = _RAILS[state]
        line.append(rail, style)
        line.append(f" {meaning}   ", "dim")
    return line


_NARRATION = {
    "asked": "waits for the lock",
    "acquired": "got the lock with token {event.token}",
    "read": "read {event.value}",
    "frozen": "is frozen; its lease still runs for {event.seconds:.1f} s",
    "thawed": "wakes after {event.seconds:.1f} s",
    "accepted": "wrote {event.value}",
    "refused": "was refused: token {event.token} is below the mark, {event.mark}",
    "released": "released the lock",
}


def narrate(event: DemoEvent) -> str:
    """Return an event as a short sentence."""
    if event.process is None:
        return f"the counter is {event.value}"
    return f"{event.process} {_NARRATION[event.name].format(event=event)}"
