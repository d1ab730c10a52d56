"""The signals that end a campaign, and how a cleanup is kept from being interrupted by them.

Promise: what was ignored from the beginning, as under nohup, stays ignored.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from fencelock.cli.plugin import SIGNALLED

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What people, systems and terminals that close send to have a command end."""


def exit_by_cleaning_up() -> None:
    """Have these signals end the command as an exception, so that everything is cleaned up."""
    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _exit)


def _exit(number: int, _frame: object) -> NoReturn:
    """End the command; no later signal interrupts its cleanup."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(SIGNALLED + number)


@contextmanager
def held_back() -> Iterator[None]:
    """Hold these signals back during the block; the first that came is raised after it. For the main thread."""
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
