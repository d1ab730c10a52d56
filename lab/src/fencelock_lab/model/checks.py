"""Run the explorer on the scenes, with all rules on and with one rule off.

Promise: a result has the shortest trace to the anomaly; if `found` is None, the whole space has no anomaly.
"""

from functools import partial
from typing import NamedTuple

from fencelock_lab.model.explorer import explore
from fencelock_lab.model.protocol import successors
from fencelock_lab.model.rules import Anomaly, Rules
from fencelock_lab.model.scenes import CASES, LIMITS, SCENES, Case
from fencelock_lab.model.world import Found, ModelStep, ModelWorld, Scene

Trace = tuple[tuple[ModelStep, ModelWorld], ...]


class ModelResult(NamedTuple):
    """The result of an exploration. `rule`: the rule that was off, or empty."""

    name: str
    scene: Scene
    rule: str
    states: int
    transitions: int
    found: Found | None
    trace: Trace


def check(name: str, scene: Scene, anomalies: tuple[Anomaly, ...], rule: str = "") -> ModelResult:
    """Search a scene for one of these anomalies; if a rule is given, switch it off."""

    def found_in(step: ModelStep) -> Found | None:
        return next((found for found in step.found if found.anomaly in anomalies), None)

    rules = Rules().without(rule) if rule else Rules()
    explored = explore(
        scene.start(),
        partial(successors, scene=scene, rules=rules),
        lambda step: bool(step.found) and found_in(step) is not None,
    )
    trace = explored.trace or ()
    found = found_in(trace[-1][0]) if trace else None
    return ModelResult(name, scene, rule, explored.states, explored.transitions, found, trace)


def check_scene(name: str) -> ModelResult:
    """Search a scene for any anomaly that it promises to exclude, with all rules on."""
    return check(name, SCENES[name], SCENES[name].promised)


def check_case(case: Case) -> ModelResult:
    """Search for the anomaly of a rule that is off."""
    return check(case.scene, SCENES[case.scene], (case.anomaly,), case.rule)


def check_limit(name: str) -> ModelResult:
    """Search for an anomaly that the whole protocol cannot prevent."""
    return check(name, LIMITS[name], LIMITS[name].promised)


def cases_of(rule: str) -> list[Case]:
    """Return the cases of one rule; the picture shows the first one."""
    return [case for case in CASES if case.rule == rule]
