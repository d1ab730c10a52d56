"""The keys with which a source signs sequencers: add one, retire one.

Promise: a key that is retired signs no more, and no guard that got the new list accepts its signatures. A key with
which a running lease was signed is retired only by force. The source's own clock decides from when, and until when, it
signs with a key. Never: a key drawn here, or shown.
"""

from fencelock._flows.retry import ask_source
from fencelock.errors import ConfigError, OutcomeUnknownError, SourceError
from fencelock.model import SigningKey
from fencelock.protocol.source_requests import AddKey, Keys, ReadKeys, RetireKey, SourceFlow


def add_key(key: SigningKey, after_s: int) -> SourceFlow[SigningKey]:
    """Keep a new key, with which the source signs in so many seconds; return it with the time of the source's clock."""
    yield from ask_source(AddKey(key, after_s))
    return (yield from _read_back(key.key_id, "added"))


def retire_key(key_id: str, *, is_forced: bool) -> SourceFlow[SigningKey]:
    """Let the source sign with this key no more; ConfigError while a running lease was signed with it."""
    known = yield from ask_source(ReadKeys())
    _key_of(known, key_id)
    if key_id in known.in_use and not is_forced:
        raise ConfigError(
            f"key {key_id} has signed a lease that is still running, and guards would refuse its first write: add "
            f"another key, wait until the lease has ended, and retire this one then; or, if the key is stolen, use "
            f"force (`--force`, or force=True)"
        )
    yield from ask_source(RetireKey(key_id))
    return (yield from _read_back(key_id, "retired"))


def _read_back(key_id: str, done: str) -> SourceFlow[SigningKey]:
    try:
        known = yield from ask_source(ReadKeys())
    except SourceError as error:
        raise OutcomeUnknownError(
            f"key {key_id} was {done}, and the source could not be asked from when ({error}): `fencelock keys list` "
            f"shows it"
        ) from error
    return _key_of(known, key_id)


def _key_of(known: Keys, key_id: str) -> SigningKey:
    key = next((key for key in known.keys if key.key_id == key_id), None)
    if key is None:
        raise ConfigError(f"the source has no key {key_id!r}: `fencelock keys list` shows its keys")
    return key
