"""Draw a trace as one standalone SVG picture: time runs down; each client, the source and each resource has a lane.

The left column has the trace's lines, the right column the state of the resources after each step that changed them.

Promise: well-formed, without scripts, fonts or links from elsewhere; legible on light and dark pages, since it
paints its own background and follows the reader's colour scheme; no text overlaps another, because each column of
text is as wide as its longest line. Equal results give equal pictures.
"""

from xml.etree import ElementTree as ET

from fencelock_lab.model import report
from fencelock_lab.model.checks import ModelResult
from fencelock_lab.model.world import ARRIVAL, CLIENTS, EVENT, HOLDING, LEAVING, SENT, ModelStep, ModelWorld

ROW = 28
LANE = 84
MARGIN = 24
TOP = 144
"""Height of the heading, and of the lanes' names below it."""

FOOT = 112
BAR = 22
_CHARACTER = 0.55
"""An upper estimate of the mean width of a character, in units of the font's size."""

_STYLE = """
text { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2328 }
.page { fill: #f3f4f6 } .card { fill: #ffffff; stroke: #d5d9de }
.muted { fill: #57606a } .strong { font-weight: 600 } .bad { fill: #c5221f } .inverse { fill: #ffffff }
.lane { stroke: #b6bcc4; stroke-width: 1.5 } .wrong { fill: #fdecea }
.holding { fill: #1a7f37 } .overdue { fill: #c5221f } .end { stroke: #c5221f; stroke-width: 2 }
.line { stroke: #57606a; stroke-width: 1.6; fill: none } .head { fill: #57606a }
.line-bad { stroke: #c5221f; stroke-width: 2.4; fill: none } .head-bad { fill: #c5221f }
.late { stroke-dasharray: 5 4 } .dot { fill: #57606a } .event { fill: #fff4d6; stroke: #9a6700; stroke-width: 1.6 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .page { fill: #0d1117 } .card { fill: #161b22; stroke: #30363d }
.muted { fill: #9aa4af } .bad { fill: #ff7b72 } .inverse { fill: #ffffff }
.lane { stroke: #484f58 } .wrong { fill: #3b1d1f } .end { stroke: #ff7b72 }
.line { stroke: #9aa4af } .head { fill: #9aa4af } .line-bad { stroke: #ff7b72 } .head-bad { fill: #ff7b72 }
.dot { fill: #9aa4af } .event { fill: #3a2d0c; stroke: #d4a72c }
}
"""

_LEGEND = (
    ("holding", "holds the lock, with this token"),
    ("overdue", "believes so, and does not"),
    ("dot", "sends a message, which comes later or never"),
    ("event", "a fault, or what an operator does"),
)


def picture(result: ModelResult) -> str:
    """Return a result's trace as SVG text; the result must have a trace."""
    drawing = _Drawing(result)
    ET.indent(drawing.root)
    return ET.tostring(drawing.root, encoding="unicode") + "\n"


def file_name(result: ModelResult) -> str:
    """Return the file name of a result's picture."""
    return f"{result.rule or 'limit-' + result.name.replace(' ', '-')}.svg"


def text_width(text: str, size: float) -> float:
    """Return an upper estimate of the width of a text."""
    return len(text) * size * _CHARACTER


