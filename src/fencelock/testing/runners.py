"""What the conformance kits run a store with: the library's own drivers, flows and guards, over any store.

Promise: the kits reach the library's internals through this module alone. A check is written once; `SyncRunner` runs it
in threads over the sync driver and guard, `AsyncRunner` in tasks over the async ones.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from fencelock._api.aio_guard import AsyncGuard
from fencelock._api.credentials import MEMORY, SequencerCredential
from fencelock._api.guard import Guard
from fencelock._api.validation import scope_at
from fencelock._drivers.aio import AsyncDriver
from fencelock._drivers.sync import SyncDriver
from fencelock._flows.acquire import MIN_CLAIMS, Attempt, acquire
from fencelock._flows.renewal import end_lease, release
from fencelock.hooks import NO_HOOKS, Hooks
from fencelock.model import Sequencer
from fencelock.protocol import GuardStore, SourceFlow, SourceStore
from fencelock.stores.registry import guard_store, source_store

__all__ = ["MIN_CLAIMS", "Attempt", "acquire", "end_lease", "guard_store", "release", "source_store"]

REQUEST_TIMEOUT_S = 30.0
"""How long a check waits for threads and tasks that should end at once."""
Result = TypeVar("Result")


class SyncRunner:
    """Runs flows and calls in the caller's thread, and several at once in threads."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._drivers: dict[int, SyncDriver] = {}

    def run(self, store: SourceStore, flow: SourceFlow[Result]) -> Result:
        """Run one flow to its end."""
        driver = self._drivers.get(id(store))
        if driver is None:
            driver = self._drivers[id(store)] = SyncDriver(store, now_us=self._now_us)
        return driver.run(flow)

    def together(self, store: SourceStore, flows: Sequence[SourceFlow[Any]]) -> list[Any]:
        """Run the flows at the same time, and return their results in order; the first error is raised."""
        driver = SyncDriver(store, now_us=self._now_us)
        results: list[Any] = [None] * len(flows)
        errors: list[BaseException] = []

        def work(number: int, flow: SourceFlow[Any]) -> None:
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
            if thread.is_alive():
                raise AssertionError(f"{len(flows)} threads on one lock were not done after {REQUEST_TIMEOUT_S:g} s")
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

    def run(self, store: SourceStore, flow: SourceFlow[Result]) -> Result:
        """Run one flow to its end."""
        return self._loop.run(self._driver(store).run(flow))

    def together(self, store: SourceStore, flows: Sequence[SourceFlow[Any]]) -> list[Any]:
        """Run the flows at the same time, and return their results in order; the first error is raised."""
        driver = self._driver(store)

        async def work() -> list[Any]:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await asyncio.gather(*(driver.run(flow) for flow in flows))

        return self._loop.run(work())

    def take_turns(
        self, store: SourceStore, lock: str, acquires: Sequence[SourceFlow[Any]], also: SourceFlow[Any]
    ) -> None:
        """Begin these acquires of one lock in one tick of the loop, in this order, and another flow with them."""
        driver = self._driver(store)

        async def work() -> None:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                in_turn = (driver.run_in_turn(lock, None, partial(_given, flow)) for flow in acquires)
                await asyncio.gather(*in_turn, driver.run(also))

        self._loop.run(work())

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


def _given(flow: SourceFlow[Result], _: int | None) -> SourceFlow[Result]:
    return flow


class HolderCredential(SequencerCredential):
    """A sequencer with the claim of its lease, as only the holder has both."""

    __slots__ = ("_claim",)

    def __init__(self, sequencer: Sequencer, claim: str) -> None:
        super().__init__(sequencer, MEMORY.kept(sequencer))
        self._claim = claim

    @property
    def claim(self) -> str:
        """The holder's secret, with which it closes."""
        return self._claim


def sync_guard(
    store: GuardStore, resources: tuple[str, ...], lock: str, *, independent: bool = False, hooks: Hooks = NO_HOOKS
) -> Guard:
    """Return a guard over a store that no URL needs to lead to."""
    return Guard(store, scope_at(store, None, resources, lock, independent=independent), hooks)


def async_guard(
    store: GuardStore, resources: tuple[str, ...], lock: str, *, independent: bool = False, hooks: Hooks = NO_HOOKS
) -> AsyncGuard:
    """Return an async guard over a store that no URL needs to lead to."""
    return AsyncGuard(store, scope_at(store, None, resources, lock, independent=independent), hooks)
