"""The SDK of OpenTelemetry in a server under test, and its page with the spans of the process."""

from __future__ import annotations

import json

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

_exporter = InMemorySpanExporter()


def install() -> None:
    """Make the spans of this process end in its memory."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_exporter))
    trace.set_tracer_provider(provider)


def page() -> str:
    """Name, trace, span and parent of each span."""
    spans = [
        (span.name, span.context.trace_id, span.context.span_id, span.parent and span.parent.span_id)
        for span in _exporter.get_finished_spans()
    ]
    return json.dumps(spans)
