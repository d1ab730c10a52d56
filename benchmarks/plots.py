"""Draw each case that has something to compare, as an SVG picture."""

import re
from itertools import groupby
from pathlib import Path

from benchmarks.measure import Result

_COLOUR, _FLOOR_COLOUR = "#1a7f37", "#8c959f"


def draw(results: list[Result], folder: Path) -> list[Path]:
    """Write one bar chart a case; return their paths."""
    # matplotlib takes a second to import, and only this function needs it.
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    paths = []
    for case, group in groupby(results, key=lambda result: result.case):
        variants = list(group)
        figure, axes = plt.subplots(figsize=(7, 0.6 + 0.45 * len(variants)), layout="constrained")
        errors = [
            [result.median - result.low for result in variants],
            [result.high - result.median for result in variants],
        ]
        colours = [_FLOOR_COLOUR if result.ratio is None and len(variants) > 1 else _COLOUR for result in variants]
        axes.barh(
            [result.variant for result in variants], [result.median for result in variants], xerr=errors, color=colours
        )
        axes.invert_yaxis()
        axes.set_xlabel(variants[0].unit)
        axes.set_title(case, loc="left")
        path = folder / f"{re.sub(r'[^a-z0-9]+', '-', case.lower()).strip('-')}.svg"
        figure.savefig(path)
        plt.close(figure)
        paths.append(path)
    return paths
