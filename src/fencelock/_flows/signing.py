"""The keys with which a source signs sequencers: add one, retire one.

Promise: a key that is retired signs no more, and no guard that got the new list accepts its signatures. A key with
which a running lease was signed is retired only by force. Never: a key drawn here, or shown.
"""

from dataclasses import replace

from fencelock._flows.retry import ask_source
from fencelock.errors import ConfigError, SourceError
from fencelock.model import SigningKey
from fencelock.protocol.source_requests import Keys, ReadKeys, SourceFlow, WriteKey


def add_key(key: SigningKey) -> SourceFlow[SigningKey]:
    """Keep a new key, with which the source signs from its first moment on."""
    yield from ask_source(WriteKey(key))
    return key


def retire_key(key_id: str, now_s: int, *, is_forced: bool) -> SourceFlow[SigningKey]:
    """Let the source sign with this key no more; SourceError while a running lease was signed with it."""
    known: Keys = yield from ask_source(ReadKeys())
    key = next((key for key in known.keys if key.key_id == key_id), None)
    if key is None:
        raise ConfigError(f"the source has no key {key_id!r}: `fencelock keys list` shows its keys")
    if key_id in known.in_use and not is_forced:
        raise SourceError(
            f"key {key_id} has signed a lease that is still running, and guards would refuse its first write: add "
            f"another key, wait until the lease has ended, and retire this one then; or use force if the key is stolen"
        )
    if key.retired_s is None:
        key = replace(key, retired_s=now_s)
        yield from ask_source(WriteKey(key))
    return key
