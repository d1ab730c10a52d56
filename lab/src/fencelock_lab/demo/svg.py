"""Draw timelines as one standalone SVG picture: time runs to the right, a lane per process.

The resource lies between the lanes; each read and write is an arrow between it and a lane.

Promise: well-formed, without scripts, fonts or links from elsewhere; legible on light and dark
pages, since it paints its own background and follows the reader's colour scheme; no text overlaps
another. A picture's size follows from the number of acts and of moments, never from their content.
"""

from dataclasses import dataclass
from itertools import groupby
from xml.etree import ElementTree as ET

from fencelock_lab.demo.timeline import Cell, Row, State, Timeline, Tone

COLUMN = 78
MARGIN = 24
GUTTER = 104
"""Width of the names of the lanes, left of the first moment."""

HEADER = 104
FOOTER = 46
ACT = 348
_CARD = ACT - 18

# Heights within an act, from the top of its card.
_TITLE, _SCENE = 30, 51
_BAR = 22
_FIRST_BAR, _RESOURCE, _SECOND_BAR = 104, 160, 240
_RESOURCE_HEIGHT = 46
_TIMES = 312
_CHARACTER = 0.6
"""A generous mean width of a character, in units of the font's size."""

_STYLE = """
text { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2328 }
.page { fill: #f3f4f6 } .card { fill: #ffffff; stroke: #d5d9de }
.muted { fill: #57606a } .strong { font-weight: 600 }
.good { fill: #137333 } .bad { fill: #c5221f } .inverse { fill: #ffffff }
.holding { fill: #1a7f37 } .waiting { fill: none; stroke: #57606a; stroke-dasharray: 2 4 }
.frozen { fill: #cfe8fc; stroke: #2f81c7 } .overdue { fill: #c5221f }
.resource { fill: #eef0f3; stroke: #b6bcc4 } .fenced { stroke: #137333; stroke-width: 2.5 }
.value { fill: #ffffff; stroke: #8b949e } .value-lost { fill: #c5221f; stroke: #c5221f }
.line { stroke: #8b949e; stroke-width: 1.5 } .line-good { stroke: #137333; stroke-width: 2.5 }
.line-bad { stroke: #c5221f; stroke-width: 2.5 } .end { stroke: #c5221f; stroke-width: 2 }
.head { fill: #8b949e } .head-good { fill: #137333 } .head-bad { fill: #c5221f }
.ice { fill: #0b4f8a }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.page { fill: #0d1117 } .card { fill: #161b22; stroke: #30363d }
.muted { fill: #9aa4af } .good { fill: #56d364 } .bad { fill: #ff7b72 } .inverse { fill: #ffffff }
.waiting { stroke: #9aa4af } .frozen { fill: #123a5c; stroke: #58a6ff } .ice { fill: #b6dcff }
.resource { fill: #21262d; stroke: #484f58 } .fenced { stroke: #56d364 }
.value { fill: #0d1117; stroke: #6e7681 }
.line-good { stroke: #56d364 } .line-bad { stroke: #ff7b72 }
.head-good { fill: #56d364 } .head-bad { fill: #ff7b72 } .end { stroke: #ff7b72 }
}
"""

_TONES = {Tone.PLAIN: "", Tone.GOOD: "good strong", Tone.BAD: "bad strong"}
_LEGEND = (
    (State.HOLDING, "holds the lock"),
    (State.WAITING, "waits for it"),
    (State.FROZEN, "frozen"),
    (State.OVERDUE, "awake, and thinks that it holds the lock"),
)


def picture(timelines: list[Timeline], *, heading: str, explanation: str) -> str:
    """Return the SVG text of the timelines, one below the other; the explanation has two lines at most."""
    columns = max(len(timeline.rows) for timeline in timelines)
    width = 2 * MARGIN + GUTTER + columns * COLUMN
    height = HEADER + len(timelines) * ACT + FOOTER
    root = ET.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=f"{width}",
        height=f"{height}",
        role="img",
    )
    pen = _Pen(root)
    pen.note("title", heading)
    pen.note("desc", " ".join(timeline.verdict for timeline in timelines))
    pen.note("style", _STYLE)
    pen.box(0, 0, width, height, "page", radius=0)
    pen.text(MARGIN, 38, heading, 22, "strong")
    for number, line in enumerate(explanation.splitlines()):
        pen.text(MARGIN, 64 + 19 * number, line, 14, "muted")
    for index, timeline in enumerate(timelines):
        _Act(pen, timeline, top=HEADER + index * ACT, width=width).draw()
    _legend(pen, top=height - FOOTER)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def text_width(text: str, size: float) -> float:
    """Return a generous estimate of how wide a text is."""
    return len(text) * size * _CHARACTER


