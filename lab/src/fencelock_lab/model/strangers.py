"""The steps of those who do not hold the lock: a reader of marks, somebody who was shown a sequencer, forgers.

Promise: each may act at any moment, as often as the scene allows. A frozen holder reads its successor's mark and writes
in its name; somebody with a sequencer releases the lease; a forger makes up a token and seals with it. The forger keeps
below the ceiling, because it knows where that is; an accident does not.
"""

from collections.abc import Iterator
from typing import NamedTuple

from fencelock_lab.model.rules import Anomaly, Rules
from fencelock_lab.model.world import (
    EVENT,
    HOLDING,
    SENT,
    WRITE,
    Found,
    Message,
    ModelMark,
    ModelStep,
    ModelWorld,
    Next,
    Scene,
)

CEILING = 50
"""How far a token may lie above the mark: more than any source of a scene can issue."""
STOLEN_WRITE = 9
"""The number of a thief's write, which its owner's own writes never have."""


class Forgery(NamedTuple):
    """A made-up token: who presents it, and whether that role has the right to seal."""

    who: str
    token: int
    has_right: bool


FORGERIES = {
    "outsiders": Forgery("outsider", CEILING - 10, has_right=False),
    "insiders": Forgery("insider", CEILING - 10, has_right=True),
    "accidents": Forgery("accident", 9 * CEILING, has_right=True),
}
"""By their names in Faults."""


def stranger_steps(world: ModelWorld, scene: Scene, rules: Rules) -> Iterator[Next]:
    """Yield every step that somebody without the lock may take next."""
    if world.faults.thefts:
        yield from _thefts(world, scene, rules)
    if world.faults.shown and world.source.holder is not None:
        yield _released_by_proof(world, world.source.holder, rules)
    for fault, forgery in FORGERIES.items():
        if getattr(world.faults, fault):
            yield _forged(world.spending(fault), forgery, scene, rules)


def _thefts(world: ModelWorld, scene: Scene, rules: Rules) -> Iterator[Next]:
    """Let a client whose lease is over read a successor's mark, and write with what it has read."""
    mark = world.resources[0].mark
    for index, client in enumerate(world.clients):
        is_late = client.phase == HOLDING and world.source.holder != client.claim
        if not is_late or mark.claim is None or mark.claim == client.claim:
            continue
        presented = f"digest of {mark.claim}" if rules.digest_in_mark else mark.claim
        seen = tuple(resource.content for resource in world.resources)
        message = Message(WRITE, index, presented, 0, STOLEN_WRITE, mark.token, was_sealed=True, seen=seen)
        text = f"reads the mark, and sends a write with its token {mark.token}"
        step = ModelStep(client.name, scene.resources[0], text, SENT)
        yield step, world.spending("thefts").with_message(message)


def _released_by_proof(world: ModelWorld, holder: str, rules: Rules) -> Next:
    """Release the lease with what its sequencer shows."""
    after = world.spending("shown")
    if rules.claim_ends:
        text = f"releases with {holder[0]}'s sequencer: refused"
        return ModelStep("service", "source", text, EVENT, is_refused=True), after
    source = world.source._replace(holder=None, ended=world.source.ended | {holder})
    detail = f"{holder[0]} holds the lock, and a service that was shown its sequencer frees it"
    found = (Found(Anomaly.FOREIGN_RELEASE, detail),)
    return ModelStep("service", "source", f"releases with {holder[0]}'s sequencer", EVENT, found=found), after._replace(
        source=source
    )


def _forged(world: ModelWorld, forgery: Forgery, scene: Scene, rules: Rules) -> Next:
    """Seal the first resource with a token that no source has issued."""
    name, resource = scene.resources[0], world.resources[0]
    text = f"seals with token {forgery.token}, which is made up"
    why = _why_refused(resource.mark, forgery, scene, rules)
    if why:
        return ModelStep(forgery.who, name, f"{text}: refused, {why}", EVENT, is_refused=True), world
    poisoned = resource._replace(mark=ModelMark(forgery.token, forgery.who))
    return ModelStep(forgery.who, name, text, EVENT), world.with_resource(0, poisoned)


def _why_refused(mark: ModelMark, forgery: Forgery, scene: Scene, rules: Rules) -> str:
    if rules.rights and not forgery.has_right:
        return "it has no right"
    if rules.signatures and scene.is_signed:
        return "no source has signed it"
    if rules.ceiling and forgery.token > mark.token + CEILING:
        return "no source can have issued it"
    return "" if forgery.token > mark.token else f"mark {mark}"
