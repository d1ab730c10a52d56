"""Idempotency keys: one for each request of one client of one lease, and no other client draws the same.

Promise: a key is ASCII, at most 80 characters, and shows neither the lock's name nor anything secret. Any thread may
draw. The kernel gives the random part, so a forked child draws others than its parent and its siblings.
"""

import os
from hashlib import sha256

from fencelock.model import Sequencer


class RequestKeys:
    """The keys of one client of one lease."""

    def __init__(self, sequencer: Sequencer) -> None:
        tenure = f"{sequencer.source_id}\0{sequencer.history_id}\0{sequencer.lock}\0{sequencer.token}"
        self._prefix = sha256(tenure.encode()).hexdigest()[:32]

    def draw(self) -> str:
        """Return a new key. A retry of one request sends the same key again."""
        return f"{self._prefix}-{os.urandom(16).hex()}"
