"""The steps of a client, in every order that the rules allow.

Promise: a client with a lease never checks it again, because it may freeze right after the check. So a late client may
take every step of this module. If a sender waits for the answer, its request is one step, taken when the receiver
carries it out; only a request that may arrive after its sender has continued is a message.
"""

from collections.abc import Iterator

from fencelock_lab.model.guard import ModelVerdict, admit, admitted
from fencelock_lab.model.rules import Anomaly, Rules
from fencelock_lab.model.source import draws
from fencelock_lab.model.world import (
    ACQUIRE,
    ASKING,
    CALL,
    HOLDING,
    IDLE,
    LEAVING,
    RELEASE,
    SENT,
    UNREAD,
    WRITE,
    Client,
    Found,
    Message,
    ModelMark,
    ModelStep,
    ModelWorld,
    Next,
    Scene,
    Touch,
)


def client_steps(world: ModelWorld, index: int, scene: Scene, rules: Rules) -> Iterator[Next]:
    """Yield every step that this client may take next."""
    client = world.clients[index]
    # A client that knows that its lease is over may ask again; its earlier messages are still in flight.
    is_over = client.phase == HOLDING and world.source.holder != client.claim
    if (client.phase == IDLE or is_over) and client.tenure < scene.tenures:
        yield from _asks(world, index, scene)
    if client.phase == ASKING and scene.leaves:
        yield _leaves(world, index, "gives up: sends its release")
    elif client.phase == HOLDING and not client.token:
        yield from draws(world, index)
    elif client.phase == HOLDING:
        for resource in range(len(scene.resources)):
            yield from _works(world, index, resource, scene, rules)
        if scene.leaves and not rules.close:
            yield _leaves(world, index, "sends its release")
    elif client.phase == LEAVING:
        yield from _closes(world, index, scene, rules)


def _asks(world: ModelWorld, index: int, scene: Scene) -> Iterator[Next]:
    # Clients are interchangeable, so it is enough that their first requests come in the order of their names.
    if index and not world.clients[index - 1].tenure:
        return
    client = world.clients[index]
    asking = Client(client.name, client.tenure + 1, ASKING, 0, (Touch(),) * len(scene.resources))
    after = world.with_client(index, asking).with_message(Message(ACQUIRE, index, asking.claim))
    text = "asks for the lock again" if client.tenure else "asks for the lock"
    yield ModelStep(client.name, "source", text, SENT), after


def _leaves(world: ModelWorld, index: int, text: str) -> Next:
    client = world.clients[index]
    past = world.past._replace(gone=world.past.gone | {client.claim})
    after = world.with_client(index, client._replace(phase=IDLE))._replace(past=past)
    return ModelStep(client.name, "source", text, SENT), after.with_message(Message(RELEASE, index, client.claim))


def _works(world: ModelWorld, index: int, resource: int, scene: Scene, rules: Rules) -> Iterator[Next]:
    """Yield the holder's possible steps at one resource."""
    client = world.clients[index]
    touch = client.touches[resource]
    if rules.seal_first and not touch.is_opened:
        if rules.seal_committed or touch.snapshot != UNREAD:
            yield _seals(world, index, resource, scene, rules)
        else:
            yield _begins(world, index, resource, scene)
    may_read = not rules.seal_first or all(one.is_opened for one in (client.touches if rules.seal_all else (touch,)))
    if may_read and touch.reads == touch.sent == touch.answered and touch.sent < scene.writes:
        yield _reads(world, index, resource, scene, rules)
    if touch.reads > touch.sent:
        yield _writes(world, index, resource, scene)
    if scene.leaves and rules.close and not resource:
        yield from _closes(world, index, scene, rules)


def _begins(world: ModelWorld, index: int, resource: int, scene: Scene) -> Next:
    client = world.clients[index]
    content = world.resources[resource].content
    touch = client.touches[resource]._replace(snapshot=content)
    text = f"begins a transaction: its snapshot has {len(content)}"
    return ModelStep(client.name, scene.resources[resource], text, CALL), world.with_client(
        index, client.touching(resource, touch)
    )


