"""The clock: it counts from boot, and SQLite may call it in the middle of a statement."""

import signal
import sqlite3
import time
from contextlib import closing
from types import FrameType

import pytest

from fencelock.clock import COUNTS_SUSPEND, boottime_ms, boottime_ns, boottime_us

CALLS = 20_000


def test_the_three_units_are_one_clock_rounded_down() -> None:
    assert COUNTS_SUSPEND
    before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    ns, us, ms = boottime_ns(), boottime_us(), boottime_ms()
    assert before_ns <= ns <= us * 1000 + 999 <= ms * 1_000_000 + 1_999_999


def test_a_signal_handler_that_raises_is_not_lost_inside_a_statement() -> None:
    class RaisedByHandlerError(Exception):
        """The exception that a user's handler raises."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise RaisedByHandlerError

    numbers = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {CALLS})"

    def count_for_ever(connection: sqlite3.Connection) -> None:
        connection.create_function("now_ns", 0, boottime_ns)
        while True:
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            connection.execute(f"{numbers} SELECT sum(now_ns() > i) FROM n").fetchall()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(RaisedByHandlerError):
            count_for_ever(connection)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