class _Drawing:
    """Appends shapes to an SVG element, from the heading down."""

    def __init__(self, result: ModelResult) -> None:
        self.result = result
        names = (*CLIENTS[: result.scene.clients], "source", *result.scene.resources)
        self.words = [_words(step) for step, _ in result.trace]
        self.states = [_changes(result, index) for index in range(len(result.trace))]
        left = MARGIN + 36 + max(text_width(words, 13) for words in self.words) + LANE / 2
        self.lanes = {name: left + LANE * index for index, name in enumerate(names)}
        self.right = max(self.lanes.values()) + LANE / 2
        heading, off = report.heading(result)
        assert result.found is not None, f"{result.name} without {result.rule or 'nothing'}: no trace to draw"
        self.verdict = report.verdict(result.found)
        texts = ((heading, 18), (off, 13), (self.verdict[0], 15), (self.verdict[1], 14))
        states = max(text_width(state, 14) for state in self.states)
        widths = (self.right - MARGIN + states, _legend_width(), *(text_width(*text) for text in texts))
        self.width = round(2 * MARGIN + max(widths))
        self.bottom = TOP + ROW * len(result.trace)
        self.height = self.bottom + FOOT
        self.root = ET.Element(
            "svg",
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {self.width} {self.height}",
            width=f"{self.width}",
            height=f"{self.height}",
            role="img",
        )
        self._draw(heading, off)

    def _draw(self, heading: str, off: str) -> None:
        self._add("title").text = heading
        self._add("desc").text = " ".join((off, *self.verdict))
        self._add("style").text = _STYLE
        self._box(0, 0, self.width, self.height, "page", 0)
        self._box(MARGIN / 2, MARGIN / 2, self.width - MARGIN, self.height - MARGIN, "card", 10)
        self._text(MARGIN, 44, heading, 17, "strong")
        self._text(MARGIN, 68, off, 13, "muted")
        last = self.bottom - ROW
        self._box(MARGIN / 2 + 1, last, self.width - MARGIN - 2, ROW, "wrong", 0)
        for name, x in self.lanes.items():
            self._text(x, TOP - 28, name, 13, "strong", "middle")
            self._line(x, TOP - 18, x, self.bottom + 6, "lane")
        for name in CLIENTS[: self.result.scene.clients]:
            self._bars(name)
        for index, (step, _) in enumerate(self.result.trace):
            self._row(index, step)
        self._text(MARGIN, self.bottom + 32, self.verdict[0], 14, "bad strong")
        self._text(MARGIN, self.bottom + 52, self.verdict[1], 13, "bad")
        self._legend(self.bottom + 84)

    def _row(self, index: int, step: ModelStep) -> None:
        y = self._y(index)
        is_bad = bool(step.found) and index + 1 == len(self.words)
        style = "bad strong" if is_bad else ""
        self._text(MARGIN + 18, y + 4, f"{index + 1}", 12, "muted", "end")
        self._text(MARGIN + 30, y + 4, self.words[index], 13, style)
        if self.states[index]:
            self._text(self.right, y + 4, self.states[index], 13, style)
        if step.how == EVENT:
            self._event(step, y)
        else:
            self._arrow(step, y, "-bad" if is_bad or step.is_refused else "")

    def _event(self, step: ModelStep, y: float) -> None:
        x = self.lanes[step.to]
        if step.to in CLIENTS:
            self._line(x - BAR / 2 - 5, y, x + BAR / 2 + 5, y, "end")
        else:
            self._path(f"M{x:g} {y - 9:g} l9 9 l-9 9 l-9 -9 z", "event")

    def _arrow(self, step: ModelStep, y: float, tone: str) -> None:
        start, end = self.lanes[step.who], self.lanes[step.to]
        way = 1 if end > start else -1
        start += way * (BAR / 2 + 1 if step.who in CLIENTS else 0)
        end -= way * (BAR / 2 + 1 if step.to in CLIENTS else 1)
        if step.how == SENT:
            self._line(start, y, start + way * 24, y, f"line{tone} late")
            self._add("circle", cx=start + way * 28, cy=y, r=3.5, class_="dot")
            return
        is_late = step.how == ARRIVAL and step.who in CLIENTS
        self._line(start, y, end - way * 8, y, f"line{tone}{' late' if is_late else ''}")
        if step.is_refused:
            x = end - way * 12
            self._path(f"M{x - 6:g} {y - 6:g} l12 12 m0 -12 l-12 12", f"line{tone}")
        else:
            self._path(f"M{end:g} {y:g} l{-way * 9} -5 v10 z", f"head{tone}")

    def _bars(self, name: str) -> None:
        """Draw a bar while a client believes that it holds the lock; its colour shows whether the client does."""
        start, shown = 0, ""
        for index in range(len(self.words) + 1):
            state = self._belief(index, name) if index < len(self.words) else ""
            if state != shown:
                if shown:
                    self._bar(name, start, index, shown)
                start, shown = index, state

    def _belief(self, index: int, name: str) -> str:
        """Return the style and the token of a client's bar after a step, or nothing."""
        world = self.result.trace[index][1]
        client = world.clients[CLIENTS.index(name)]
        if client.phase not in {HOLDING, LEAVING}:
            return ""
        return f"{'holding' if world.source.holder == client.claim else 'overdue'} {client.token}"

    def _bar(self, name: str, first: int, after_last: int, shown: str) -> None:
        style, _, token = shown.partition(" ")
        before = self._belief(first - 1, name) if first else ""
        x, top = self.lanes[name], self._y(first) - (0 if before else BAR / 2)
        bottom = min(self._y(after_last), self.bottom + 2)
        self._box(x - BAR / 2, top, BAR, bottom - top, style, 0)
        if token != "0" and not before.endswith(f" {token}"):
            self._text(x, self._y(first) + 5, token, 12, "inverse strong", "middle")

    def _legend(self, y: float) -> None:
        x = float(MARGIN)
        for style, meaning in _LEGEND:
            if style == "dot":
                self._line(x, y - 4, x + 18, y - 4, "line late")
                self._add("circle", cx=x + 22, cy=y - 4, r=3.5, class_="dot")
            elif style == "event":
                self._path(f"M{x + 14:g} {y - 13:g} l9 9 l-9 9 l-9 -9 z", "event")
            else:
                self._box(x, y - 12, 28, 14, style, 3)
            self._text(x + 36, y, meaning, 12, "muted")
            x += _entry_width(meaning)

    def _y(self, index: int) -> float:
        """Return the middle of a row."""
        return TOP + (index + 0.5) * ROW

    def _add(self, tag: str, **attributes: object) -> ET.Element:
        given = {
            key.removesuffix("_").replace("_", "-"): f"{value:g}" if isinstance(value, float) else str(value)
            for key, value in attributes.items()
            if value not in {None, ""}
        }
        return ET.SubElement(self.root, tag, given)

    def _text(self, x: float, y: float, content: str, size: int, style: str = "", anchor: str = "") -> None:
        self._add("text", x=x, y=y, font_size=size, class_=style, text_anchor=anchor).text = content

    def _box(self, x: float, y: float, width: float, height: float, style: str, radius: int) -> None:
        self._add("rect", x=x, y=y, width=width, height=height, rx=radius, class_=style)

    def _line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=style)

    def _path(self, data: str, style: str) -> None:
        self._add("path", d=data, class_=style)


def _entry_width(meaning: str) -> float:
    return 36 + text_width(meaning, 12) + 22


def _legend_width() -> float:
    return sum(_entry_width(meaning) for _, meaning in _LEGEND)


def _words(step: ModelStep) -> str:
    """Return a step as a sentence with its actor; the text of a lease's end already names the holder."""
    return step.text if step.how == EVENT and step.to in CLIENTS else f"{step.who}: {step.text}"


def _changes(result: ModelResult, index: int) -> str:
    """Return the state of each resource that a step has changed."""
    before: ModelWorld = result.trace[index - 1][1] if index else result.scene.start()
    after = result.trace[index][1]
    return "; ".join(
        f"{name}: {report.resource_text(present)}"
        for name, past, present in zip(result.scene.resources, before.resources, after.resources, strict=True)
        if past[:2] != present[:2]
    )
