"""The steps at a guarded resource: the decision to admit, and the arrival of a write.

Promise: with all rules on, `admit` decides like the library's own `admit`; a test compares the two. The model checks
every admitted write against all promises of the scene. Never changes a mark when it refuses.
"""

from collections.abc import Iterator
from enum import Enum

from fencelock_lab.model.rules import Anomaly, Rules
from fencelock_lab.model.world import (
    ARRIVAL,
    CHECKED,
    CLIENTS,
    HOLDING,
    IDLE,
    SCRIPT,
    UNREAD,
    Content,
    Found,
    Message,
    ModelMark,
    ModelResource,
    ModelStep,
    ModelWorld,
    Next,
    Scene,
)


class ModelVerdict(Enum):
    """How to treat the mark, or the reason for a refusal."""

    RAISE = "raised"
    PASS = "passed"
    STALE = "stale"
    COLLISION = "another claim has that token"
    SEAL_LOST = "its seal is gone"

    @property
    def is_admitted(self) -> bool:
        """Whether the verdict admits the tenure."""
        return self is ModelVerdict.RAISE or self is ModelVerdict.PASS


def admit(mark: ModelMark, token: int, claim: str, *, was_sealed: bool, rules: Rules) -> ModelVerdict:
    """Compare a tenure with the mark: G1, G9 and closed marks (G10)."""
    if token < mark.token:
        return ModelVerdict.STALE
    if token > mark.token:
        return ModelVerdict.SEAL_LOST if was_sealed and rules.remembered_seal else ModelVerdict.RAISE
    if mark.claim is None:
        return ModelVerdict.STALE
    if rules.claim_in_mark and mark.claim != claim:
        return ModelVerdict.COLLISION
    return ModelVerdict.STALE if mark.is_closed else ModelVerdict.PASS


def admitted(world: ModelWorld, token: int, claim: str, scene: Scene) -> tuple[ModelWorld, tuple[Found, ...]]:
    """Note the claim admitted under a token, if the scene promises that a token admits only one claim."""
    if Anomaly.TWO_CLAIMS not in scene.promised:
        return world, ()
    others = sorted(other for its_token, other in world.past.admitted if its_token == token and other != claim)
    past = world.past._replace(admitted=world.past.admitted | {(token, claim)})
    found = tuple(Found(Anomaly.TWO_CLAIMS, f"claims {other} and {claim} both have token {token}") for other in others)
    return world._replace(past=past), found


def arrivals(world: ModelWorld, message: Message, scene: Scene, rules: Rules) -> Iterator[Next]:
    """Deliver a write to its resource."""
    after = world.without_message(message)
    if message.kind == CHECKED:
        yield _written(after, message, world.resources[message.resource].mark, scene, "is carried out")
        return
    mark = world.resources[message.resource].mark
    verdict = admit(mark, message.token, message.claim, was_sealed=message.was_sealed, rules=rules)
    is_above = verdict is ModelVerdict.RAISE
    if verdict.is_admitted and not rules.check_with_write:
        checked = after.with_message(message._replace(kind=CHECKED))
        yield _step(message, scene, f"passes the check: token {message.token}, mark {mark}"), checked
    elif verdict.is_admitted and (rules.admit_equal or is_above):
        new_mark = ModelMark(message.token, message.claim) if is_above else mark
        how = "is accepted, and raises the mark" if is_above else "is accepted"
        yield _written(after, message, new_mark, scene, how)
    elif world.is_enforcing:
        yield _refused(after, message, verdict, scene)
    else:
        yield _written(after, message, mark, scene, f"is let through, and counted as {verdict.value}")


