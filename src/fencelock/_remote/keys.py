"""Idempotency keys: one for each request of one client of one lease, and no other client draws the same.

Promise: a key is ASCII, 60 to 80 characters, and shows neither the lock's name nor anything secret. Any thread may
draw, and a forked child draws others than its parent.
"""

import os
from hashlib import sha256
from itertools import count

from fencelock.model import Sequencer


class RequestKeys:
    """The keys of one client of one lease."""

    def __init__(self, sequencer: Sequencer) -> None:
        tenure = f"{sequencer.source_id}\0{sequencer.history_id}\0{sequencer.lock}\0{sequencer.token}"
        self._prefix = f"{sha256(tenure.encode()).hexdigest()[:32]}-{os.urandom(8).hex()}"
        self._counts = count(1)

    def draw(self) -> str:
        """Return a new key. A retry of one request sends the same key again."""
        return f"{self._prefix}-{os.getpid():x}-{next(self._counts)}"
