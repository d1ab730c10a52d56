"""Effects outside of a store with optimistic transactions (etcd, ZooKeeper): each is one value, as JSON.

Promise: pure; a value that another program wrote is refused, never guessed.
"""

import json
from datetime import UTC, datetime

from fencelock.errors import GuardError, SchemaError
from fencelock.protocol.guard_requests import MAX_KEY_BYTES, MAX_RESULT_BYTES, Effect
from fencelock.stores.quorum.encoding import decode_object, has_members

_MEMBERS = {"token": str, "holder": str, "began_at": str, "result": str | None}


def encode_effect(effect: Effect, token: int) -> bytes:
    """Return the stored value of an effect, under the token that was presented, with this machine's time."""
    if len(effect.key.encode()) > MAX_KEY_BYTES or len((effect.result or "").encode()) > MAX_RESULT_BYTES:
        raise GuardError(f"an effect's key has {MAX_KEY_BYTES} bytes at most, and its result {MAX_RESULT_BYTES}")
    began_at = effect.began_at or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    members = {"token": str(token), "holder": effect.holder, "began_at": began_at, "result": effect.result}
    return json.dumps(members, separators=(",", ":")).encode()


def decode_effect(url: str, key: str, value: bytes) -> Effect:
    """Return the effect in a stored value; SchemaError if the value is none."""
    found = decode_object(value)
    if not has_members(found, _MEMBERS) or not found["token"].isdecimal():
        raise SchemaError(
            f"{url}: the value stored for effect {key!r} is not an effect, so the guard cannot tell whether it was "
            f"begun: find out who wrote there"
        )
    return Effect(key, int(found["token"]), found["holder"], found["began_at"], found["result"])
