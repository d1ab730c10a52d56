"""Prometheus' and OpenTelemetry's own packages, fed by hooks: what they count and time, and by which labels."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

import fencelock
import fencelock.aio
from fencelock import Event, Hooks
from fencelock.errors import StaleTokenError
from fencelock.integrations import opentelemetry, prometheus
from tests.support.helpers import wait_until


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE note (text TEXT)")
    return tmp_path / "app.db"


def live(hooks: Hooks, file: Path, is_lost: Callable[[], bool]) -> None:
    """Have each event happen: two guarded transactions, a refusal, a wait, a release, a loss."""
    guard = fencelock.guard(file, resource="notes", lock="a", hooks=hooks)
    with fencelock.connect(file.with_name("locks.db"), hooks=hooks) as source:
        with source.lock("a") as lease:
            with guard.transaction(lease) as connection:
                connection.execute("INSERT INTO note VALUES ('kept')")
            with pytest.raises(KeyError), guard.transaction(lease):
                raise KeyError
            old = lease.sequencer
        with source.lock("a") as lease:
            guard.seal(lease)
            with pytest.raises(StaleTokenError), guard.transaction(old):
                pass
        lease = source.lock("a").acquire()
        assert lease is not None
        source.break_lock("a", reason="test")
        assert not lease.release()
        wait_until(is_lost)


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(f"fencelock_{name}", labels) or 0.0


@pytest.mark.parametrize("names", [{}, {"lock": "a"}])
def test_prometheus_counts_and_times_and_labels_no_lock_unless_asked(names: dict[str, str], file: Path) -> None:
    registry = CollectorRegistry()
    hooks = prometheus.hooks(registry=registry, by_lock=bool(names))
    live(hooks, file, lambda: sample(registry, "held_seconds_count", end="lost", **names) == 1)
    assert sample(registry, "acquired_total", **names) == 3
    assert sample(registry, "lost_total", **names) == 1
    assert sample(registry, "refused_total", reason="stale", **names) == 1
    assert sample(registry, "held_seconds_count", end="released", **names) == 2
    assert sample(registry, "guarded_seconds_count", outcome="committed", **names) == 1
    assert sample(registry, "guarded_seconds_count", outcome="rolled back", **names) == 1
    assert sample(registry, "guarded_seconds_sum", outcome="committed", **names) > 0
    labels = {label for metric in registry.collect() for found in metric.samples for label in found.labels}
    assert labels - {"end", "outcome", "reason", "le"} == set(names)


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[InMemoryMetricReader, InMemorySpanExporter]]:
    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    meters, tracers = MeterProvider([reader], shutdown_on_exit=False), TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    # The global providers can be set once in a process.
    monkeypatch.setattr(metrics, "get_meter", meters.get_meter)
    monkeypatch.setattr(trace, "get_tracer", tracers.get_tracer)
    yield reader, spans
    meters.shutdown()
    tracers.shutdown()


def points(reader: InMemoryMetricReader) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the count of each series, by its name and attributes."""
    data = reader.get_metrics_data()
    found = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
        for point in metric.data.data_points:
            count = point.count if hasattr(point, "count") else point.value
            found[metric.name, tuple(sorted((point.attributes or {}).items()))] = count
    return found


@pytest.mark.parametrize("names", [{}, {"fencelock.lock": "a"}])
def test_opentelemetry_counts_and_times_and_labels_no_lock_unless_asked(
    names: dict[str, str], file: Path, telemetry: tuple[InMemoryMetricReader, InMemorySpanExporter]
) -> None:
    reader, spans = telemetry

    def key(name: str, **more: str) -> tuple[str, tuple[tuple[str, str], ...]]:
        return f"fencelock.{name}", tuple(sorted({**names, **more}.items()))

    hooks = opentelemetry.hooks(by_lock=bool(names))
    live(
        hooks,
        file,
        lambda: "fencelock.hold" in [s.name for s in spans.get_finished_spans() if "reason" in str(s.attributes)],
    )
    assert points(reader) == {
        key("acquired"): 3,
        key("lost"): 1,
        key("refused", reason="stale"): 1,
        key("held", end="released"): 2,
        key("held", end="lost"): 1,
        key("guarded", outcome="committed"): 1,
        key("guarded", outcome="rolled back"): 1,
    }
    (committed, _) = [span for span in spans.get_finished_spans() if span.name == "fencelock.guarded"]
    assert committed.attributes == {"fencelock.lock": "a", "fencelock.token": 1}
    assert committed.start_time is not None
    assert committed.end_time is not None
    assert committed.start_time < committed.end_time


def test_waits_and_retries_reach_both(
    telemetry: tuple[InMemoryMetricReader, InMemorySpanExporter],
) -> None:
    reader, spans = telemetry
    registry = CollectorRegistry()
    for hooks in (prometheus.hooks(registry=registry), opentelemetry.hooks()):
        assert hooks.on_waited is not None
        assert hooks.on_retried is not None
        hooks.on_waited(Event("waited", "a", token=1, duration=2.0))
        hooks.on_retried(Event("retried", "a", duration=0.5, reason="down"))
    assert sample(registry, "waited_seconds_sum") == 2.0
    assert sample(registry, "retried_total") == 1
    assert points(reader) == {("fencelock.waited", ()): 1, ("fencelock.retried", ()): 1}
    assert [span.name for span in spans.get_finished_spans()] == ["fencelock.wait"]


def test_an_async_transaction_says_how_it_ended_too(file: Path) -> None:
    heard: list[Event] = []
    guard = fencelock.aio.guard(file, resource="notes", lock="a", hooks=Hooks(on_guarded=heard.append))

    async def main() -> None:
        async with fencelock.aio.connect(file.with_name("locks.db")) as source, source.lock("a") as lease:
            async with guard.transaction(lease):
                pass
            with pytest.raises(KeyError):
                async with guard.transaction(lease):
                    raise KeyError

    asyncio.run(main())
    assert [(event.resource, event.reason) for event in heard] == [("notes", None), ("notes", "rolled back")]
    assert all(event.duration is not None and event.duration > 0 for event in heard)
