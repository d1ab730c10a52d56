"""Check the arguments of locks, once, before anything is opened: names, ttl, timeouts, and the source's URL.

Promise: an argument outside its contract is ConfigError, which states the contract. Never: an argument clamped.
"""

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fencelock._api.durations import Duration, in_seconds, is_number
from fencelock._platform import is_root
from fencelock.errors import ConfigError
from fencelock.model import check_holder, check_lock_name, default_holder
from fencelock.protocol.stores import Capabilities
from fencelock.stores.registry import Location, location_url

SOURCE_VARIABLE = "FENCELOCK_SOURCE"
DEFAULT_TTL_S = 30.0
_ROUNDING_MS = 1e-6
_LARGEST_NUMBER = 1e15
"""Larger than any allowed value; beyond it, float arithmetic loses whole numbers. NaN is not below it either."""


class LockOptions(NamedTuple):
    """How a handle acquires its lock. `timeout` is seconds, None: wait for ever."""

    name: str
    ttl_ms: int
    timeout: float | None
    holder: str | None
    on_lost: Callable[[str], Any] | None
    timeout_ms: int | None = None

    def holder_now(self) -> str:
        """Return the holder's name; the default is made each time, because a forked child is another holder."""
        return self.holder or default_holder()


def check_lock_options(
    capabilities: Capabilities,
    name: str,
    ttl: Duration,
    timeout: Duration | None,
    holder: str | None,
    on_lost: Callable[[str], Any] | None,
) -> LockOptions:
    """Return the options, or raise ConfigError."""
    check_lock_name(name)
    timeout_s: float | None = in_seconds(timeout)
    if timeout_s is not None and not (is_number(timeout_s) and 0 <= timeout_s <= threading.TIMEOUT_MAX):
        raise ConfigError(
            f"lock {name!r}: timeout is seconds, from 0 to {threading.TIMEOUT_MAX:.0f} (threading.TIMEOUT_MAX), or "
            f"None to wait for ever; not {timeout!r}"
        )
    if holder is not None:
        check_holder(holder)
    if on_lost is not None and not callable(on_lost):
        raise ConfigError(f"lock {name!r}: on_lost must be callable with the reason, not {on_lost!r}")
    return LockOptions(name, _check_ttl_ms(capabilities, name, ttl), timeout_s, holder, on_lost, _as_ms(timeout_s))


def _check_ttl_ms(capabilities: Capabilities, name: str, duration: Duration) -> int:
    ttl: float = in_seconds(duration)
    if not is_number(ttl):
        raise ConfigError(f"lock {name!r}: ttl must be a number of seconds or a timedelta; {ttl!r} is not a number")
    low_ms, high_ms, step_ms = (
        capabilities.ttl_min_ms,
        capabilities.ttl_max_ms,
        capabilities.ttl_step_ms,
    )
    if abs(ttl) <= _LARGEST_NUMBER:
        ttl_ms = round(ttl * 1000)
        is_on_step = abs(ttl * 1000 - ttl_ms) < _ROUNDING_MS * max(1.0, ttl) and ttl_ms % step_ms == 0
        if low_ms <= ttl_ms <= high_ms and is_on_step:
            return ttl_ms
    raise ConfigError(
        f"lock {name!r}: ttl {ttl!r} is outside what this source can grant: {low_ms / 1000:g} to {high_ms / 1000:g} "
        f"seconds, in steps of {step_ms / 1000:g}"
    )


def waiting(blocking: bool, timeout: Duration | None, default_ms: int | None) -> tuple[bool, int | None]:
    """Return (may wait, timeout in ms) by the rules of `threading.Lock.acquire`. -1 is the handle's own timeout, None
    waits for ever.
    """
    if blocking not in (True, False):  # A number here is meant as seconds, and would wait for ever.
        raise ConfigError(f"blocking is True or False, not {blocking!r}: to wait for some seconds, write timeout=")
    if blocking and timeout == -1:
        return True, default_ms
    if not blocking:
        if timeout != -1:
            raise ConfigError("can't specify a timeout for a non-blocking call: leave out timeout, or block")
        return False, 0
    if timeout is None:
        return True, None
    timeout_s = check_timeout(timeout)
    assert timeout_s is not None
    if not timeout_s >= 0:  # Written so that it is true of NaN.
        raise ConfigError(
            f"timeout must be a non-negative number of seconds, -1 for the handle's own, or None to wait for ever; not "
            f"{timeout!r}"
        )
    return True, _as_ms(timeout_s)


def check_timeout(timeout: object) -> float | None:
    """Return the timeout in seconds, or None to wait without a bound; ConfigError if it is no number, OverflowError if
    it is above threading.TIMEOUT_MAX.
    """
    timeout_s: float | None = in_seconds(timeout)
    if timeout_s is None:
        return None
    if is_number(timeout_s) and timeout_s > threading.TIMEOUT_MAX:
        raise OverflowError(f"timeout {timeout!r} is larger than threading.TIMEOUT_MAX, {threading.TIMEOUT_MAX}")
    if not is_number(timeout_s) or math.isnan(timeout_s):
        raise ConfigError(f"timeout is a number of seconds, or None to wait without a bound; not {timeout!r}")
    return timeout_s


def _as_ms(timeout: float | None) -> int | None:
    return None if timeout is None else math.ceil(timeout * 1000)


def is_named(url: Location | None) -> bool:
    """Return whether anybody has named a source, so that it is not the default file."""
    return url is not None or bool(os.environ.get(SOURCE_VARIABLE))


def resolve_url(url: Location | None, *, makes_folder: bool = True) -> str:
    """Return the URL; for None, $FENCELOCK_SOURCE or else the default file, whose folder is created."""
    if url is None:
        url = os.environ.get(SOURCE_VARIABLE) or None
    if url is not None:
        return location_url(url)
    folder = default_folder()
    if makes_folder:
        _make_folder(folder)
    return f"sqlite:///{folder / 'locks.db'}"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the default folder {folder} cannot be created ({error.strerror}): set {SOURCE_VARIABLE} to a URL such as "
            f"sqlite:////path/to/locks.db"
        ) from None


def default_folder() -> Path:
    """Return the folder of the default source: one for root, one for each other user."""
    if is_root():
        return Path("/var/lib/fencelock")
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "fencelock"