def _refused(world: ModelWorld, message: Message, verdict: ModelVerdict, scene: Scene) -> Next:
    mark = world.resources[message.resource].mark
    found: tuple[Found, ...] = ()
    if verdict is ModelVerdict.PASS:
        detail = f"nobody has sealed {scene.resources[message.resource]} since {message.claim} did"
        found = (Found(Anomaly.OWN_REFUSED, detail),)
    text = f"is refused: token {message.token}, mark {mark}"
    if verdict in {ModelVerdict.COLLISION, ModelVerdict.SEAL_LOST}:
        text += f" ({verdict.value})"
    client = world.clients[message.client]
    if client.claim == message.claim and client.phase == HOLDING:
        world = world.with_client(message.client, client._replace(phase=IDLE))
    return _step(message, scene, text, is_refused=True, found=found), world


def _written(world: ModelWorld, message: Message, mark: ModelMark, scene: Scene, how: str) -> Next:
    resource = world.resources[message.resource]
    increment = f"{message.claim}.{message.number}"
    after = ModelResource(
        mark,
        (*message.seen[message.resource], increment),
        tuple(sorted({*resource.accepted, increment})),
    )
    found = _faults_of(world, message, after, scene) if world.is_enforcing else ()
    world = world.with_resource(message.resource, after)
    if mark.token == message.token:
        world, both = admitted(world, message.token, message.claim, scene)
        found += both
    client = world.clients[message.client]
    if client.claim == message.claim and client.phase == HOLDING:
        touch = client.touches[message.resource]
        answered = touch._replace(answered=max(touch.answered, message.number))
        world = world.with_client(message.client, client.touching(message.resource, answered))
    return _step(message, scene, how, found=found), world


def _faults_of(world: ModelWorld, message: Message, after: ModelResource, scene: Scene) -> tuple[Found, ...]:
    """Return the promises that an admitted write breaks."""
    found = []
    lost = sorted(set(after.accepted) - set(after.content))
    if lost:
        detail = f"the value is {len(after.content)}, and {len(after.accepted)} increments were accepted"
        found.append(Found(Anomaly.LOST, f"{detail}: {_named(lost[0])} is lost"))
    undone = sorted(set(after.content) - set(after.accepted))
    if undone:
        found.append(Found(Anomaly.UNDONE, f"the value counts {_named(undone[0])}, which was undone"))
    if world.past.reader > message.token:
        detail = f"token {world.past.reader} has read, and token {message.token} still writes"
        found.append(Found(Anomaly.STALE, detail))
    if message.claim in world.past.gone:
        found.append(Found(Anomaly.AFTER_LEAVING, f"{message.claim[0]}'s tenure is over, and it still writes"))
    if not message.claim.startswith(CLIENTS[message.client]):
        found.append(Found(Anomaly.STOLEN, f"{CLIENTS[message.client]} writes in the name of {message.claim[0]}"))
    found += _mixed(world, message, scene)
    return tuple(found)


def _mixed(world: ModelWorld, message: Message, scene: Scene) -> list[Found]:
    """Return the other resources that have changed since the writer read them."""
    found = []
    for index, seen in enumerate(message.seen):
        present = world.resources[index].content
        if index == message.resource or seen == UNREAD or _of_others(seen, message) == _of_others(present, message):
            continue
        here, there = scene.resources[message.resource], scene.resources[index]
        detail = f"{here} is computed from {there} = {len(seen)}, which has changed since"
        found.append(Found(Anomaly.MIXED, detail))
    return found


def _named(increment: str) -> str:
    """Return the name of an increment: its writer and its number."""
    who, _, number = increment.partition(".")
    return "the script's write" if who == SCRIPT else f"{who[0]}'s write {number}"


def _of_others(content: Content, message: Message) -> Content:
    return tuple(increment for increment in content if not increment.startswith(f"{message.claim}."))


def _step(
    message: Message, scene: Scene, how: str, *, is_refused: bool = False, found: tuple[Found, ...] = ()
) -> ModelStep:
    value = len(message.seen[message.resource]) + 1
    text = f"write of {value} {how}"
    return ModelStep(CLIENTS[message.client], scene.resources[message.resource], text, ARRIVAL, is_refused, found)
