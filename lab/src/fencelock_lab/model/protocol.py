"""The protocol: every step that is possible in a state.

Promise: yields every interleaving. A message may be delivered at any moment or never, and once more for each duplicate
that the scene allows.
"""

from collections.abc import Iterator

from fencelock_lab.model.clients import client_steps
from fencelock_lab.model.faults import fault_steps
from fencelock_lab.model.guard import arrivals
from fencelock_lab.model.rules import Rules
from fencelock_lab.model.source import acquire_arrives, release_arrives, source_steps
from fencelock_lab.model.strangers import stranger_steps
from fencelock_lab.model.world import ACQUIRE, CHECKED, RELEASE, Message, ModelWorld, Next, Scene


def successors(world: ModelWorld, scene: Scene, rules: Rules) -> Iterator[Next]:
    """Yield every step that is possible in a state, and the state after it."""
    for index in range(len(world.clients)):
        yield from client_steps(world, index, scene, rules)
    for message in world.messages:
        for step, after in _delivered(world, message, scene, rules):
            yield step, after
            if world.faults.duplicates and message.kind != CHECKED:
                text = f"{step.text}; a duplicate is on its way"
                yield step._replace(text=text), after.with_message(message).spending("duplicates")
    yield from source_steps(world)
    yield from fault_steps(world, scene, rules)
    yield from stranger_steps(world, scene, rules)


def _delivered(world: ModelWorld, message: Message, scene: Scene, rules: Rules) -> Iterator[Next]:
    if message.kind == ACQUIRE:
        return acquire_arrives(world, message, rules)
    if message.kind == RELEASE:
        return release_arrives(world, message, rules)
    return arrivals(world, message, scene, rules)
