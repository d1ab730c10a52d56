"""What a source's answers about a lease's proof become, and the keys that sign it: what both kinds of source share.

Promise: a claim that was drawn here for a break leaves as the proof in a sequencer; a key's secret is shown in no
`repr`.
"""

import secrets
import time

from fencelock.errors import ConfigError
from fencelock.model import BrokenLock, LeaseCheck, Sequencer, SigningKey, one_way
from fencelock.protocol.source_requests import Broken, Check, Checked

KEY_BYTES = 32


def broken_lock(name: str, claim: str, reply: Broken) -> BrokenLock:
    """Return the result of a break, for the breaker."""
    key_id, signature = reply.signature
    sequencer = Sequencer(
        reply.source_id, reply.history_id, name, reply.token, one_way(claim), key_id=key_id, signature=signature
    )
    return BrokenLock(name, reply.token, reply.holder, sequencer)


def check_request(sequencer: object) -> Check:
    """Return the request that checks a sequencer; ConfigError for anything else."""
    if not isinstance(sequencer, Sequencer):
        raise ConfigError(f"check takes a Sequencer, as lease.sequencer is, not {type(sequencer).__name__}")
    return Check(sequencer.lock, sequencer.history_id, sequencer.proof)


def checked(sequencer: Sequencer, reply: Checked) -> LeaseCheck:
    """Return the answer to a check, for its caller; a true proof with another token is not current."""
    remaining_ms = reply.remaining_ms if reply.last_token == sequencer.token else 0
    return LeaseCheck(sequencer.lock, sequencer.token, remaining_ms / 1000, reply.last_token)


def new_key(after: float) -> SigningKey:
    """Draw a key that signs from `after` seconds on."""
    if not after >= 0:  # Written so that it is true of NaN.
        raise ConfigError(f"after is the seconds until the key signs, 0 or more; not {after!r}")
    begins_s = int(time.time() + after)
    return SigningKey(secrets.token_hex(4), secrets.token_bytes(KEY_BYTES), begins_s)
