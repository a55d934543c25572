"""A transport for kombu, and so a broker for Celery. Experimental.

::

    import gnsq_like.contrib.celery                 # makes kombu know nsq://

    app = Celery("shop", broker="nsq://127.0.0.1:4150", backend="redis://127.0.0.1/0")

A queue is a topic with one channel. A fanout exchange, and that of Celery's events, is an ephemeral topic, of which
each bound queue is an ephemeral channel. Replies to remote control come through an ephemeral topic of their routing
key, because the sender does not know the receiver's queue. Tasks with an ETA are deferred publishes; ``ack`` is FIN;
``reject`` is REQ, or makes a dead letter.

Kombu creates the delivery tag with the message, so all its deliveries, and all copies of a fanout exchange, have the
same tag. An answer applies to all of them that the channel holds.

Bindings are known in the process that declares them, as in kombu's other transports without a server for them.
``docs/jobs.rst`` lists the settings of ``broker_transport_options``, and what does not work.
"""

from __future__ import annotations

import hashlib
import json
import logging
import queue as queues
import re
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from typing import Any
from uuid import uuid4

from gnsq_like import Message as Delivery
from gnsq_like import Reader
from gnsq_like.contrib.shared.extras import missing
from gnsq_like.contrib.shared.jobs import Jobs
from gnsq_like.contrib.shared.queues import Queues, several
from gnsq_like.errors import NSQError
from gnsq_like.wire.names import EPHEMERAL, MAX_NAME_LENGTH, is_ephemeral

try:
    from kombu import transport as _transports
except ModuleNotFoundError as exc:
    raise missing(exc, "celery") from exc
from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import OperationalError
from kombu.transport import virtual

logger = logging.getLogger(__name__)

__all__ = ["Channel", "Transport"]

_NOT_NSQS = re.compile(r"[^.a-zA-Z0-9_-]")
#: Celery's exchange of events is of the type "topic", but its queues take all of them.
_EVENTS = "celeryev"
#: Seconds by which the clock of an nsqd may be behind. A new queue gets no messages that are older than it.
_EARLIER = 1.0
#: Messages in flight of a consumer without a prefetch limit.
_MOST_IN_FLIGHT = 100
#: Seconds after which a wait for messages looks whether a Reader has given up.
_LOOKS = 1.0
#: Seconds for counting a queue's messages in a passive declaration.
_COUNTING = 1.0


def nsq_name(name: str, *, ephemeral: bool = False) -> str:
    """The topic or channel for an AMQP name: invalid characters are replaced, and a long name ends with a hash."""
    suffix = EPHEMERAL if ephemeral else ""
    found = _NOT_NSQS.sub("-", name)
    if found != name or len(found) + len(suffix) > MAX_NAME_LENGTH:
        found = f"{found[:20]}-{hashlib.sha256(name.encode()).hexdigest()[:20]}"
    return found + suffix


class _Message(virtual.Message):
    """A message as its consumer sees it. If its body is unreadable, any answer but a requeue makes it a dead letter.

    Celery's worker acknowledges messages that it cannot decode, so they would be lost.
    """

    def _decode(self) -> Any:
        try:
            return super()._decode()
        except Exception:
            self.errors.append(sys.exc_info())
            raise

    def ack(self, multiple: bool = False) -> None:
        if self.errors:
            self.reject()
        else:
            super().ack(multiple)

    def reject(self, requeue: bool = False) -> None:
        if self.errors and not requeue and not self.acknowledged:
            self.channel.bury(self.delivery_tag, _text(self.errors[0][1]))
        super().reject(requeue)