class _Pen:
    """Appends shapes to an SVG element."""

    def __init__(self, root: ET.Element) -> None:
        self._root = root

    def _add(self, tag: str, **attributes: object) -> ET.Element:
        given = {
            key.removesuffix("_").replace("_", "-"): _number(value)
            for key, value in attributes.items()
            if value not in {None, ""}
        }
        return ET.SubElement(self._root, tag, given)

    def note(self, tag: str, content: str) -> None:
        self._add(tag).text = content

    def text(self, x: float, y: float, content: str, size: float, style: str = "", anchor: str = "") -> None:
        text = self._add("text", x=x, y=y, font_size=size, class_=style, text_anchor=anchor)
        text.text = content

    def box(self, x: float, y: float, width: float, height: float, style: str, radius: float = 6) -> None:
        self._add("rect", x=x, y=y, width=width, height=height, rx=radius, class_=style)

    def line(self, x: float, top: float, bottom: float, style: str) -> None:
        self._add("line", x1=x, y1=top, x2=x, y2=bottom, class_=style)

    def dashes(self, left: float, right: float, y: float, style: str) -> None:
        self._add("line", x1=left, y1=y, x2=right, y2=y, class_=style, stroke_width=2)

    def path(self, data: str, style: str) -> None:
        self._add("path", d=data, class_=style)


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(slots=True)
class _Act:
    """Draws one act."""

    pen: _Pen
    timeline: Timeline
    top: float
    width: float

    def draw(self) -> None:
        pen, act = self.pen, self.timeline
        pen.box(MARGIN / 2, self.top, self.width - MARGIN, _CARD, "card", radius=10)
        title = f"{act.number}. {act.title}"
        pen.text(MARGIN, self.top + _TITLE, title, 17, "strong")
        pen.text(MARGIN, self.top + _SCENE, act.scene, 13, "muted")
        style = "good strong" if act.is_lossless else "bad strong"
        right = self.width - MARGIN
        pen.text(right, self.top + _TITLE, act.verdict, 14, style, "end")
        self._resource()
        for lane, bar in zip(act.lanes, (_FIRST_BAR, _SECOND_BAR), strict=True):
            self._lane(lane, bar)
        for index, row in enumerate(act.rows):
            self._arrow(index, row)
            time = f"{row.time:.3f} s"
            pen.text(self._x(index), self.top + _TIMES, time, 11, "muted", "middle")

    def _x(self, index: int) -> float:
        """Return the middle of the column of a moment."""
        return MARGIN + GUTTER + (index + 0.5) * COLUMN

    def _resource(self) -> None:
        pen, top = self.pen, self.top + _RESOURCE
        fence = " fenced" if self.timeline.is_fenced else ""
        left = MARGIN + GUTTER - 4
        pen.text(MARGIN, top + 19, "counter", 13, "strong")
        has_mark = self.timeline.rows[0].mark is not None
        pen.text(MARGIN, top + 38, "mark" if has_mark else "no mark", 13, "muted")
        pen.box(left, top, self.width - MARGIN - left, _RESOURCE_HEIGHT, f"resource{fence}")
        for index, row in enumerate(self.timeline.rows):
            self._value(index, row)

    def _value(self, index: int, row: Row) -> None:
        pen, x, y = self.pen, self._x(index), self.top + _RESOURCE + 19
        if row.is_counter_new:
            pen.box(x - 15, y - 15, 30, 20, "value-lost" if row.lost else "value", radius=4)
            style = "inverse strong" if row.lost else "strong"
            pen.text(x, y, f"{row.counter}", 13, style, "middle")
        if row.lost:
            pen.text(x + 20, y, f"LOST {row.lost}", 13, "bad strong")
        if row.is_mark_new and row.mark is not None:
            text = f"mark {row.mark} sealed" if row.is_sealed else f"mark {row.mark}"
            pen.text(x, y + 19, text, 12, "good strong" if row.is_sealed else "", "middle")

    def _lane(self, lane: str, bar: float) -> None:
        pen, top = self.pen, self.top + bar
        pen.text(MARGIN, top + 16, f"process {lane}", 13, "strong")
        cells = [row.cells[lane] for row in self.timeline.rows]
        runs = groupby(range(len(cells)), key=lambda index: (cells[index].state, cells[index].token))
        for (state, _), run in runs:
            indices = list(run)
            self._bar(state, cells, indices[0], indices[-1], top)
        is_above = bar == _FIRST_BAR
        for index, cell in enumerate(cells):
            self._label(index, cell, top - 24 if is_above else top + _BAR + 17)
            if cell.verb == "lease ends":
                pen.line(self._x(index), top - 5, top + _BAR + 5, "end")

    def _bar(self, state: State, cells: list[Cell], first: int, last: int, top: float) -> None:
        pen = self.pen
        ends_here = last + 1 == len(cells) or cells[last + 1].state is State.IDLE
        left, right = self._x(first), self._x(last) + 12 if ends_here else self._x(last + 1)
        if state is State.WAITING:
            pen.dashes(left - 24, right, top + _BAR / 2, "waiting")
        elif state is not State.IDLE:
            pen.box(left, top, right - left, _BAR, state.value, radius=3)
            style = "ice" if state is State.FROZEN else "inverse"
            text = f"token {cells[first].token}"
            if state is State.FROZEN:
                text += self._frozen_for(last)
                # Between the end of the lease and that of the freeze, clear of the tick.
                left = next((self._x(i) for i in range(first, last) if cells[i].is_over), left)
            style = "ice" if state is State.FROZEN else "inverse"
            pen.text((left + right) / 2, top + 16, text, 12, f"{style} strong", "middle")

    def _frozen_for(self, last: int) -> str:
        """Return how long the freeze lasted that ends after row `last`."""
        rows = self.timeline.rows[last + 1 :]
        thawed = next((row.event for row in rows if row.event.name == "thawed"), None)
        return f", frozen for {thawed.seconds or 0:.2f} s" if thawed else ", frozen"

    def _label(self, index: int, cell: Cell, y: float) -> None:
        x, style = self._x(index), _TONES[cell.tone]
        self.pen.text(x, y, cell.verb, 12, style, "middle") if cell.verb else None
        if cell.detail:
            self.pen.text(x, y + 15, cell.detail, 12, style, "middle")

    def _arrow(self, index: int, row: Row) -> None:
        """Draw a read from the resource to a lane, a write the other way, and a refusal's cross."""
        x, name = self._x(index), row.event.name
        lane, resource = self._gap(row.event.process)
        if name == "read":
            self._shaft(x, resource, lane, "")
        elif name == "accepted":
            tone = row.cells[row.event.process or ""].tone
            self._shaft(x, lane, resource, f"-{tone.value}")
        elif name == "refused":
            self._shaft(x, lane, (lane + resource) / 2, "-bad")
            self._cross(x, (lane + resource) / 2)

    def _gap(self, process: str | None) -> tuple[float, float]:
        """Return the heights of the edges of a lane and of the resource that face each other."""
        top = self.top
        if process == self.timeline.lanes[0]:
            return top + _FIRST_BAR + _BAR, top + _RESOURCE
        return top + _SECOND_BAR, top + _RESOURCE + _RESOURCE_HEIGHT

    def _shaft(self, x: float, start: float, end: float, tone: str) -> None:
        back = -8 if end > start else 8
        self.pen.line(x, start, end + back, f"line{tone}")
        self.pen.path(f"M{x} {end} l-5 {back} h10 z", f"head{tone}")

    def _cross(self, x: float, y: float) -> None:
        self.pen.path(f"M{x - 8} {y + 6 - 8} l16 16 m0 -16 l-16 16", "line-bad")


def _legend(pen: _Pen, *, top: float) -> None:
    x = float(MARGIN)
    for state, meaning in _LEGEND:
        if state is State.WAITING:
            pen.dashes(x, x + 28, top + 16, "waiting")
        else:
            pen.box(x, top + 9, 28, 14, state.value, radius=3)
        pen.text(x + 36, top + 20, meaning, 12, "muted")
        x += 36 + text_width(meaning, 12) + 26
