"""Metrics and spans for OpenTelemetry: `hooks()` returns hooks that report what locks and guards do.

Promise: it uses OpenTelemetry's API package alone; where no SDK is configured, nothing is reported. An attribute of a
metric has few values: the name of a lock becomes one only if you ask for it. A span, of which each is one event, says
the lock and the token. A refusal is an event of the span in which it happened.
"""

import time

from fencelock._install import install_extra
from fencelock.errors import MissingDependencyError
from fencelock.hooks import Event, Hooks

try:
    from opentelemetry import metrics, trace
except ImportError as error:
    raise MissingDependencyError(
        f"fencelock.integrations.opentelemetry needs opentelemetry-api ({error.name}): {install_extra('opentelemetry')}"
    ) from error

_NAME = "fencelock"
_NS_PER_S = 1_000_000_000


def hooks(*, by_lock: bool = False) -> Hooks:
    """Return hooks for sources and guards alike, which report to the global providers.

    `by_lock=True` adds the attribute `fencelock.lock` to every metric: only if the names of your locks are few.
    """
    reporter = _Reporter(by_lock=by_lock)
    return Hooks(
        on_acquired=reporter.on_acquired,
        on_waited=reporter.on_waited,
        on_lost=reporter.on_lost,
        on_released=reporter.on_released,
        on_refused=reporter.on_refused,
        on_retried=reporter.on_retried,
        on_guarded=reporter.on_guarded,
    )


class _Reporter:
    """The instruments and the tracer of the global providers, and what each event reports to them."""

    def __init__(self, *, by_lock: bool) -> None:
        meter = metrics.get_meter(_NAME)
        counter, histogram = meter.create_counter, meter.create_histogram
        self._acquired = counter("fencelock.acquired", description="Leases that were granted.")
        self._lost = counter("fencelock.lost", description="Leases that expired or were lost.")
        self._refused = counter("fencelock.refused", description="Tokens that a guard refused.")
        self._retried = counter("fencelock.retried", description="Failures of a leader loop that campaigned again.")
        self._waited = histogram("fencelock.waited", "s", "How long an acquire that had to queue waited.")
        self._held = histogram("fencelock.held", "s", "How long a lease was held.")
        self._guarded = histogram("fencelock.guarded", "s", "How long a guarded transaction took.")
        self._tracer = trace.get_tracer(_NAME)
        self._by_lock = by_lock

    def on_acquired(self, event: Event) -> None:
        """Count a lease."""
        self._acquired.add(1, self._labels(event))

    def on_waited(self, event: Event) -> None:
        """Time the wait of an acquire that was granted."""
        self._waited.record(event.duration or 0.0, self._labels(event))
        self._add_span("wait", event)

    def on_lost(self, event: Event) -> None:
        """Count a loss, and time the lease until it."""
        self._lost.add(1, self._labels(event))
        self._held.record(event.duration or 0.0, self._labels(event, end="lost"))
        self._add_span("hold", event)

    def on_released(self, event: Event) -> None:
        """Time a lease."""
        self._held.record(event.duration or 0.0, self._labels(event, end="released"))
        self._add_span("hold", event)

    def on_refused(self, event: Event) -> None:
        """Count a refusal, and add it to the span in which it happened."""
        self._refused.add(1, self._labels(event, reason=event.reason or ""))
        trace.get_current_span().add_event("fencelock.refused", _described(event))

    def on_retried(self, event: Event) -> None:
        """Count a failure."""
        self._retried.add(1, self._labels(event))

    def on_guarded(self, event: Event) -> None:
        """Time a guarded transaction."""
        self._guarded.record(event.duration or 0.0, self._labels(event, outcome=event.reason or "committed"))
        self._add_span("guarded", event)

    def _labels(self, event: Event, **more: str) -> dict[str, str]:
        return {"fencelock.lock": event.lock, **more} if self._by_lock else more

    def _add_span(self, name: str, event: Event) -> None:
        """Report a span that ends now: its beginning was not announced."""
        end_ns = time.time_ns()
        start_ns = end_ns - int((event.duration or 0.0) * _NS_PER_S)
        span = self._tracer.start_span(f"fencelock.{name}", start_time=start_ns, attributes=_described(event))
        span.end(end_ns)


def _described(event: Event) -> dict[str, str | int]:
    """Return the attributes of a span, or of an event in one."""
    reason = {} if event.reason is None else {"fencelock.reason": event.reason}
    return {"fencelock.lock": event.lock, "fencelock.token": event.token or 0, **reason}
