"""The SDK of OpenTelemetry in a server under test: each span that ends is a note, which ``spans`` reads."""

from __future__ import annotations

import json
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from tests.support.notes import note

#: The attribute by which tests know the spans of a request, and of its handler.
SUBJECT = "subject"


class _Notes(SpanExporter):
    """Notes of several processes are in one file, and stay there when a process ends."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            parent = span.parent and span.parent.span_id
            subject = (span.attributes or {}).get(SUBJECT)
            note("span", json.dumps([span.name, span.context.trace_id, span.context.span_id, parent, subject]))
        return SpanExportResult.SUCCESS


def install() -> None:
    """Make notes of the spans of this process."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_Notes()))
    trace.set_tracer_provider(provider)
