"""The results of an exploration as text: the tables of `python -m fencelock_lab.model`, and traces, one line a step.

Promise: plain text whose columns are aligned; equal explorations give equal text, without times and places.
"""

from collections.abc import Iterable, Sequence

from fencelock_lab.model.checks import ModelResult, Trace
from fencelock_lab.model.rules import RULES
from fencelock_lab.model.scenes import LIMITS
from fencelock_lab.model.world import Found, ModelResource, ModelSource, Scene


def table(rows: Sequence[Sequence[object]]) -> str:
    """Return rows as aligned columns, numbers to the right; the first row is the heading."""
    texts = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    is_number = [isinstance(cell, int) for cell in rows[-1]]
    lines = [
        "  ".join(
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in texts
    ]
    return "\n".join(lines)


def scenes_table(results: Iterable[ModelResult]) -> str:
    """Return a table of the scenes with all rules on: the size of each, and the anomaly found, if any."""
    rows: list[Sequence[object]] = [
        ("with all rules on", "size", "found", "states", "transitions", "what happens in it")
    ]
    for result in results:
        found = result.found.anomaly.value if result.found else "nothing"
        scene = result.scene
        size = f"{scene.clients}/{scene.tenures}/{scene.writes}"
        rows.append((result.name, size, found, result.states, result.transitions, scene.title))
    return table(rows)


def cases_table(results: Iterable[ModelResult]) -> str:
    """Return a table of the rules: the anomaly found without each, and the length of the shortest trace to it."""
    rows: list[Sequence[object]] = [("without the rule", "", "found", "in scene", "steps", "states")]
    for result in results:
        found = result.found.anomaly.value if result.found else "NOTHING"
        code = RULES[result.rule].code
        rows.append((result.rule, code, found, result.name, len(result.trace), result.states))
    return table(rows)


def limits_table(results: Iterable[ModelResult]) -> str:
    """Return a table of the anomalies that no rule prevents."""
    rows: list[Sequence[object]] = [("beyond the rules", "found", "steps", "states")]
    for result in results:
        found = result.found.anomaly.value if result.found else "NOTHING"
        rows.append((result.name, found, len(result.trace), result.states))
    return table(rows)


def rules_text() -> str:
    """Return every rule, and what the protocol does without it."""
    return "\n".join(f"{name} ({rule.code}): {rule.text}.\n    Without: {rule.off}." for name, rule in RULES.items())


def heading(result: ModelResult) -> tuple[str, str]:
    """Return two sentences: the rule that a trace is about, and what the protocol did without it."""
    if not result.rule:
        return "Beyond the rules", f"All rules hold, and {LIMITS[result.name].title}."
    rule = RULES[result.rule]
    return f"Without the rule that {rule.text}", _sentence(rule.off)


def result_text(result: ModelResult) -> str:
    """Return a result as a heading and its trace."""
    text = "\n".join(heading(result))
    if result.found is None:
        return f"{text}\n\nNothing was found in {result.states:,} states."
    return f"{text}\n\n{_trace_text(result.trace, result.scene, result.found)}"


def _trace_text(trace: Trace, scene: Scene, found: Found) -> str:
    """Return a trace, one line a step: the actor, the other side, the action, and the state after it."""
    rows: list[Sequence[object]] = [("", "who", "at", "what", "token", "holder", *scene.resources)]
    for number, (step, world) in enumerate(trace, 1):
        states = [resource_text(resource) for resource in world.resources]
        token, holder = _source_texts(world.source)
        rows.append((f"{number:>2}", step.who, step.to, step.text, token, holder, *states))
    return "\n".join((table(rows), "", *verdict(found)))


def verdict(found: Found) -> tuple[str, str]:
    """Return an anomaly and its detail as two sentences."""
    return _sentence(found.anomaly.value), _sentence(found.detail)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _source_texts(source: ModelSource) -> tuple[str, str]:
    return str(source.counter), source.holder[0] if source.holder else "-"


def resource_text(resource: ModelResource) -> str:
    """Return the state of a resource."""
    return f"value {len(resource.content)}, mark {resource.mark}"
