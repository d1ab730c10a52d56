"""The source's steps: it grants and ends claims, and mints tokens.

Promise: a token is minted in the step that decides the holder. A request to acquire waits while the lock is held,
and the order of the queue is left open. Never: a grant above the source's bound.
"""

from collections.abc import Iterator

from fencelock_lab.model.rules import Anomaly, Rules
from fencelock_lab.model.world import (
    ACQUIRE,
    ARRIVAL,
    ASKING,
    BLOCK_TOKENS,
    CALL,
    EVENT,
    HOLDING,
    IDLE,
    Found,
    Message,
    ModelSource,
    ModelStep,
    ModelWorld,
    Next,
)


def source_steps(world: ModelWorld) -> Iterator[Next]:
    """Yield the steps that the source takes by itself: it ends a lease, or reserves a block of tokens."""
    source = world.source
    if source.holder is not None:
        ended = source._replace(holder=None, ended=source.ended | {source.holder})
        text = f"{source.holder[0]}'s lease ends"
        yield ModelStep("source", source.holder[0], text, EVENT), world._replace(source=ended)
    is_wanted = any(message.kind == ACQUIRE for message in world.messages) or world.faults.breaks
    if source.counter == source.bound and is_wanted:
        reserved = source._replace(bound=source.bound + BLOCK_TOKENS)
        text = f"reserves tokens up to {reserved.bound}"
        yield ModelStep("source", "source", text, EVENT), world._replace(source=reserved)


def acquire_arrives(world: ModelWorld, message: Message, rules: Rules) -> Iterator[Next]:
    """Deliver a request to acquire: the source grants it, refuses it for good, or lets it wait."""
    source, client = world.source, world.clients[message.client]
    after = world.without_message(message)
    is_awaited = client.phase == ASKING and client.claim == message.claim
    if message.claim in source.ended and rules.claim_once:
        if is_awaited:
            after = after.with_client(message.client, client._replace(phase=IDLE))
        text = f"refuses {client.name}'s request: that claim has ended"
        yield ModelStep("source", client.name, text, ARRIVAL, is_refused=True), after
    elif source.holder is None and source.counter < source.bound:
        found: tuple[Found, ...] = ()
        if rules.minted_with_grant:
            after, found = minted(after)
        if message.claim in source.ended:
            found += (
                Found(Anomaly.GRANTED_AGAIN, f"{client.name} has left, so no process renews or releases this lease"),
            )
        token = after.source.counter if rules.minted_with_grant else 0
        after = after._replace(source=after.source._replace(holder=message.claim))
        text = f"grants {client.name} {f'token {token}' if token else 'the lock'}"
        if is_awaited:
            after = after.with_client(message.client, client._replace(phase=HOLDING, token=token))
        else:
            text += ", which nobody awaits"
        yield ModelStep("source", client.name, text, ARRIVAL, found=found), after


def minted(world: ModelWorld) -> tuple[ModelWorld, tuple[Found, ...]]:
    """Issue the next token."""
    token = world.source.counter + 1
    found: tuple[Found, ...] = ()
    if token <= world.past.top:
        found = (Found(Anomaly.TOKEN_AGAIN, f"the last token was {world.past.top}, and now {token} is issued"),)
    past = world.past._replace(top=max(token, world.past.top))
    return world._replace(source=world.source._replace(counter=token), past=past), found


def draws(world: ModelWorld, index: int) -> Iterator[Next]:
    """Give a holder its token after the grant, which is too late."""
    client = world.clients[index]
    if world.source.counter == world.source.bound:
        return
    after, found = minted(world)
    token = after.source.counter
    successor = next((one for one in world.clients if one.token and one.claim == world.source.holder), None)
    if successor is not None:
        detail = f"{successor.name} holds the lock with token {successor.token}, and {client.name} has token {token}"
        found += (Found(Anomaly.INVERTED, detail),)
    text = f"draws token {token}"
    yield (
        ModelStep(client.name, "source", text, CALL, found=found),
        after.with_client(index, client._replace(token=token)),
    )


def release_arrives(world: ModelWorld, message: Message, rules: Rules) -> Iterator[Next]:
    """Deliver a release: it ends its claim, whether that waits or holds the lock."""
    source, name = world.source, message.claim[0]
    ended = source._replace(ended=source.ended | {message.claim})
    found: tuple[Found, ...] = ()
    text = "release arrives: it held nothing"
    if source.holder is not None and (source.holder == message.claim or not rules.release_by_claim):
        counter = source.counter if rules.counter_kept else 0
        ended = ModelSource(counter, ended.bound, None, ended.ended)
        text = "release arrives: the lock is free"
        if source.holder != message.claim:
            detail = f"{source.holder[0]} holds the lock, and {name}'s release frees it"
            found = (Found(Anomaly.FOREIGN_RELEASE, detail),)
    after = world.without_message(message)._replace(source=ended)
    yield ModelStep(name, "source", text, ARRIVAL, found=found), after
