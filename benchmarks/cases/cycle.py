"""Acquire and release without contention, against the same by hand."""

from pathlib import Path

import fenceline
from benchmarks.floor import HandWrittenLock, SameStatements
from benchmarks.measure import Result, take_turns


def run(folder: Path, scale: float) -> list[Result]:
    """Measure a cycle of acquire and release."""
    floor = HandWrittenLock(folder / "floor.db")
    same = SameStatements(folder / "same.db")
    with fenceline.connect(f"sqlite:///{folder / 'locks.db'}") as source:
        lock = source.lock("bench")

        def cycle() -> None:
            lock.acquire()
            lock.release()

        def block() -> None:
            with lock:
                pass

        variants = {
            "by hand": floor.cycle,
            "fenceline's statements by hand": same.cycle,
            "acquire(), release()": cycle,
            "with lock:": block,
        }
        return take_turns("acquire and release", variants, rounds=int(200 * scale) + 3, batch=40, target="1.3x")
