"""What the checks of the conformance kit stand on: a fresh store for each, and one way to run it sync or async.

Promise: a check is written once; the sync kit runs it in threads over `SyncDriver` and `Guard`, the async one in tasks
over `AsyncDriver` and `AsyncGuard`. pytest calls `setup_method` and `teardown_method` around each check; nothing of
pytest is imported, so that `failures()` and other runners can call the checks as well.
"""

import asyncio
import inspect
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fencelock._drivers.aio import AsyncDriver
from fencelock._drivers.sync import SyncDriver
from fencelock.clock import boottime_us
from fencelock.protocol.source_requests import Flow
from fencelock.protocol.stores import SourceStore
from fencelock.testing.clock import ManualClock

REQUEST_TIMEOUT_S = 30.0
"""How long a check waits for threads and tasks that should end at once."""
Result = TypeVar("Result")


def require(is_kept: object, rule: str) -> None:
    """Fail the check with the rule that was broken; plain `assert` would be silent under `python -O`."""
    if not is_kept:
        raise AssertionError(rule)


@contextmanager
def refusal(kind: type[Exception] | tuple[type[Exception], ...], rule: str) -> Iterator[list[Any]]:
    """Fail with the rule unless the block raises such an error; the list gets that error."""
    caught: list[Any] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
        return
    raise AssertionError(rule)


class SyncRunner:
    """Runs flows and calls in the caller's thread, and several at once in threads."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._drivers: dict[int, SyncDriver] = {}

    def run(self, store: SourceStore, flow: Flow[Result]) -> Result:
        """Run one flow to its end."""
        driver = self._drivers.get(id(store))
        if driver is None:
            driver = self._drivers[id(store)] = SyncDriver(store, now_us=self._now_us)
        return driver.run(flow)

    def together(self, store: SourceStore, flows: Sequence[Flow[Any]]) -> list[Any]:
        """Run the flows at the same time, and return their results in order; the first error is raised."""
        driver = SyncDriver(store, now_us=self._now_us)
        results: list[Any] = [None] * len(flows)
        errors: list[BaseException] = []

        def work(number: int, flow: Flow[Any]) -> None:
            try:
                results[number] = driver.run(flow)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in enumerate(flows)]
        for thread in threads:
            thread.start()
        give_up_s = time.monotonic() + REQUEST_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, give_up_s - time.monotonic()))
            require(
                not thread.is_alive(), f"{len(flows)} threads on one lock were not done after {REQUEST_TIMEOUT_S:g} s"
            )
        driver.close()
        if errors:
            raise errors[0]
        return results

    def close(self) -> None:
        """Close the connections."""
        for driver in self._drivers.values():
            driver.close()


class AsyncRunner:
    """Runs flows on an event loop of its own, and several at once in tasks."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._loop = asyncio.Runner()
        self._drivers: dict[int, AsyncDriver] = {}

    def run(self, store: SourceStore, flow: Flow[Result]) -> Result:
        """Run one flow to its end."""
        return self._loop.run(self._driver(store).run(flow))

    def together(self, store: SourceStore, flows: Sequence[Flow[Any]]) -> list[Any]:
        """Run the flows at the same time, and return their results in order; the first error is raised."""
        driver = self._driver(store)

        async def work() -> list[Any]:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await asyncio.gather(*(driver.run(flow) for flow in flows))

        return self._loop.run(work())

    def wait(self, awaitable: Any) -> Any:
        """Run an awaitable to its end."""

        async def work() -> Any:
            return await awaitable

        return self._loop.run(work())

    def _driver(self, store: SourceStore) -> AsyncDriver:
        driver = self._drivers.get(id(store))
        if driver is None:
            driver = self._drivers[id(store)] = AsyncDriver(store, now_us=self._now_us)
        return driver

    def close(self) -> None:
        """Close the connections and the loop."""
        for driver in self._drivers.values():
            self._loop.run(driver.close())
        self._loop.close()


class Rig:
    """The base of every kit: a folder for each check, and a clock."""

    clock: ManualClock | None = None
    """The clock that the store under test reads, if it can be given one; None: the machine's, and checks that need
    time to pass let it pass.
    """

    def setup_method(self) -> None:
        """Make what one check needs."""
        self.folder = Path(tempfile.mkdtemp(prefix="fencelock-"))

    def teardown_method(self) -> None:
        """Take it away."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def now_us(self) -> int:
        """Return the time on the clock of the store under test, in microseconds."""
        return boottime_us() if self.clock is None else self.clock.now_us()

    def tick(self) -> None:
        """Let a clock that stands still go on: a claim drawn in the microsecond of another's end may be refused."""
        if self.clock is not None:
            self.clock.advance(0.000_001)

    def pass_time(self, milliseconds: int) -> None:
        """Let this time and a little more pass on the store's clock."""
        if self.clock is None:
            time.sleep((milliseconds + 2) / 1000)
        else:
            self.clock.advance((milliseconds + 2) / 1000)


def failures(kit: type[Rig]) -> dict[str, BaseException]:
    """Run every check of a kit without pytest; return what each of those that failed raised, by its name."""
    found: dict[str, BaseException] = {}
    for name, _ in inspect.getmembers(kit, inspect.isfunction):
        if name.startswith("test_") and (error := failure(kit, name)) is not None:
            found[name] = error
    return found


def failure(kit: type[Rig], name: str) -> BaseException | None:
    """Run one check of a kit; return what it raised, or None."""
    rig = kit()
    rig.setup_method()
    try:
        getattr(rig, name)()
    except Exception as error:
        return error
    finally:
        rig.teardown_method()
    return None
