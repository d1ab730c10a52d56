"""Holders that race for one number at a store of three servers while its leaders are killed: written once for both."""

import itertools
import threading
from collections.abc import Callable
from typing import Any, Self

from fencelock import OutcomeUnknownError, SourceUnavailableError, StaleTokenError
from tests.guarded_keys import Face
from tests.guards import HandmadeLease
from tests.helpers import wait_until

RACERS = 3


class Race:
    """Threads that each take a higher token, read the number and write the next one, until they are stopped."""

    def __init__(self, face: Face) -> None:
        self.face = face
        self.written: list[int] = []
        self.unknown: list[int] = []
        self.errors: list[BaseException] = []
        self._tokens = itertools.count(2)
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(RACERS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _run(self) -> None:
        guard = self.face.guard()
        try:
            while not self._is_over.is_set():
                self._take_turn(guard)
        except BaseException as error:
            self.errors.append(error)

    def _take_turn(self, guard: Any) -> None:
        number = 0
        try:
            with guard.transaction(HandmadeLease(next(self._tokens))) as txn:
                number = self.face.read_number(txn) + 1
                self.face.put(txn, str(number))
            self.written.append(number)
        except OutcomeUnknownError:
            self.unknown.append(number)
        except (StaleTokenError, SourceUnavailableError):
            pass

    def goes_on(self) -> None:
        """Wait until a few more have been written."""
        enough = len(self.written) + 5
        wait_until(lambda: self.errors or len(self.written) >= enough)


def race_through(face: Face, elections: list[Callable[[], Any]]) -> None:
    """Race while each of these happens: no number is written twice, and none is lost that was told as written."""
    face.write(HandmadeLease(1), "0")
    with Race(face) as race:
        race.goes_on()
        for elect in elections:
            elect()
            race.goes_on()
    assert race.errors == []
    last = int(wait_until(face.value) or "")
    assert len(set(race.written)) == len(race.written)
    assert set(race.written) <= set(range(1, last + 1))
    assert set(range(1, last + 1)) <= {*race.written, *race.unknown}
