"""Draw the results as SVG pictures: one for each store, one of guarded writes, and one of many waiters and leases.

Promise: the same results give the same picture, byte for byte. The pictures are not kept in the repository.
"""

import io
from collections.abc import Sequence
from typing import Any

from fencelock_lab.benchmarks.cases import held, waiting
from fencelock_lab.benchmarks.cases.guarded import CASE
from fencelock_lab.benchmarks.guards import GUARDED
from fencelock_lab.benchmarks.measure import Measurement
from fencelock_lab.benchmarks.peers.contest import ALONE, PROCESSES, RATE, WAITERS, handing_over, many
from fencelock_lab.benchmarks.peers.ours import FENCELOCK
from fencelock_lab.benchmarks.results import Report, by_variant

SCALE = {
    waiting.HAND_OFF: ("hand-off", "waiters", "milliseconds"),
    held.RENEWAL: ("renewal", "held leases", "% of a core"),
    held.BESIDE: ("acquire and release", "leases held meanwhile", "microseconds"),
}
"""What is drawn against the number of waiters or leases: its title, and the labels of its axes."""
_INK, _OURS, _FLOOR = "#57606a", "#1a7f37", "#8c959f"
_OTHERS = ("#0969da", "#bc4c00", "#8250df", "#bf3989", "#9a6700", "#1b7c83", "#cf222e", "#6639ba")


def draw(reports: Sequence[Report]) -> dict[str, str]:
    """Return the pictures by their names: one for each store with locks, and those of all stores."""
    pictures = {one.subject: _store(one) for one in reports if one.find(ALONE)}
    if any(map(_guarded, reports)):
        pictures["guarded"] = _ratios(reports)
    if any(report.find(case) for report in reports for case in SCALE):
        pictures["scale"] = _scale(reports)
    return pictures


def _figure(panels: Sequence[Sequence[Any]], height: float) -> tuple[Any, Any]:
    """Return a figure that is as wide as a page, and its panels by their names."""
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

    return plt.subplot_mosaic([list(row) for row in panels], figsize=(8, height), layout="constrained")


def _store(report: Report) -> str:
    alone = report.find(ALONE)
    figure, panels = _figure([["times", "times"], ["rates", "gaps"]], 4 + 0.3 * len(alone))
    times, rates, gaps = panels["times"], panels["rates"], panels["gaps"]
    colours = _colours([result.variant for result in alone])
    tails = by_variant(report.find(f"{ALONE}, p99"))
    names = [result.variant for result in alone]
    medians = [result.median for result in alone]
    beyond = [max(tails[name].median - median, 0.0) for name, median in zip(names, medians, strict=True)]
    times.barh(names, medians, color=[colours[name] for name in names], xerr=[[0.0] * len(names), beyond])
    times.invert_yaxis()
    times.set(xscale="log", title="acquire and release a free lock", xlabel="microseconds: bar to p50, line to p99")
    _lines(rates, report, colours, {number: many(RATE, number) for number in PROCESSES})
    rates.set(title="many processes, one lock", xlabel="processes", ylabel="cycles a second, together", yscale="log")
    _lines(gaps, report, colours, {number: handing_over(number) for number in WAITERS})
    gaps.set(title="hand-off to the next", xlabel="waiting processes", ylabel="milliseconds", yscale="log")
    lines = {line.get_label(): line for axes in (rates, gaps) for line in axes.get_lines()}
    if lines:
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=3, frameon=False)
    return _svg(figure)


def _lines(axes: Any, report: Report, colours: dict[str, str], cases: dict[int, str]) -> None:
    """Draw a line for each contender through the cases that it has."""
    found = {number: by_variant(report.find(case)) for number, case in cases.items()}
    for name, colour in colours.items():
        points = [(number, of[name].median) for number, of in found.items() if name in of]
        if points:
            style = "--" if name.endswith("asyncio") else "-"
            axes.plot(*zip(*points, strict=True), style, color=colour, marker="o", markersize=3, label=name)
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
    figure, panels = _figure([list(SCALE)], 3.2)
    colours = dict(zip((report.subject for report in reports), (_OURS, *_OTHERS), strict=False))
    lines = {}
    for case, (title, below, beside) in SCALE.items():
        axes = panels[case]
        for report in reports:
            points = sorted((_count(result.variant), result.median) for result in report.find(case))
            if points:
                drawn = axes.plot(*zip(*points, strict=True), color=colours[report.subject], marker="o", markersize=3)
                lines[report.title] = drawn[0]
        axes.set(xscale="log", yscale="log", title=title, xlabel=below, ylabel=beside)
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4, frameon=False)
    return _svg(figure)


def _guarded(report: Report) -> list[Measurement]:
    """Return the ratios of guarded writes to the same by hand."""
    return [result for result in report.results if result.variant == GUARDED and result.ratio is not None]


def _ratios(reports: Sequence[Report]) -> str:
    """Draw one bar for each kind of guarded write, and a mark where it should end."""
    found = [(report.title, result) for report in reports for result in _guarded(report)]
    figure, panels = _figure([["ratios"]], 1 + 0.22 * len(found))
    axes = panels["ratios"]
    names = [f"{title}: {result.case.removeprefix(f'{CASE}, ')}" for title, result in found]
    axes.barh(names, [result.ratio for _, result in found], color=_OURS)
    aims = [(name, result.aim) for name, (_, result) in zip(names, found, strict=True) if result.aim is not None]
    if aims:
        axes.plot(
            [aim for _, aim in aims], [name for name, _ in aims], "|", color=_OTHERS[1], markersize=9, label="aim"
        )
        axes.legend(frameon=False)
    axes.invert_yaxis()
    axes.set(title="a guarded write", xlabel="times the same by hand, which looks at a mark")
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