class Channel(virtual.Channel):
    """Publishes, and consumes queues."""

    Message = _Message
    supports_fanout = True
    do_restore = False  # nsqd delivers again what is not answered

    def __init__(self, connection: Transport, **kwargs: object) -> None:
        super().__init__(connection, **kwargs)
        self._jobs = connection.jobs
        #: The Reader of each consumed queue.
        self.readers: dict[str, Reader] = {}
        self._without_ack: set[str] = set()
        #: Messages that are not answered, by their delivery tags, the last delivery at the end.
        self.deliveries: dict[str, list[Delivery]] = {}

    # -- declaring ----------------------------------------------------------------------------------

    def exchange_declare(self, exchange: str | None = None, type: str = "direct", **kwargs: object) -> None:
        super().exchange_declare(exchange, "fanout" if exchange == _EVENTS else type, **kwargs)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: object) -> Any:
        """Ask no daemon: nsqd creates a queue's topic at its first use.

        A passive declaration counts the queue's messages on the daemons that answer within a second.
        """
        queue = queue or f"amq.gen-{uuid4()}"
        return queue_declare_ok_t(queue, self._size(queue, _COUNTING) if passive else 0, 0)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        """Nothing: :meth:`_place` asks the connection for the bindings."""

    def _place(self, queue: str) -> tuple[str, str]:
        """The topic and channel of a queue."""
        for exchange, routing_key, _ in self.state.queue_bindings(queue):
            if self._is_fanout(exchange):
                return nsq_name(exchange, ephemeral=True), nsq_name(queue, ephemeral=True)
            if _is_for_replies(exchange):
                return _replies(exchange, routing_key), nsq_name("replies", ephemeral=True)
        return nsq_name(queue), self.connection.channel_name

    def _is_fanout(self, exchange: str) -> bool:
        return bool(self.typeof(exchange).type == "fanout")

    def _size(self, queue: str, within: float | None = None) -> int:
        """The messages of a queue; 0 if no HTTP address is known.

        :param within: seconds; daemons that have not answered by then are left out
        :raises NSQError: if a daemon does not answer, unless ``within`` is given
        """
        topic, _ = self._place(queue)
        cluster = self.connection.cluster
        return cluster.count(topic, within) if cluster.is_known and not is_ephemeral(topic) else 0

    def _purge(self, queue: str) -> int:
        """Drop all messages of a queue."""
        count = self._size(queue)
        self.connection.cluster.empty(nsq_name(queue))
        return count

    def _delete(self, queue: str, *args: object, **kwargs: object) -> None:
        """Do nothing: nsqd deletes ephemeral topics and channels, and waiting tasks are never deleted with their
        queue."""

    # -- publishing ---------------------------------------------------------------------------------

    def basic_publish(self, message: Mapping[str, Any], exchange: str, routing_key: str, **kwargs: object) -> None:
        if self.closed:
            raise OperationalError("the channel is closed")  # kombu tries again with another one
        if message["properties"].get("priority"):
            raise OperationalError("NSQ has no priorities: use a queue for each urgency")
        if _is_for_replies(exchange):
            self._inplace_augment_message(message, exchange, routing_key)
            self.connection.publish(_replies(exchange, routing_key), message)
        else:
            super().basic_publish(message, exchange, routing_key, **kwargs)

    def _put(self, queue: str, message: Mapping[str, Any], **kwargs: object) -> None:
        self.connection.publish(nsq_name(queue), message, _left(message))

    def _put_fanout(self, exchange: str, message: Mapping[str, Any], routing_key: str, **kwargs: object) -> None:
        self.connection.publish(nsq_name(exchange, ephemeral=True), message)

    # -- consuming ----------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: object) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        if no_ack:
            self._without_ack.add(queue)
        if queue not in self.readers:
            transport = self.connection
            topic, channel = self._place(queue)
            # An ephemeral topic keeps what came before its first channel; a fanout exchange would not.
            is_fanout = any(self._is_fanout(exchange) for exchange, _, _ in self.state.queue_bindings(queue))
            since = time.time() - _EARLIER if is_fanout else 0.0

            def handler(message: Delivery) -> None:
                if message.timestamp < since:
                    return
                message.enable_async()
                message.touch_until_answered()
                transport.put(self, queue, message)

            limit = self.qos.prefetch_count or _MOST_IN_FLIGHT
            reader = self._jobs.make_reader(topic, channel, handler, max_in_flight=limit)
            self._jobs.start(reader)
            self.readers[queue] = reader

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._without_ack.discard(queue)
            reader = self.readers.pop(queue, None)
            if reader is not None:
                self._jobs.end(reader)
                self.connection.hand_back(self, queue)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        for reader in list(self.readers.values()):
            reader.max_in_flight = prefetch_count or _MOST_IN_FLIGHT

    def deliver(self, queue: str, message: Delivery) -> bool:
        """Hand a message to its consumer; False if it is not due, was lost, or has no consumer left."""
        if self.closed or queue not in self._active_queues or message.is_lost:
            message.requeue(0, backoff=False)  # without effect on one that is lost, which leaves its place
            return False
        try:
            payload, tag, left = _read(message.body)
        except ValueError as exc:
            self._jobs.bury(f"not a message of kombu's: {exc}", message)
            return False
        if left > 0:
            self._jobs.defer(message, left)
            return False
        payload["properties"]["delivery_info"]["redelivered"] = message.attempts > 1
        is_answered_here = queue in self._without_ack
        if not is_answered_here:
            # A copy: other threads remove and answer messages meanwhile.
            self.deliveries[tag] = [*self.deliveries.get(tag, ()), message]
        try:
            self.connection._deliver(payload, queue)
        except self.connection.connection_errors:
            if is_answered_here:
                message.requeue(0, backoff=False)
            raise
        except Exception as exc:  # it would end the worker, and the next one that gets this message
            text = "message %s of %s could not be handed to its consumer, and becomes a dead letter"
            logger.exception(text, message.id, message.topic, extra=message.log_fields)
            if is_answered_here:
                self._jobs.bury(_text(exc), message)
            else:
                self.bury(tag, _text(exc))
                self.qos.ack(tag)
            return False
        if is_answered_here:
            message.finish()
        return True

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: object) -> Any:
        """Refused: NSQ delivers to consumers."""
        raise NotImplementedError("NSQ delivers to consumers: basic_get is not there")

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        for message in self.deliveries.pop(delivery_tag, ()):
            message.finish()
        super().basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            for message in self.deliveries.pop(delivery_tag, ()):
                message.requeue(0, backoff=False)
        else:
            self.bury(delivery_tag, "rejected")
        self.qos.ack(delivery_tag)

    def bury(self, delivery_tag: str, reason: str) -> None:
        """Make a message a dead letter, unless it was answered."""
        if deliveries := self.deliveries.pop(delivery_tag, None):
            self._jobs.bury(reason, *deliveries)

    def basic_recover(self, requeue: bool = False) -> None:
        for tag in list(self.deliveries):
            self.basic_reject(tag, requeue=True)

    def close(self) -> None:
        if not self.closed:
            for consumer in list(self._consumers):  # first, or what is requeued would come here again
                self.basic_cancel(consumer)
            self.basic_recover(requeue=True)
        super().close()


