"""The sequencers that both kinds of source return and take, and the keys that sign them.

Promise: a claim that was drawn here for a break leaves as the proof in a sequencer; a key's secret is shown in no
`repr`.
"""

import math
import secrets

from fencelock.errors import ConfigError
from fencelock.model import BrokenLock, Sequencer, SigningKey, one_way
from fencelock.protocol.source_requests import Broken

KEY_BYTES = 32
MAX_AFTER_S = 10**9


def broken_lock(name: str, claim: str, reply: Broken) -> BrokenLock:
    """Return the result of a break, for the breaker."""
    key_id, signature = reply.signature
    sequencer = Sequencer(
        reply.source_id, reply.history_id, name, reply.token, one_way(claim), key_id=key_id, signature=signature
    )
    return BrokenLock(name, reply.token, reply.holder, sequencer)


def check_sequencer(sequencer: object) -> Sequencer:
    """Return the sequencer that a source shall check, also that of a lease or a request; ConfigError without one."""
    found = getattr(sequencer, "sequencer", sequencer)
    if not isinstance(found, Sequencer):
        raise ConfigError(f"check takes a Sequencer, as lease.sequencer is, not {type(sequencer).__name__}")
    return found


def new_key(after: float) -> tuple[SigningKey, int]:
    """Draw a key that signs from `after` seconds on, and return it with these, in whole seconds."""
    if not 0 <= after <= MAX_AFTER_S:  # Written so that it is true of NaN.
        raise ConfigError(f"after is the seconds until the key signs, 0 to {MAX_AFTER_S}; not {after!r}")
    return SigningKey(secrets.token_hex(4), secrets.token_bytes(KEY_BYTES)), math.ceil(after)
