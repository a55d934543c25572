"""Traces and metrics of Readers and Producers by OpenTelemetry's API.

::

    tracing = Tracing(cloud_events=["orders"])
    producer = tracing.producer("127.0.0.1:4150")
    reader = tracing.reader("orders", "mail", handler, nsqd_tcp_addresses="127.0.0.1:4150")

- Each publish is a span ``send TOPIC``, each call of a handler a span ``process TOPIC``. They have the attributes of
  the semantic conventions for messaging.
- ``messaging.client.sent.messages``, ``messaging.client.consumed.messages``, ``messaging.client.operation.duration``
  and ``messaging.process.duration`` are measured.
- Messages of the topics ``cloud_events`` are CloudEvents, which carry the trace (``contrib/shared/envelope.py``). The
  span of a handler is a child of the publish's span; that of a batch is linked to those of its publishes.

Plain Readers and Producers do not use this module. Without its SDK, OpenTelemetry's API does nothing.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, Unpack
from urllib.parse import quote

import gevent
from gevent.event import AsyncResult

from gnsq_like import Batch, Message, Producer, Reader, ReaderArguments, Requeue
from gnsq_like.contrib.shared.envelope import Envelope, is_json, pack, unpack
from gnsq_like.contrib.shared.extras import missing
from gnsq_like.contrib.shared.telemetry import Operation, Telemetry, server_of
from gnsq_like.errors import InvalidBody, InvalidOption, OutcomeUnknown, PublishRefused

try:
    from opentelemetry import trace
    from opentelemetry.context import Context, attach, detach
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, TracerProvider, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as exc:
    raise missing(exc, "otel") from exc

#: Writes and reads the attributes ``traceparent`` and ``tracestate``.
_propagator = TraceContextTextMapPropagator()
_TRACE = ("traceparent", "tracestate")

_Raw = bytes | bytearray | memoryview


def _msgpack(body: bytes) -> object:
    import msgpack

    return msgpack.unpackb(body)


_T = TypeVar("_T")

#: The decoders that a Reader knows by name.
_DECODERS: Mapping[str, Callable[[bytes], object]] = {"json": json.loads, "msgpack": _msgpack}


class JSONBytes(bytes):
    """A body that :meth:`TracedProducer.check` has encoded as JSON, so that it becomes the JSON of an event."""


class _Data(bytes):
    """The data of an event, as a handler gets it; with the event, which is given up if the message is."""

    event: bytes


class Tracing:
    """Makes Producers and Readers whose messages are traced and measured.

    Make it once, at import time if you like; from then on any thread may use it. The SDK may be set up later.

    :param cloud_events: topics whose messages are CloudEvents; or True for all. Readers accept other bodies, too, so
        change them before the Producers
    :param source: the attribute ``source`` of events; None for the environment's OTEL_SERVICE_NAME
    :param tracer_provider: None for OpenTelemetry's global one
    :param meter_provider: likewise
    :raises InvalidOption: for anything else in ``cloud_events``
    """

    def __init__(
        self,
        *,
        cloud_events: Collection[str] | bool = (),
        source: str | None = None,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._events = _Events(_chosen(cloud_events), source or os.environ.get("OTEL_SERVICE_NAME") or "gnsq_like")
        self._telemetry = Telemetry(tracer_provider, meter_provider)

    # -- making -------------------------------------------------------------------------------------

    def producer(self, nsqd_tcp_addresses: str | Iterable[str] = (), **arguments: object) -> TracedProducer:
        """A Producer with these arguments, which are those of :class:`Producer`."""
        return TracedProducer(self._telemetry, self._events, nsqd_tcp_addresses, **arguments)

    def reader(
        self,
        topic: str | Iterable[str] | re.Pattern[str],
        channel: str,
        handler: Callable[[Message], bool | None] | Batch | None = None,
        **arguments: Unpack[ReaderArguments],
    ) -> Reader:
        """A Reader with these arguments, which are those of :class:`Reader`. Without a handler see :meth:`processing`.

        The handler gets the data of an event as ``message.body``. ``on_giving_up`` and ``on_expired`` are traced too;
        they get the whole event, so that dead letters can be replayed unchanged.
        """
        if not isinstance(topic, str | re.Pattern):
            topic = list(topic)
        given: Any = {name: _kept(name, value) for name, value in arguments.items()}
        Reader(topic, channel, handler, **given)  # raises for functions that the wrappers would hide
        if isinstance(handler, Batch):
            handler = Batch(self.traced(handler.handler), size=handler.size, interval=handler.interval)
        elif handler is not None:
            handler = self.traced(handler)
        return Reader(topic, channel, handler, **self.reader_arguments(given))

    def reader_arguments(self, arguments: Mapping[str, Any]) -> Any:
        """Keyword arguments of a Reader with the functions wrapped that are called with messages or bodies."""
        wrapped = dict(arguments)
        for hook, name in (("on_giving_up", "give_up"), ("on_expired", "expire")):
            if arguments.get(hook) is not None:
                wrapped[hook] = self._traced_hook(arguments[hook], name)
        decoder = arguments.get("decoder")
        if decoder is not None:
            wrapped["decoder"] = _decoding_data(_DECODERS[decoder] if isinstance(decoder, str) else decoder)
        return wrapped

    def traced(self, handler: Callable[[Any], _T]) -> Callable[[Any], _T]:
        """``handler`` with a span for each call; it takes messages, or lists of them for a Batch."""

        @functools.wraps(handler)
        def traced_handler(given: object) -> _T:
            with self._processing(given) as failures:
                result = handler(given)
                if result is False:
                    failures.append("returned_false")
                return result

        return traced_handler

    def _traced_hook(self, hook: Callable[[Message], object], name: str) -> Callable[[Message], object]:
        @functools.wraps(hook)
        def traced_hook(message: Message) -> object:
            if isinstance(message.body, _Data):
                message.body = message.body.event
            with self._processing(message, name, opens=False):
                return hook(message)

        return traced_hook

    # -- processing ---------------------------------------------------------------------------------

    @contextmanager
    def processing(self, message: Message | list[Message]) -> Iterator[None]:
        """A span for the handling of a message, in a loop over a Reader without a handler.

        ::

            for message in reader:
                with message, tracing.processing(message):
                    work(message.body)
        """
        with self._processing(message):
            yield

    @contextmanager
    def _processing(self, given: Any, name: str | None = None, *, opens: bool = True) -> Iterator[list[str]]:
        """
        :param opens: whether events are replaced by their data
        :yields: a list, to which failures other than exceptions can be added
        """
        messages: list[Message] = given if isinstance(given, list) else [given]
        senders: list[SpanContext | None] = []
        attributes = _attributes_of(messages)
        for message in messages:
            event = unpack(message.body) if self._events.are_of(message.topic) else None
            senders.append(None if event is None else _sender_of(event))
            if event is not None and not isinstance(given, list):
                attributes["messaging.message.body.size"] = len(event.data)
                attributes["messaging.message.envelope.size"] = len(message.body)
            if event is not None and opens and not event.is_of_outbox:
                data = _Data(event.data)
                data.event, message.body = message.body, data
        if isinstance(given, list):
            attributes["messaging.batch.message_count"] = len(given)
        operation = self._telemetry.begin(
            "process",
            _only({message.topic for message in messages}),
            attributes,
            name=name,
            context=_parent(None if isinstance(given, list) else senders[0]),
            links=[
                Link(sender, {"messaging.message.id": message.id})
                for message, sender in zip(messages, senders, strict=True)
                if sender is not None
            ],
        )
        operation.count = len(messages)
        token = attach(set_span_in_context(operation.span, Context()))
        failures: list[str] = []
        try:
            yield failures
        except BaseException as exc:
            if isinstance(exc, Requeue):
                operation.span.add_event("requeue", {} if exc.delay is None else {"messaging.nsq.delay": exc.delay})
            operation.end(None if isinstance(exc, Requeue) else exc)
            raise
        else:
            operation.end(failures[0] if failures else None)
        finally:
            detach(token)

    # -- sending ------------------------------------------------------------------------------------

    def event(self, topic: str, body: bytes, *, is_json: bool = False) -> bytes:
        """A body as an event with the current trace, for a message that is published later, such as by an outbox.

        A Producer publishes events unchanged. Returns the body itself if the topic's messages are not events, or if it
        is an event.

        :param is_json: whether the body is JSON, which becomes the event's ``data``
        """
        return self._events.wrapped(topic, body, is_json, trace.get_current_span())

    def carrier(self, topic: str) -> dict[str, str]:
        """The current trace as attributes for an event that is made elsewhere; {} if the topic's messages are not
        events."""
        return _carrier_of(trace.get_current_span()) if self._events.are_of(topic) else {}


class _Events:
    """Chooses the messages that are CloudEvents, and makes these.

    :param are_of: whether messages of a topic are events
    """

    def __init__(self, are_of: Callable[[str], bool], source: str) -> None:
        self.are_of = are_of
        self._source = quote(source, safe=":/?#[]@!$&'()*+,;=%")

    def wrapped(self, topic: str, data: bytes, as_json: bool, span: Span) -> bytes:
        """A body as an event of this span; the body itself if the topic's messages are not events, or if it is an
        event."""
        if not self.are_of(topic) or unpack(data) is not None:
            return data
        return pack(data, is_json=as_json, source=self._source, type=topic, extensions=_carrier_of(span))


def _carrier_of(span: Span) -> dict[str, str]:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, set_span_in_context(span, Context()))
    return carrier


class TracedProducer(Producer[Any]):
    """A Producer whose publishes are spans; made by :meth:`Tracing.producer`."""

    def __init__(
        self, telemetry: Telemetry, events: _Events, nsqd_tcp_addresses: str | Iterable[str] = (), **arguments: Any
    ) -> None:
        nsqd_tcp_addresses = _kept("nsqd_tcp_addresses", nsqd_tcp_addresses)
        arguments = {name: _kept(name, value) for name, value in arguments.items()}
        self._telemetry = telemetry
        self._events = events
        #: Encodes and checks. It never publishes, and so never connects.
        self._checker: Producer[Any] = Producer(nsqd_tcp_addresses, **arguments)
        super().__init__(nsqd_tcp_addresses, **{**arguments, "encoder": None})
        addresses = [nsqd_tcp_addresses] if isinstance(nsqd_tcp_addresses, str) else list(nsqd_tcp_addresses)
        #: The attributes of the only nsqd; of several, an operation is told only which one failed.
        self._server = server_of(addresses[0]) if len(addresses) == 1 and not arguments.get(_LOOKUPDS) else {}

    def publish(self, topic: str, body: object, *, defer: float | None = None, timeout: float | None = None) -> None:
        """As :meth:`Producer.publish`, in a span."""
        encoded = self._encode(topic, body, defer)
        with self._sending(topic) as operation:
            super().publish(topic, self._sent(operation, topic, encoded), defer=defer, timeout=timeout)

    async def apublish(
        self, topic: str, body: object, *, defer: float | None = None, timeout: float | None = None
    ) -> None:
        """As :meth:`Producer.apublish`, in a span."""
        encoded = self._encode(topic, body, defer)
        with self._sending(topic) as operation:
            await super().apublish(topic, self._sent(operation, topic, encoded), defer=defer, timeout=timeout)

    def publish_async(
        self, topic: str, body: object, *, defer: float | None = None, timeout: float | None = None
    ) -> AsyncResult[None]:
        """As :meth:`Producer.publish_async`, in a span that ends with nsqd's answer."""
        encoded = self._encode(topic, body, defer)
        operation = self._telemetry.begin("send", topic, self._server)
        try:
            sent = self._sent(operation, topic, encoded)
            result = super().publish_async(topic, sent, defer=defer, timeout=timeout)
        except BaseException as exc:
            operation.end(exc)
            raise
        # Not in the hub, where an exporter must not wait.
        result.add_done_callback(lambda error: gevent.spawn(_end, operation, error))
        return result

    def multi_publish(
        self, topic: str, bodies: Iterable[object], *, atomic: bool = False, timeout: float | None = None
    ) -> None:
        """As :meth:`Producer.multi_publish`, in one span."""
        if isinstance(bodies, str | _Raw) or not isinstance(bodies, Iterable):
            self._checker.multi_publish(topic, bodies)  # raises
        with self._sending(topic) as operation:
            operation.count = 0
            sent = self._many(operation, topic, bodies)
            try:
                super().multi_publish(topic, sent, atomic=atomic, timeout=timeout)
            finally:
                operation.add({"messaging.batch.message_count": operation.count})

    def check(self, topic: str, body: object, *, defer: float | None = None) -> bytes:
        """As :meth:`Producer.check`. Publish the bytes that it returns: JSON is known as such then."""
        data, as_json = self._encode(topic, body, defer)
        return JSONBytes(data) if as_json else data

    def _encode(self, topic: str, body: object, defer: float | None = None) -> tuple[bytes, bool]:
        """The bytes of a body, and whether they are known to be JSON; raises the errors of :meth:`check`."""
        if isinstance(body, JSONBytes):
            return bytes(body), True
        data = self._checker.check(topic, body, defer=defer)
        return data, not isinstance(body, _Raw) and self._events.are_of(topic) and is_json(data)

    def _sent(self, operation: Operation, topic: str, encoded: tuple[bytes, bool]) -> bytes:
        data, as_json = encoded
        sent = self._wrapped(operation, topic, data, as_json)
        operation.add({"messaging.message.body.size": len(data)})
        if sent is not data:
            operation.add({"messaging.message.envelope.size": len(sent)})
        return sent

    def _many(self, operation: Operation, topic: str, bodies: Iterable[object]) -> Iterator[bytes]:
        for position, body in enumerate(bodies):
            try:
                data, as_json = self._encode(topic, body)
            except InvalidBody as exc:
                raise InvalidBody(f"message {position}: {exc}") from exc
            operation.count += 1
            yield self._wrapped(operation, topic, data, as_json)

    def _wrapped(self, operation: Operation, topic: str, data: bytes, as_json: bool) -> bytes:
        sent = self._events.wrapped(topic, data, as_json, operation.span)
        # An event that was made earlier, such as for an outbox.
        if sent is data and self._events.are_of(topic) and (event := unpack(data)) is not None:
            sender = _sender_of(event)
            if sender is not None:
                operation.span.add_link(sender)
        return sent

    @contextmanager
    def _sending(self, topic: str) -> Iterator[Operation]:
        operation = self._telemetry.begin("send", topic, self._server)
        try:
            yield operation
        except BaseException as exc:
            _end(operation, exc)
            raise
        _end(operation, None)