def _seals(world: ModelWorld, index: int, resource: int, scene: Scene, rules: Rules) -> Next:
    client, name = world.clients[index], scene.resources[resource]
    state = world.resources[resource]
    verdict = admit(state.mark, client.token, client.claim, was_sealed=False, rules=rules)
    if not verdict.is_admitted and world.is_enforcing:
        return _refused(world, index, name, f"seals {name}", verdict, state.mark)
    touch = client.touches[resource]._replace(is_opened=True, is_sealed=verdict.is_admitted)
    after = world.with_client(index, client.touching(resource, touch))
    if not verdict.is_admitted:
        return ModelStep(client.name, name, "opens it: a refusal, only counted", CALL), after
    if verdict is ModelVerdict.RAISE:
        sealed = state._replace(mark=ModelMark(client.token, client.claim))
        after = after.with_resource(resource, sealed, is_flushed=rules.durable_mark)
    after, found = admitted(after, client.token, client.claim, scene)
    text = f"seals with token {client.token}"
    return ModelStep(client.name, name, text, CALL, found=found), after


def _refused(world: ModelWorld, index: int, name: str, text: str, verdict: ModelVerdict, mark: ModelMark) -> Next:
    client = world.clients[index]
    why = f" ({verdict.value})" if verdict is not ModelVerdict.STALE else ""
    text = f"{text}: refused, token {client.token}, mark {mark}{why}"
    over = world.with_client(index, client._replace(phase=IDLE))
    found: tuple[Found, ...] = ()
    if world.source.holder == client.claim and mark.token > world.past.top:
        detail = f"{client.name} holds the lock with token {client.token}, and the mark is {mark}"
        found = (Found(Anomaly.POISONED, detail),)
    return ModelStep(client.name, name, text, CALL, is_refused=True, found=found), over


def _reads(world: ModelWorld, index: int, resource: int, scene: Scene, rules: Rules) -> Next:
    client, name = world.clients[index], scene.resources[resource]
    state, touch = world.resources[resource], client.touches[resource]
    after = world
    if rules.seal_first:
        verdict = admit(state.mark, client.token, client.claim, was_sealed=touch.is_sealed, rules=rules)
        if not verdict.is_admitted and world.is_enforcing:
            return _refused(world, index, name, "reads", verdict, state.mark)
        if verdict is ModelVerdict.RAISE:
            state = state._replace(mark=ModelMark(client.token, client.claim))
            after = after.with_resource(resource, state, is_flushed=rules.durable_mark)
    is_old = touch.snapshot != UNREAD and not touch.reads
    seen = touch.snapshot if is_old else state.content
    touch = touch._replace(seen=seen, reads=touch.reads + 1)
    past = after.past._replace(reader=max(after.past.reader, client.token))
    after = after.with_client(index, client.touching(resource, touch))._replace(past=past)
    text = f"reads {len(seen)}{' from its snapshot' if is_old else ''}"
    return ModelStep(client.name, name, text, CALL), after


def _writes(world: ModelWorld, index: int, resource: int, scene: Scene) -> Next:
    client = world.clients[index]
    touch = client.touches[resource]
    number = touch.sent + 1
    seen = tuple(one.seen for one in client.touches)
    message = Message(WRITE, index, client.claim, resource, number, client.token, touch.is_sealed, seen)
    after = world.with_client(index, client.touching(resource, touch._replace(sent=number)))
    text = f"sends a write of {len(touch.seen) + 1}"
    return ModelStep(client.name, scene.resources[resource], text, SENT), after.with_message(message)


def _closes(world: ModelWorld, index: int, scene: Scene, rules: Rules) -> Iterator[Next]:
    """Close the resources one after the other, then send the release."""
    client = world.clients[index]
    still_open = [number for number, touch in enumerate(client.touches) if not touch.is_closed]
    if not still_open:
        yield _leaves(world, index, "sends its release")
        return
    resource = still_open[0]
    name, state = scene.resources[resource], world.resources[resource]
    touch = client.touches[resource]._replace(is_closed=True)
    after = world.with_client(index, client.touching(resource, touch)._replace(phase=LEAVING))
    verdict = admit(state.mark, client.token, client.claim, was_sealed=touch.is_sealed, rules=rules)
    if not verdict.is_admitted:
        yield ModelStep(client.name, name, f"closes nothing: mark {state.mark} is not its own", CALL), after
        return
    closed = state._replace(mark=ModelMark(client.token, client.claim, is_closed=True))
    yield ModelStep(client.name, name, f"closes with token {client.token}", CALL), after.with_resource(resource, closed)
