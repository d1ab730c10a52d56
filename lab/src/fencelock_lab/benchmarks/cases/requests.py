"""How many requests a guarded write sends, and acquire and release: counted by a proxy, not timed.

Where each request is paid for, their number is what a user compares.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module

import fencelock
from fencelock_lab.benchmarks.guards import GUARDED
from fencelock_lab.benchmarks.http_counting import HttpCounter
from fencelock_lab.benchmarks.measure import Measurement, summarise
from fencelock_lab.benchmarks.stores import Operation, Site, by_hand

COUNTED = 10
"""Of each variant; the first one connects, and is not among them."""


def run(site: Site, seconds: float) -> list[Measurement]:
    """Count the requests of each variant; the time that there is does not matter."""
    assert site.server is not None
    with HttpCounter(site.server.port) as counter:
        proxied = replace(site, url=site.url.replace(f":{site.server.port}", f":{counter.port}"))
        return [*_of_guards(proxied, counter), *_of_locks(proxied, counter)]


def _of_guards(site: Site, counter: HttpCounter) -> list[Measurement]:
    guards = import_module(f"fencelock_lab.benchmarks.guards.{site.store}")
    guards.prepare(site.url)
    results = []
    for kind in guards.KINDS:
        if kind.most_requests is not None:
            found = _count(f"requests for a guarded write, {kind.name}", guards.variants(site.url, kind), counter)
            results += [replace(one, aim=kind.most_requests if one.variant == GUARDED else None) for one in found]
    return results


def _of_locks(site: Site, counter: HttpCounter) -> list[Measurement]:
    with by_hand(site) as floors, fencelock.connect(site.url) as source:
        lock = source.lock("requests")

        def block() -> None:
            with lock:
                pass

        return _count("requests to acquire and release", floors | {"with lock:": block}, counter)


def _count(case: str, variants: Mapping[str, Operation], counter: HttpCounter) -> list[Measurement]:
    results = []
    for name, operation in variants.items():
        operation()
        before = counter.number
        for _ in range(COUNTED):
            operation()
        results.append(summarise(case, name, "requests", [(counter.number - before) / COUNTED]))
    return results