_LOOKUPDS = "lookupd_http_addresses"


def _kept(name: str, value: Any) -> Any:
    """An argument that can be used twice: addresses may come in an iterator."""
    is_iterable = name.endswith("_addresses") and isinstance(value, Iterable) and not isinstance(value, str)
    return list(value) if is_iterable else value


def _end(operation: Operation, error: BaseException | None) -> None:
    if isinstance(error, PublishRefused | OutcomeUnknown) and error.address:
        operation.add(server_of(error.address))
    operation.end(error)


def _chosen(topics: Collection[str] | bool) -> Callable[[str], bool]:
    """Whether a topic is one of these."""
    if isinstance(topics, bool):
        return lambda topic: topics
    if isinstance(topics, str) or not isinstance(topics, Collection):
        raise InvalidOption("cloud_events", topics, "it must be topics, True or False")
    return frozenset(topics).__contains__


def _decoding_data(decoder: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """A Reader's decoder, which is called before the handler, for events, too."""

    @functools.wraps(decoder)
    def decode(body: bytes) -> object:
        event = unpack(body)
        return decoder(body if event is None else event.data)

    return decode


def _sender_of(event: Envelope) -> SpanContext | None:
    """The span that published an event."""
    carrier = {name: value for name in _TRACE if isinstance(value := event.attributes.get(name), str)}
    found = trace.get_current_span(_propagator.extract(carrier, Context())).get_span_context()
    return found if found.is_valid else None


def _parent(sender: SpanContext | None) -> Context:
    """The context of a handler's span. Never the current one, which belongs to the starter of the Reader."""
    return Context() if sender is None else set_span_in_context(NonRecordingSpan(sender), Context())


def _attributes_of(messages: list[Message]) -> dict[str, object]:
    """The attributes that all of the messages share; for a single message, all of its attributes."""
    attributes: dict[str, object] = {"messaging.consumer.group.name": messages[0].channel}
    if (address := _only({message.nsqd_address for message in messages})) is not None:
        attributes |= server_of(address)
    if len(messages) == 1:
        [message] = messages
        attributes["messaging.message.id"] = message.id
        attributes["messaging.message.body.size"] = len(message.body)
        attributes["messaging.nsq.attempts"] = message.attempts
    return attributes


def _only(values: set[str]) -> str | None:
    """The value, if there is one."""
    return next(iter(values)) if len(values) == 1 else None
