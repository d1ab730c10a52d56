"""The signals that end a campaign, and how what must not be interrupted is kept from them.

Promise: what was ignored from the beginning, as under nohup, stays ignored.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What people, systems and terminals that close send to have a command end."""


@contextmanager
def held_back() -> Iterator[None]:
    """Let none of them interrupt the block; the first that came is heard when it is over. For the main thread."""
    came: list[int] = []
    hearing = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in hearing}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
