"""Metrics for Prometheus: `hooks()` returns hooks that count and time what locks and guards do.

Promise: a label has few values. The name of a lock becomes one only if you ask for it, since each name is a time series
for ever; the holder, the token and the resource never do. A hook updates one or two numbers in memory.
"""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from fencelock._install import install_extra
from fencelock.errors import MissingDependencyError
from fencelock.hooks import Event, Hooks

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
except ImportError as error:
    raise MissingDependencyError(
        f"fencelock.integrations.prometheus needs prometheus-client ({error.name}): {install_extra('prometheus')}"
    ) from error

BLOCK_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
LEASE_BUCKETS_S = (0.001, 0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 21_600)

Metric = TypeVar("Metric", Counter, Histogram)


def hooks(*, registry: CollectorRegistry = REGISTRY, by_lock: bool = False) -> Hooks:
    """Return hooks for sources and guards alike, whose metrics are in the registry. Call it once per registry.

    `by_lock=True` adds the label `lock` to every metric: only if the names of your locks are few.
    """
    metrics = _Metrics(registry, ("lock",) if by_lock else ())

    def of(event: Event, *more: str) -> tuple[str, ...]:
        return (event.lock, *more) if by_lock else more

    def on_lost(event: Event) -> None:
        metrics.lost(*of(event)).inc()
        metrics.held(*of(event, "lost")).observe(event.duration or 0.0)

    return Hooks(
        on_acquired=lambda event: metrics.acquired(*of(event)).inc(),
        on_waited=lambda event: metrics.waited(*of(event)).observe(event.duration or 0.0),
        on_lost=on_lost,
        on_released=lambda event: metrics.held(*of(event, "released")).observe(event.duration or 0.0),
        on_refused=lambda event: metrics.refused(*of(event, event.reason or "")).inc(),
        on_retried=lambda event: metrics.retried(*of(event)).inc(),
        on_guarded=lambda event: metrics.guarded(*of(event, event.reason or "committed")).observe(
            event.duration or 0.0
        ),
    )


class _Metrics:
    """What is counted and timed: functions from label values to what counts for them."""

    def __init__(self, registry: CollectorRegistry, names: tuple[str, ...]) -> None:
        self._registry = registry
        self._names = names
        """The labels that all metrics have."""
        self.acquired = self._counted("acquired", "Leases that were granted.")
        self.lost = self._counted("lost", "Leases that expired or were lost.")
        self.refused = self._counted("refused", "Tokens that a guard refused.", "reason")
        self.retried = self._counted("retried", "Failures after which a leader loop campaigned again.")
        self.waited = self._timed("waited", "How long an acquire that had to queue waited.", LEASE_BUCKETS_S)
        text = "How long a lease was held, until its release or its loss."
        self.held = self._timed("held", text, LEASE_BUCKETS_S, "end")
        self.guarded = self._timed("guarded", "How long a guarded transaction took.", BLOCK_BUCKETS_S, "outcome")

    def _counted(self, name: str, text: str, *labels: str) -> Callable[..., Counter]:
        return _children(Counter(f"fencelock_{name}", text, (*self._names, *labels), registry=self._registry))

    def _timed(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Callable[..., Histogram]:
        names = (*self._names, *labels)
        name = f"fencelock_{name}_seconds"
        return _children(Histogram(name, text, names, registry=self._registry, buckets=buckets))


def _children(metric: Metric) -> Callable[..., Metric]:
    """Return a function from label values to the metric that counts for them; looking one up there takes longer."""
    return cache(lambda *values: metric.labels(*values) if values else metric)
