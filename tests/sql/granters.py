"""Threads that take locks and release them while the server is killed under them."""

import random
import threading
from collections.abc import Callable
from contextlib import suppress

import fencelock
from fencelock import SourceError
from tests.sql.clients import one_token
from tests.support.helpers import wait_until

STOPS = 3


class Granter(threading.Thread):
    """A thread that takes locks and releases them through all outages of the server."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._number = number
        self.tokens: list[int] = []
        self.shall_end = threading.Event()
        self.refusals: list[str] = []
        self.start()

    def run(self) -> None:
        with fencelock.connect(self._url) as source:
            turn = 0
            while not self.shall_end.is_set():
                turn += 1
                # Mostly its own locks: a shared one may stay with a lease that a crash brought back, for its ttl.
                lock = source.lock("shared" if turn % 10 == 0 else f"{self._number}-{turn % 50}", ttl=1.0)
                try:
                    with suppress(fencelock.LeaseError), lock as lease:
                        self.tokens.append(lease.token)
                except SourceError as error:
                    self.refusals.append(str(error))


def check_tokens_over_stops(url: str, stop: Callable[[], object], seed: str) -> None:
    """Stop the server again and again in the middle of load, and assert that no token comes twice."""
    granters = [Granter(url, number) for number in range(3)]
    moments = random.Random(seed)
    for _ in range(STOPS):
        enough = sum(len(granter.tokens) for granter in granters) + moments.randrange(30, 150)
        wait_until(lambda: sum(len(granter.tokens) for granter in granters) >= enough)  # noqa: B023 - called at once
        stop()
    for granter in granters:
        before = len(granter.tokens)
        wait_until(lambda: len(granter.tokens) > before)  # noqa: B023 - called at once
        granter.shall_end.set()
    for granter in granters:
        granter.join(30)
        assert granter.tokens == sorted(granter.tokens)
        assert not [refusal for refusal in granter.refusals if "went back" in refusal or "after" in refusal]
    tokens = [token for granter in granters for token in granter.tokens]
    assert len(set(tokens)) == len(tokens)
    assert one_token(url, "another") > max(tokens)
