"""What OpenTelemetry has seen: spans and measurements, in memory; and the spans of a server under test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.web import Server


class Seen:
    """An SDK of a test's own, and what it has been given."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meter_provider = MeterProvider([self._reader], shutdown_on_exit=False)

    @property
    def providers(self) -> dict[str, Any]:
        """Arguments of a Tracing."""
        return {"tracer_provider": self.tracer_provider, "meter_provider": self.meter_provider}

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """The spans that have ended, of this name."""
        return [span for span in self._exporter.get_finished_spans() if name in ("", span.name)]

    def metric(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """The attributes and the value of each point: the sum of a counter, the count of a histogram."""
        data = self._reader.get_metrics_data()
        points: Iterable[Any] = (
            point
            for resource in ([] if data is None else data.resource_metrics)
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        )
        return [(dict(point.attributes), getattr(point, "value", None) or point.count) for point in points]


def parent_id(span: ReadableSpan) -> int | None:
    """The id of a span's parent."""
    return None if span.parent is None else span.parent.span_id


def span_id(span: ReadableSpan) -> int:
    """A span's id."""
    return int(span.context.span_id)


def trace_id(span: ReadableSpan) -> int:
    """The id of its trace."""
    return int(span.context.trace_id)


class NotedSpan(NamedTuple):
    """A span that has ended in a server under test, as ``notes.note_spans`` notes it."""

    name: str
    trace: int
    span: int
    parent: int | None
    #: The name that the test knows its request by, if the application has set it.
    subject: str | None
    #: The process.
    pid: str


def noted_spans(server: Server) -> list[NotedSpan]:
    """The spans of all processes of a server."""
    found: list[NotedSpan] = []
    for note in server.notes:
        if note.what == "span":
            name, trace, span, parent, subject = json.loads(note.name)
            found.append(NotedSpan(name, trace, span, parent, subject, note.pid))
    return found