class Transport(virtual.Transport):
    """Loadable as ``gnsq_like.contrib.celery:Transport``, and as ``nsq`` once this module is imported."""

    Channel = Channel
    default_port = 4150
    driver_type = "nsq"
    driver_name = "gnsq_like"
    connection_errors = (*virtual.Transport.connection_errors, OperationalError, NSQError)
    # Asynchronous, because the pool of prefork workers without a loop is blocked for ever when a child is killed that
    # waits for a task: it holds the lock of the pipe from which all of them read.
    implements = virtual.Transport.implements.extend(asynchronous=True, exchange_type=frozenset(["direct", "fanout"]))

    def __init__(self, client: Any, **kwargs: object) -> None:
        super().__init__(client, **kwargs)
        options = dict(client.transport_options)
        nsqds = options.pop("nsqd_tcp_addresses", None)
        lookupds = several(options.pop("lookupd_http_addresses", ()))
        self.channel_name: str = options.pop("channel", "celery")
        self.cluster = Queues(self.channel_name, several(options.pop("nsqd_http_addresses", ())), lookupds)
        self.jobs = Jobs(
            {
                "nsqd_tcp_addresses": nsqds or f"{client.hostname or '127.0.0.1'}:{client.port or self.default_port}",
                "lookupd_http_addresses": lookupds,
            },
            # Kombu retries by itself, and each of Celery's events would wait for unreachable nsqds.
            producer={"fail_fast": True, **options.pop("producer", {})},
            reader=options.pop("reader", {}),
            max_defer=float(options.pop("max_defer", 3600.0)),
            dead_letters=_dead_letters,
            unreachable=OperationalError,
        )
        #: Messages of all consumers: (channel, queue, message).
        self.inbox: queues.SimpleQueue[tuple[Channel, str, Delivery]] = queues.SimpleQueue()
        #: With a loop: a byte makes the first readable. The loop, and its timer for errors.
        self._wakeup: tuple[socket.socket, socket.socket] | None = None
        self._loop: Any = None
        self._look: Any = None

    def publish(self, topic: str, message: Mapping[str, Any], delay: float = 0.0) -> None:
        """Publish a message, deferred for ``delay`` seconds at most.

        :raises OperationalError: no nsqd could be reached, or none confirmed it
        """
        self.jobs.publish(topic, json.dumps(message).encode(), delay)

    def put(self, channel: virtual.Channel, queue: str, message: Delivery) -> None:
        """A message for a consumer; in the Readers' thread. Never switches."""
        self.inbox.put((channel, queue, message))
        self._wake()

    def _wake(self) -> None:
        if (wakeup := self._wakeup) is not None:
            with suppress(OSError):  # it is full, and so readable; or closed
                wakeup[1].send(b"x")

    def register_with_event_loop(self, connection: object, loop: Any) -> None:
        """Hand messages to their consumers in this loop of kombu's, instead of :meth:`drain_events`."""
        self._wakeup = readable, writable = socket.socketpair()
        for end in readable, writable:
            end.setblocking(False)
        self._loop = loop
        loop.add_reader(readable, self._on_readable, readable)
        self._look = loop.call_repeatedly(_LOOKS, self._raise_error)

    def _on_readable(self, readable: socket.socket) -> None:
        readable.recv(4096)
        try:
            for _ in range(self.inbox.qsize()):
                channel, queue, message = self.inbox.get_nowait()
                channel.deliver(queue, message)
        finally:
            if not self.inbox.empty():
                self._wake()

    def _raise_error(self) -> None:
        if (error := self._error()) is not None:
            raise error

    def drain_events(self, connection: object, timeout: float | None = None) -> None:
        """Wait for a message, and hand it to its consumer.

        :raises NSQError: if none has come, and nsqd refuses a consumer for good; not while messages are held, because a
            new connection would get them again
        :raises TimeoutError: if none comes in time
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                channel, queue, message = self.inbox.get(timeout=_LOOKS if left is None else min(_LOOKS, left))
            except queues.Empty:
                if (error := self._error()) is not None:
                    raise error from None
                if left is not None and left <= _LOOKS:
                    raise TimeoutError from None
            else:
                if channel.deliver(queue, message):
                    return

    def hand_back(self, channel: virtual.Channel, queue: str) -> None:
        """Requeue the messages that wait for this consumer, which takes no more."""
        for _ in range(self.inbox.qsize()):
            each = self.inbox.get_nowait()
            if each[:2] == (channel, queue):
                each[2].requeue(0, backoff=False)
            else:
                self.inbox.put(each)

    def _error(self) -> NSQError | None:
        """Why a Reader gave up, unless there are messages to be answered."""
        if any(channel.deliveries for channel in self.channels):
            return None
        readers = chain.from_iterable(list(channel.readers.values()) for channel in self.channels)
        return next((reader.error for reader in readers if reader.error is not None), None)

    def close_connection(self, connection: object) -> None:
        super().close_connection(connection)
        self.jobs.close()
        if self._wakeup is not None:
            self._look.cancel()
            self._loop.remove(self._wakeup[0])
            for end in self._wakeup:
                end.close()
            self._wakeup = None

    def driver_version(self) -> str:
        from gnsq_like import __version__

        return __version__


def _is_for_replies(exchange: str) -> bool:
    """Whether this is an exchange of replies to remote control."""
    return exchange.startswith("reply.") and exchange.endswith(".pidbox")


def _replies(exchange: str, routing_key: str) -> str:
    return nsq_name(f"{exchange}.{routing_key}", ephemeral=True)


def _dead_letters(topic: str) -> str | None:
    return None if is_ephemeral(topic) else nsq_name(f"{topic}.dead")


def _read(body: bytes) -> tuple[dict[str, Any], str, float]:
    """A message's payload, its delivery tag, and the seconds until it is due.

    :raises ValueError: if kombu could not read it
    """
    try:
        payload: dict[str, Any] = _checked("the message", json.loads(body), dict)
    except RecursionError as exc:
        raise ValueError(exc) from exc
    properties = _checked("properties", payload.get("properties"), dict)
    properties["delivery_info"] = _checked("delivery_info", properties.get("delivery_info") or {}, dict)
    _checked("body_encoding", properties.get("body_encoding") or "", str)
    headers = _checked("headers", payload.get("headers") or {}, dict)
    for seconds in _checked("timelimit", headers.get("timelimit") or [], list):
        _checked("timelimit", seconds or 0, int, float)  # of Celery: prefork calculates with it when the task runs
    return payload, _checked("delivery_tag", properties.get("delivery_tag"), str, int), _left(payload)


def _checked(name: str, value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise ValueError(f"{name}: expected {kinds[0].__name__}, not {type(value).__name__}")
    return value


def _left(message: Mapping[str, Any]) -> float:
    """Seconds until the ETA of a task; 0 if it has none.

    :raises ValueError: if its ETA is no date
    """
    eta = (message.get("headers") or {}).get("eta")
    if not eta:
        return 0.0
    at = datetime.fromisoformat(_checked("eta", eta, str))
    return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - time.time())


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


_transports.TRANSPORT_ALIASES["nsq"] = f"{__name__}:Transport"
