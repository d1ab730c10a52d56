"""The base class of the conformance kits: a fresh folder for each check, a clock, and the way a check fails.

Promise: pytest calls `setup_method` and `teardown_method` around each check. The kits do not import pytest, so
`failures()` and other runners can call the checks as well.
"""

import inspect
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fencelock.protocol import boottime_us
from fencelock.testing.clock import ManualClock


def require(is_kept: object, rule: str) -> None:
    """Fail the check and name the broken rule; a plain `assert` does nothing under `python -O`."""
    if not is_kept:
        raise AssertionError(rule)


@contextmanager
def refusal(kind: type[Exception] | tuple[type[Exception], ...], rule: str) -> Iterator[list[Any]]:
    """Fail and name the rule unless the block raises an error of this kind; append that error to the yielded list."""
    caught: list[Any] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
        return
    raise AssertionError(rule)


class Rig:
    """The base of every kit: a folder for each check, and a clock."""

    clock: ManualClock | None = None
    """The clock that the store under test reads, if it accepts one. With None it reads the machine's clock, and
    checks that need time to pass sleep.
    """

    def setup_method(self) -> None:
        """Create the folder of one check."""
        self.folder = Path(tempfile.mkdtemp(prefix="fencelock-"))

    def teardown_method(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def dump(self) -> bytes:
        """Return everything that the store keeps, as bytes; override it, so that checks look for claims in it."""
        return b""

    def now_us(self) -> int:
        """Return the time on the clock of the store under test, in microseconds."""
        return boottime_us() if self.clock is None else self.clock.now_us()

    def tick(self) -> None:
        """Advance a manual clock: a source may refuse a claim drawn in the microsecond in which another claim ended."""
        if self.clock is not None:
            self.clock.advance(0.000_001)

    def pass_time(self, milliseconds: int) -> None:
        """Let this time plus two milliseconds pass on the store's clock."""
        if self.clock is None:
            time.sleep((milliseconds + 2) / 1000)
        else:
            self.clock.advance((milliseconds + 2) / 1000)


def failures(kit: type[Rig]) -> dict[str, BaseException]:
    """Run every check of a kit without pytest; return the exception of each failed check, by the check's name."""
    found: dict[str, BaseException] = {}
    for name, _ in inspect.getmembers(kit, inspect.isfunction):
        if name.startswith("test_") and (error := failure(kit, name)) is not None:
            found[name] = error
    return found


def failure(kit: type[Rig], name: str) -> BaseException | None:
    """Run one check of a kit; return its exception, or None if it passes."""
    rig = kit()
    rig.setup_method()
    try:
        getattr(rig, name)()
    except Exception as error:
        return error
    finally:
        rig.teardown_method()
    return None
