"""Spans and metrics of OpenTelemetry for one operation on messages, by the semantic conventions of messaging.

Names and attributes are those of the version in SCHEMA_URL; a test compares them with OpenTelemetry's own package.
Attributes that only NSQ has begin with ``messaging.nsq.``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from gnsq_like._version import __version__
from gnsq_like.addresses import parse_address
from gnsq_like.contrib.shared.extras import missing
from gnsq_like.errors import NsqdError, PublishError, PublishRefused

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import Counter, Histogram, MeterProvider
    from opentelemetry.trace import Link, SpanKind, StatusCode, TracerProvider
except ModuleNotFoundError as exc:
    raise missing(exc, "otel") from exc

#: The version of the semantic conventions. Messaging is "in development" there: names may change in later ones.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
_SCOPE = "gnsq_like"

#: Seconds, as the conventions ask for.
_BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

#: Attributes of spans that metrics have, too: those with few values.
_MEASURED = frozenset(
    {
        "messaging.system",
        "messaging.operation.name",
        "messaging.operation.type",
        "messaging.destination.name",
        "messaging.consumer.group.name",
        "server.address",
        "server.port",
    }
)

_KINDS = {"send": SpanKind.PRODUCER, "process": SpanKind.CONSUMER}


def server_of(address: str) -> dict[str, Any]:
    """The attributes for an nsqd's address. Pure."""
    where = parse_address(address)
    if where.path:
        return {"server.address": where.path}
    return {"server.address": where.host, "server.port": where.port}


def error_type(error: BaseException) -> str:
    """The value of ``error.type``: nsqd's code, or the name of the exception's class. Pure."""
    refusal = error.error if isinstance(error, PublishRefused) else error
    if isinstance(refusal, NsqdError):
        return refusal.code
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class Telemetry:
    """The tracer, and the instruments.

    :param tracer_provider: None for the global one, which may be set later
    :param meter_provider: likewise
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer(_SCOPE, __version__, tracer_provider, schema_url=SCHEMA_URL)
        meter = metrics.get_meter(_SCOPE, __version__, meter_provider, schema_url=SCHEMA_URL)
        counted: dict[str, Counter] = {}
        timed: dict[str, Histogram] = {}
        counted["send"] = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that a Producer tried to send."
        )
        counted["process"] = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were given to a handler."
        )
        timed["send"] = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Seconds from a publish to its outcome.",
            explicit_bucket_boundaries_advisory=_BOUNDARIES,
        )
        timed["process"] = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Seconds that a handler took, by message or batch.",
            explicit_bucket_boundaries_advisory=_BOUNDARIES,
        )
        #: By type of operation.
        self.counted = counted
        self.timed = timed

    def begin(
        self,
        kind: str,
        topic: str | None,
        attributes: Mapping[str, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Operation:
        """Begin an operation and its span.

        :param kind: its type, "send" or "process"
        :param topic: None for several
        :param name: the operation's name; None for its type
        :param context: the span's parent; None for the current context
        """
        name = kind if name is None else name
        known = {
            "messaging.system": "nsq",
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            **({} if topic is None else {"messaging.destination.name": topic}),
            **attributes,
        }
        span_name = name if topic is None else f"{name} {topic}"
        span = self._tracer.start_span(span_name, context, _KINDS[kind], known, links)
        return Operation(self, kind, span, known)


class Operation:
    """One operation from its beginning to :meth:`end`."""

    def __init__(self, telemetry: Telemetry, kind: str, span: trace.Span, attributes: Mapping[str, Any]) -> None:
        self._telemetry = telemetry
        self._kind = kind
        self._measured = {name: value for name, value in attributes.items() if name in _MEASURED}
        self._began = time.perf_counter()
        self.span = span
        #: The number of messages.
        self.count = 1

    def end(self, error: BaseException | str | None = None) -> None:
        """End the span, and measure.

        :param error: the cause: an exception, or the value of ``error.type``
        """
        measured = self._measured
        if error is not None:
            kind = error if isinstance(error, str) else error_type(error)
            measured = {**measured, "error.type": kind}
            self.span.set_attribute("error.type", kind)
            self.span.set_status(StatusCode.ERROR, str(error))
            if isinstance(error, BaseException):
                self.span.record_exception(error)
        self.span.end()
        # A publish that was refused by a check or by a closed Producer was not an attempt to send.
        if self._kind == "process" or not isinstance(error, BaseException) or isinstance(error, PublishError):
            self._telemetry.counted[self._kind].add(self.count, measured)
        self._telemetry.timed[self._kind].record(time.perf_counter() - self._began, measured)

    def add(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes that were not known at the beginning."""
        self.span.set_attributes(attributes)
        self._measured |= {name: value for name, value in attributes.items() if name in _MEASURED}
