"""Lengths of time as arguments: a number of seconds, or a `datetime.timedelta`.

Promise: what is neither is returned as it came, so that the check of the argument names it. Never: a number from text.
"""

from datetime import timedelta
from typing import Any

Duration = float | timedelta


def in_seconds(duration: object) -> Any:
    """Return a timedelta as seconds, and anything else as it is."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def is_number(value: object) -> bool:
    """Return whether the value is a number that a length of time can be; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
