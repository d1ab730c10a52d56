"""The faults, and the operators' steps.

Promise: each fault may happen at any moment, as often as the scene allows. A power cut loses unflushed state, and a
restore takes everything back to a backup. A `slip` is a restore that no operator notices, so the operator's steps are
missing.
"""

from collections.abc import Iterator

from fencelock_lab.model.rules import Rules
from fencelock_lab.model.source import minted
from fencelock_lab.model.world import (
    EPOCH_TOKENS,
    EVENT,
    HOLDING,
    SCRIPT,
    Breaking,
    ModelMark,
    ModelResource,
    ModelSource,
    ModelStep,
    ModelWorld,
    Next,
    Scene,
)


def fault_steps(world: ModelWorld, scene: Scene, rules: Rules) -> Iterator[Next]:
    """Yield every fault that may still happen, and every possible operator's step."""
    faults = world.faults
    if any(faults[1:4]):
        yield from _source_faults(world, rules)
    if any(faults[4:8]):
        yield from _resource_faults(world, scene, rules)
    if not world.is_enforcing:
        yield from _observed_steps(world, scene, rules)
    if faults.breaks and world.source.holder is not None and world.source.counter < world.source.bound:
        yield _break(world.spending("breaks"), rules)
    if world.breaking is not None:
        yield _break_seals(world, world.breaking, scene)


def _everybody(world: ModelWorld) -> frozenset[str]:
    """Return every claim drawn so far."""
    return frozenset(f"{client.name}{tenure}" for client in world.clients for tenure in range(1, client.tenure + 1))


def _source_faults(world: ModelWorld, rules: Rules) -> Iterator[Next]:
    source, faults = world.source, world.faults
    if faults.source_cuts:
        durable = ModelSource(source.bound, source.bound) if rules.durable_bound else ModelSource()
        after = durable._replace(ended=_everybody(world))
        text = f"power cut: it goes on after token {after.counter}"
        yield ModelStep("source", "source", text, EVENT), world.spending("source_cuts")._replace(source=after)
    if faults.source_restores and source.counter:
        restored = ModelSource(ended=_everybody(world))
        if rules.epoch_on_restore:
            restored = restored._replace(counter=EPOCH_TOKENS, bound=EPOCH_TOKENS)
        text = f"restored to its first state: it goes on after token {restored.counter}"
        yield ModelStep("operator", "source", text, EVENT), world.spending("source_restores")._replace(source=restored)
    if faults.source_slips and source.counter:
        text = "goes back to its first state, unnoticed"
        yield ModelStep("source", "source", text, EVENT), world.spending("source_slips")._replace(source=ModelSource())


def _resource_faults(world: ModelWorld, scene: Scene, rules: Rules) -> Iterator[Next]:
    faults, name = world.faults, scene.resources[0]
    present, durable, backup = world.resources[0], world.durable, world.backup
    if faults.resource_cuts and present != durable:
        text = f"power cut: value {len(durable.content)}, mark {durable.mark}"
        yield ModelStep(name, name, text, EVENT), world.with_resource(0, durable).spending("resource_cuts")
    if present == backup:
        return
    if faults.backups:
        yield ModelStep("operator", name, "takes a backup", EVENT), world.spending("backups")._replace(backup=present)
    if faults.resource_restores:
        yield _restore(world.spending("resource_restores"), name, rules)
    if faults.resource_slips:
        text = f"goes back unnoticed: value {len(backup.content)}, mark {backup.mark}"
        yield ModelStep(name, name, text, EVENT), world.with_resource(0, backup).spending("resource_slips")


def _restore(world: ModelWorld, name: str, rules: Rules) -> Next:
    """Restore the backup; the resource is closed to all clients until an operator has raised the marks."""
    first = _raised(world.backup, world) if rules.raise_after_restore else world.backup
    after = world.with_resource(0, first)
    if rules.raise_after_restore and rules.raise_all:
        for index, other in enumerate(world.resources[1:], 1):
            after = after.with_resource(index, _raised(other, world))
    text = f"restores the backup: value {len(first.content)}, mark {first.mark}"
    return ModelStep("operator", name, text, EVENT), after


def _raised(resource: ModelResource, world: ModelWorld) -> ModelResource:
    """Raise a mark to the last issued token; it then belongs to no lease."""
    last = world.source.counter
    return resource._replace(mark=ModelMark(last)) if last >= max(resource.mark.token, 1) else resource


def _observed_steps(world: ModelWorld, scene: Scene, rules: Rules) -> Iterator[Next]:
    """Yield the steps while a resource only observes: a script may write without a token; the operator may switch."""
    (resource,) = world.resources
    if world.faults.scripts:
        increment = f"{SCRIPT}.1"
        content = (*resource.content, increment)
        written = ModelResource(resource.mark, content, tuple(sorted({*resource.accepted, increment})))
        text = f"reads {len(resource.content)}, writes {len(content)} without a token: only counted"
        yield ModelStep(SCRIPT, scene.resources[0], text, EVENT), world.spending("scripts").with_resource(0, written)
    if world.faults.switches:
        # Observe mode promises nothing about increments lost before the switch.
        resource = resource._replace(accepted=tuple(sorted(resource.content)))
        switched = _raised(resource, world) if rules.raise_at_switch else resource
        after = world.spending("switches").with_resource(0, switched)._replace(is_enforcing=True)
        text = f"switches to enforcing: mark {switched.mark}"
        yield ModelStep("operator", scene.resources[0], text, EVENT), after


def _break(world: ModelWorld, rules: Rules) -> Next:
    """Free the lock, and mint a token for the breaker."""
    assert world.source.holder is not None
    victim = world.source.holder
    after, found = minted(world)
    token = after.source.counter
    after = after._replace(source=after.source._replace(holder=None, ended=after.source.ended | {victim}))
    after = after._replace(breaking=Breaking(token, 0)) if rules.break_seals else _gone(after, token)
    text = f"breaks {victim[0]}'s lease: token {token} is the operator's"
    return ModelStep("operator", "source", text, EVENT, found=found), after


def _break_seals(world: ModelWorld, breaking: Breaking, scene: Scene) -> Next:
    """Seal the next resource with the breaker's token; after the last one, the broken tenure cannot write."""
    number = breaking.sealed
    resource = world.resources[number]
    if resource.mark.token < breaking.token:
        resource = resource._replace(mark=ModelMark(breaking.token))
    after = world.with_resource(number, resource)._replace(breaking=Breaking(breaking.token, number + 1))
    if number + 1 == len(world.resources):
        after = _gone(after._replace(breaking=None), breaking.token)
    return ModelStep("operator", scene.resources[number], f"seals with token {breaking.token}", EVENT), after


def _gone(world: ModelWorld, token: int) -> ModelWorld:
    """Note that from now on no tenure below this token may write."""
    broken = {client.claim for client in world.clients if client.phase == HOLDING and client.token < token}
    return world._replace(past=world.past._replace(gone=world.past.gone | broken))
