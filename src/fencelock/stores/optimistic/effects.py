"""What a store with optimistic transactions (etcd, ZooKeeper, S3, DynamoDB, Redis, files) keeps of jobs that are
done once: one value each, JSON.

Promise: pure; an effect is written in the one step that writes its block, if it is still what the block had read. A
value that another program wrote is refused, never guessed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, ClassVar

from fencelock.errors import GuardError, SchemaError
from fencelock.protocol import guard_requests as ask
from fencelock.protocol.guard_requests import MAX_KEY_BYTES, MAX_RESULT_BYTES, Effect
from fencelock.stores.encoding import decode_object, has_members
from fencelock.stores.optimistic.stored_values import StoredValue, is_older, now_text, to_json

Operations = Generator[Any, Any, Any]
"""Yields the store's own operations, is sent their answers, and returns the reply to a request."""
EffectId = tuple[str, str]
"""A resource, and the key of an effect."""


class EffectsCodec(ABC):
    """The part of a guard's codec that is about effects; a store implements the abstract methods."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._forget_effects()

    def _forget_effects(self) -> None:
        """The block is over."""
        self._presented: ask.Open | None = None
        self._read_effects: dict[EffectId, StoredValue] = {}
        """What the block has read, and relies on."""
        self._begun: dict[EffectId, str] = {}
        """When the block has begun what it will write."""

    # --- implemented by the store ---
    @abstractmethod
    def _effect_ids(self) -> Operations:
        """Return the resource and the key of every effect."""

    @abstractmethod
    def _read_effect_value(self, resource: str, key: str) -> Operations:
        """Return the stored value of an effect, from a linearizable read."""

    @abstractmethod
    def _rely_on_effect(self, resource: str, key: str, stored: StoredValue) -> None:
        """Refuse the block at its end unless the effect is still what was read."""

    @abstractmethod
    def _keep_effect(self, resource: str, key: str, value: bytes | None, before: StoredValue) -> Operations:
        """Write an effect at the block's end, or delete it (None), if it is still what was read before."""

    def _delete_effect(self, resource: str, key: str, stored: StoredValue) -> Operations:
        """Delete an effect at once, if it is still what was read; return whether it was. Not needed by a store that
        overrides `_purge_resource`.
        """
        raise NotImplementedError

    @abstractmethod
    def _read_marks(self, request: ask.ReadMarks) -> Operations:
        """Return the marks of resources."""

    # --- the requests ---
    def _begin_effect(self, request: ask.BeginEffect) -> Operations:
        resource, effect = request
        before = yield from self._relied_on(resource, effect.key)
        if before.value is not None:
            return decode_effect(self._url, effect.key, before.value)
        yield from self._write_effect(ask.WriteEffect(resource, effect))
        return None

    def _read_effect(self, request: ask.ReadEffect) -> Operations:
        stored = yield from self._read_effect_value(request.resource, request.key)
        return None if stored.value is None else decode_effect(self._url, request.key, stored.value)

    def _write_effect(self, request: ask.WriteEffect) -> Operations:
        resource, effect = request
        effect_id = (resource, effect.key)
        before = yield from self._relied_on(*effect_id)
        if effect.result is None:
            self._begun[effect_id] = now_text()
        elif effect_id not in self._begun and before.value is not None:
            self._begun[effect_id] = decode_effect(self._url, effect.key, before.value).began_at
        effect = effect._replace(began_at=self._begun.get(effect_id, ""))
        value = encode_effect(effect, self._token_presented(resource)) if effect.holder else None
        yield from self._keep_effect(*effect_id, value, before)

    def _purge_effects(self, request: ask.PurgeEffects) -> Operations:
        keys: dict[str, list[str]] = {}
        for resource, key in (yield from self._effect_ids()):
            keys.setdefault(resource, []).append(key)
        count = 0
        for resource, its_keys in keys.items():
            count += yield from self._purge_resource(resource, its_keys, request.older_than_ms)
        return count

    def _purge_resource(self, resource: str, keys: Sequence[str], older_than_ms: int) -> Operations:
        """Delete what a purge forgets of the effects of one resource, and return how many. A store whose effects are
        one value each deletes them one by one.
        """
        count = 0
        for key in keys:
            marks = yield from self._read_marks(ask.ReadMarks((resource,)))
            token = marks[resource].token if resource in marks else 0
            stored = yield from self._read_effect_value(resource, key)
            if stored.value is None:
                continue
            if is_purged(decode_effect(self._url, key, stored.value), token, older_than_ms):
                count += yield from self._delete_effect(resource, key, stored)
        return count

    def _relied_on(self, resource: str, key: str) -> Operations:
        """Return what is stored; the block relies on it from now on."""
        self._token_presented(resource)
        effect_id = (resource, key)
        if effect_id not in self._read_effects:
            stored = self._read_effects[effect_id] = yield from self._read_effect_value(resource, key)
            self._rely_on_effect(resource, key, stored)
        return self._read_effects[effect_id]

    def _token_presented(self, resource: str) -> int:
        """Return the token of the lease that the block has presented; GuardError if it has not presented it there."""
        if self._presented is None or resource not in self._presented.resources:
            raise GuardError(f"resource {resource!r} is not presented: its effects are kept inside its guarded blocks")
        return self._presented.sequencer.token

    ANSWERS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        ask.BeginEffect: _begin_effect,
        ask.ReadEffect: _read_effect,
        ask.WriteEffect: _write_effect,
        ask.PurgeEffects: _purge_effects,
    }


# --- stored values ----------------------------------------------------------------------------------------------------

_MEMBERS = {"token": str, "holder": str, "began_at": str, "result": str | None, "request_digest": str}


def encode_effect(effect: Effect, token: int) -> bytes:
    """Return the stored value of an effect, under the token that was presented, with this machine's time unless it has
    one.
    """
    if len(effect.key.encode()) > MAX_KEY_BYTES or len((effect.result or "").encode()) > MAX_RESULT_BYTES:
        raise GuardError(f"an effect's key has {MAX_KEY_BYTES} bytes at most, and its result {MAX_RESULT_BYTES}")
    members = {
        "token": str(token),
        "holder": effect.holder,
        "began_at": effect.began_at or now_text(),
        "result": effect.result,
        "request_digest": effect.request_digest,
    }
    return to_json(members)


def decode_effect(url: str, key: str, value: bytes) -> Effect:
    """Return the effect in a stored value; SchemaError if the value is none."""
    found = decode_object(value)
    if not has_members(found, _MEMBERS) or not found["token"].isdecimal():
        raise SchemaError(
            f"{url}: the value stored for effect {key!r} is not an effect, so the guard cannot tell whether it was "
            f"begun: find out who wrote there"
        )
    kept = found["token"], found["holder"], found["began_at"], found["result"], found["request_digest"]
    return Effect(key, int(kept[0]), *kept[1:])


def is_purged(effect: Effect, mark_token: int, older_than_ms: int) -> bool:
    """Return whether a purge forgets this effect, by this machine's clock."""
    if effect.result is None or effect.token == mark_token:
        return False
    return is_older(effect.began_at, older_than_ms)
