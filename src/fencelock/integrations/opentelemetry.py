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
    meter = metrics.get_meter(_NAME)
    tracer = trace.get_tracer(_NAME)
    acquired = meter.create_counter("fencelock.acquired", description="Leases that were granted.")
    lost = meter.create_counter("fencelock.lost", description="Leases that expired or were lost.")
    refused = meter.create_counter("fencelock.refused", description="Tokens that a guard refused.")
    retried = meter.create_counter("fencelock.retried", description="Failures of a leader loop that campaigned again.")
    waited = meter.create_histogram("fencelock.waited", "s", "How long an acquire that had to queue waited.")
    held = meter.create_histogram("fencelock.held", "s", "How long a lease was held.")
    guarded = meter.create_histogram("fencelock.guarded", "s", "How long a guarded transaction took.")

    def of(event: Event, **more: str) -> dict[str, str]:
        return {"fencelock.lock": event.lock, **more} if by_lock else more

    def described(event: Event) -> dict[str, str | int]:
        reason = {} if event.reason is None else {"fencelock.reason": event.reason}
        return {"fencelock.lock": event.lock, "fencelock.token": event.token or 0, **reason}

    def add_span(name: str, event: Event) -> None:
        """Report a span that ends now: its beginning was not announced."""
        end_ns = time.time_ns()
        start_ns = end_ns - int((event.duration or 0.0) * _NS_PER_S)
        tracer.start_span(f"fencelock.{name}", start_time=start_ns, attributes=described(event)).end(end_ns)

    def on_waited(event: Event) -> None:
        waited.record(event.duration or 0.0, of(event))
        add_span("wait", event)

    def on_lost(event: Event) -> None:
        lost.add(1, of(event))
        held.record(event.duration or 0.0, of(event, end="lost"))
        add_span("hold", event)

    def on_released(event: Event) -> None:
        held.record(event.duration or 0.0, of(event, end="released"))
        add_span("hold", event)

    def on_refused(event: Event) -> None:
        refused.add(1, of(event, reason=event.reason or ""))
        trace.get_current_span().add_event("fencelock.refused", described(event))

    def on_guarded(event: Event) -> None:
        guarded.record(event.duration or 0.0, of(event, outcome=event.reason or "committed"))
        add_span("guarded", event)

    return Hooks(
        on_acquired=lambda event: acquired.add(1, of(event)),
        on_waited=on_waited,
        on_lost=on_lost,
        on_released=on_released,
        on_refused=on_refused,
        on_retried=lambda event: retried.add(1, of(event)),
        on_guarded=on_guarded,
    )
