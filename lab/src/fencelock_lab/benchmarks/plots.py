"""Draw the results as SVG pictures: one for each store, and one over the number of waiters and leases.

Promise: the same results give the same picture, byte for byte. The pictures are not kept in the repository.
"""

import io
from collections.abc import Sequence
from typing import Any

from fencelock_lab.benchmarks.cases import held, waiting
from fencelock_lab.benchmarks.peers.contest import ALONE, PROCESSES, RATE, WAITERS, handing_over, many
from fencelock_lab.benchmarks.peers.ours import FENCELOCK
from fencelock_lab.benchmarks.results import Report, by_variant

SCALE = {
    waiting.HAND_OFF: "hand-off, ms",
    held.RENEWAL: "renewal, % of a core",
    held.BESIDE: "a cycle beside held leases, us",
}
"""What is drawn against the number of waiters or leases."""
_INK, _OURS, _FLOOR = "#57606a", "#1a7f37", "#8c959f"
_OTHERS = ("#0969da", "#bc4c00", "#8250df", "#bf3989", "#9a6700", "#1b7c83", "#cf222e", "#6639ba")


def draw(reports: Sequence[Report]) -> dict[str, str]:
    """Return the pictures by their names: one for each subject, and one of all of them."""
    pictures = {one.subject: _store(one) for one in reports if one.find(ALONE)}
    if any(report.find(case) for report in reports for case in SCALE):
        pictures["scale"] = _scale(reports)
    return pictures


def _figure(columns: int, height: float) -> tuple[Any, Any]:
    # matplotlib takes a second to import, and only what draws needs it.
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(
        {
            "svg.hashsalt": "fencelock",
            "svg.fonttype": "none",
            "font.size": 8,
            "axes.edgecolor": _INK,
            "text.color": _INK,
        }
    )
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=(4 * columns, height), layout="constrained")
    return figure, axes


def _store(report: Report) -> str:
    alone = report.find(ALONE)
    figure, (times, rates, gaps) = _figure(3, 1.2 + 0.28 * len(alone))
    colours = _colours([result.variant for result in alone])
    tails = by_variant(report.find(f"{ALONE}, p99"))
    names = [result.variant for result in alone]
    medians = [result.median for result in alone]
    beyond = [max(tails[name].median - median, 0.0) for name, median in zip(names, medians, strict=True)]
    times.barh(names, medians, color=[colours[name] for name in names], xerr=[[0.0] * len(names), beyond])
    times.invert_yaxis()
    times.set(xscale="log", title="acquire and release: p50, to p99 (us)")
    _lines(rates, report, colours, {number: many(RATE, number) for number in PROCESSES})
    rates.set(title="cycles a second, by processes", yscale="log")
    _lines(gaps, report, colours, {number: handing_over(number) for number in WAITERS})
    gaps.set(title="hand-off, by waiters (ms)", yscale="log")
    return _svg(figure)


def _lines(axes: Any, report: Report, colours: dict[str, str], cases: dict[int, str]) -> None:
    """Draw a line for each contender through the cases that it has."""
    found = {number: by_variant(report.find(case)) for number, case in cases.items()}
    for name, colour in colours.items():
        points = [(number, of[name].median) for number, of in found.items() if name in of]
        if points:
            style = "--" if name.endswith("asyncio") else "-"
            axes.plot(*zip(*points, strict=True), style, color=colour, marker="o", markersize=3)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(cases), [str(number) for number in cases])


def _colours(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each: green for fencelock, grey for the floor."""
    others = iter(_OTHERS)
    return {
        name: _OURS if name.startswith(FENCELOCK) else _FLOOR if index == 0 else next(others)
        for index, name in enumerate(names)
    }


def _scale(reports: Sequence[Report]) -> str:
    figure, panels = _figure(len(SCALE), 2.8)
    colours = dict(zip((report.subject for report in reports), (_OURS, *_OTHERS), strict=False))
    lines = {}
    for axes, (case, title) in zip(panels, SCALE.items(), strict=True):
        for report in reports:
            points = sorted((_count(result.variant), result.median) for result in report.find(case))
            if points:
                drawn = axes.plot(*zip(*points, strict=True), color=colours[report.subject], marker="o", markersize=3)
                lines[report.title] = drawn[0]
        axes.set(xscale="log", yscale="log", title=title)
    figure.legend(lines.values(), lines.keys(), loc="outside right", frameon=False)
    return _svg(figure)


def _count(variant: str) -> int:
    """Return the number that a variant begins with."""
    return int(variant.split(maxsplit=1)[0].replace(",", ""))


def _svg(figure: Any) -> str:
    from matplotlib import pyplot as plt

    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    plt.close(figure)
    return drawn.getvalue()
