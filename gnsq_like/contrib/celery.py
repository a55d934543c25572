"""A transport for kombu, and so a broker for Celery. Experimental.

::

    import gnsq_like.contrib.celery                 # makes kombu know nsq://

    app = Celery("shop", broker="nsq://127.0.0.1:4150", backend="redis://127.0.0.1/0")

A queue is a topic with one channel. A fanout exchange, and that of Celery's events, is an ephemeral topic, of which
each bound queue is an ephemeral channel. Replies to remote control come through an ephemeral topic of their routing
key, because the sender does not know the receiver's queue. Tasks with an ETA are deferred publishes; ``ack`` is FIN;
``reject`` is REQ, or makes a dead letter.

Bindings are known in the process that declares them, as in kombu's other transports without a server for them.
``docs/jobs.rst`` lists the settings of ``broker_transport_options``, and what does not work.
"""

from __future__ import annotations

import hashlib
import json
import queue as queues
import re
import threading
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

from gnsq_like import Message, Producer, Reader, ReaderGroup, deadletter
from gnsq_like.contrib.shared.clusters import Cluster, several
from gnsq_like.contrib.shared.extras import missing
from gnsq_like.errors import NotRunning, NotSent, NSQError, OutcomeUnknown, PublishError

try:
    from kombu import transport as _transports
except ModuleNotFoundError as exc:
    raise missing(exc, "celery") from exc
from kombu.exceptions import OperationalError
from kombu.transport import virtual

__all__ = ["Channel", "Transport"]

#: Of NSQ's names; the suffix of ephemeral ones counts.
_MAX_NAME = 64
_EPHEMERAL = "#ephemeral"
_NOT_NSQS = re.compile(r"[^.a-zA-Z0-9_-]")
#: Celery's exchange of events is of the type "topic", but its queues take all of them.
_EVENTS = "celeryev"
#: Seconds by which the clock of an nsqd may be behind: what a fanout exchange got earlier is not for a new queue.
_EARLIER = 1.0
#: Messages in flight of a consumer without a prefetch limit.
_MOST_IN_FLIGHT = 100
#: Deliveries of a message before it is a dead letter: workers died with it.
_MAX_ATTEMPTS = 10
#: Seconds for messages that are being worked on, after the end of their consumer and of the connection.
_CONSUMER_CLOSES = 60.0
_CONNECTION_CLOSES = 1.0


def nsq_name(name: str, *, ephemeral: bool = False) -> str:
    """The topic or channel of a name of AMQP's: other characters are replaced, and long ones end with a hash."""
    suffix = _EPHEMERAL if ephemeral else ""
    found = _NOT_NSQS.sub("-", name)
    if found != name or len(found) + len(suffix) > _MAX_NAME:
        found = f"{found[:20]}-{hashlib.sha256(name.encode()).hexdigest()[:20]}"
    return found + suffix


class Channel(virtual.Channel):
    """Publishes, and consumes queues."""

    supports_fanout = True
    do_restore = False  # nsqd delivers again what is not answered

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._readers: dict[str, Reader] = {}
        self._without_ack: set[str] = set()
        #: Messages that are not answered, by their delivery tags.
        self._deliveries: dict[str, Message] = {}

    # -- declaring ----------------------------------------------------------------------------------

    def exchange_declare(self, exchange: str | None = None, type: str = "direct", **kwargs: Any) -> None:
        super().exchange_declare(exchange, "fanout" if exchange == _EVENTS else type, **kwargs)

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

    def _size(self, queue: str) -> int:
        """The messages of a queue; 0 if nobody is to be asked for them."""
        topic, _ = self._place(queue)
        cluster = self.connection.cluster
        return cluster.count(topic) if cluster.is_known and not topic.endswith(_EPHEMERAL) else 0

    def _purge(self, queue: str) -> int:
        """Drop all messages of a queue."""
        count = self._size(queue)
        self.connection.cluster.empty(nsq_name(queue))
        return count

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        """nsqd deletes what is ephemeral; tasks that wait are never deleted with their queue."""

    # -- publishing ---------------------------------------------------------------------------------

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        if message["properties"].get("priority"):
            raise OperationalError("NSQ has no priorities: use a queue for each urgency")
        if _is_for_replies(exchange):
            self._inplace_augment_message(message, exchange, routing_key)
            self.connection.publish(_replies(exchange, routing_key), message)
        else:
            super().basic_publish(message, exchange, routing_key, **kwargs)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self.connection.publish(nsq_name(queue), message, _left(message))

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        self.connection.publish(nsq_name(exchange, ephemeral=True), message)

    # -- consuming ----------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        if no_ack:
            self._without_ack.add(queue)
        if queue not in self._readers:
            inbox = self.connection.inbox
            topic, channel = self._place(queue)
            # An ephemeral topic keeps what came before its first channel; a fanout exchange would not.
            is_fanout = any(self._is_fanout(exchange) for exchange, _, _ in self.state.queue_bindings(queue))
            since = time.time() - _EARLIER if is_fanout else 0.0

            def handler(message: Message) -> None:
                if message.timestamp < since:
                    return
                message.enable_async()
                message.touch_until_answered()
                inbox.put((self, queue, message))

            limit = self.qos.prefetch_count or _MOST_IN_FLIGHT
            self._readers[queue] = self.connection.start_reader(topic, channel, handler, limit)

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._without_ack.discard(queue)
            reader = self._readers.pop(queue, None)
            if reader is not None:
                reader.begin_to_stop(_CONSUMER_CLOSES)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        for reader in list(self._readers.values()):
            reader.max_in_flight = prefetch_count or _MOST_IN_FLIGHT

    def deliver(self, queue: str, message: Message) -> bool:
        """Hand a message to its consumer; False if it is not due, or nobody wants it any more."""
        try:
            payload = json.loads(message.body)
            tag = payload["properties"]["delivery_tag"]
            left = _left(payload)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.connection.bury(message, "not a message of kombu's")
            return False
        if left > 0:
            self.connection.defer(message, left)
            return False
        if queue not in self._active_queues or self.closed:
            message.requeue(0, backoff=False)
            return False
        payload["properties"]["delivery_info"]["redelivered"] = message.attempts > 1
        if queue in self._without_ack:
            message.finish()
        else:
            self._deliveries[tag] = message
        self.connection._deliver(payload, queue)
        return True

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Refused: NSQ delivers to consumers."""
        raise NotImplementedError("NSQ delivers to consumers: basic_get is not there")

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        self._answer(delivery_tag, lambda message: message.finish())
        super().basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        bury = partial(self.connection.bury, reason="rejected")
        self._answer(delivery_tag, (lambda message: message.requeue(0, backoff=False)) if requeue else bury)
        self.qos.ack(delivery_tag)

    def basic_recover(self, requeue: bool = False) -> None:
        for tag in list(self._deliveries):
            self.basic_reject(tag, requeue=True)

    def _answer(self, tag: str, answer: Any) -> None:
        message = self._deliveries.pop(tag, None)
        if message is not None:
            answer(message)

    def close(self) -> None:
        if not self.closed:
            self.basic_recover(requeue=True)
        super().close()


class Transport(virtual.Transport):
    """Loadable as ``gnsq_like.contrib.celery:Transport``, and as ``nsq`` once this module is imported."""

    Channel = Channel
    default_port = 4150
    driver_type = "nsq"
    driver_name = "gnsq_like"
    connection_errors = (*virtual.Transport.connection_errors, OperationalError, NSQError)
    implements = virtual.Transport.implements.extend(exchange_type=frozenset(["direct", "fanout"]))

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        options = dict(client.transport_options)
        nsqds = options.pop("nsqd_tcp_addresses", None)
        self._where: dict[str, Any] = {
            "nsqd_tcp_addresses": nsqds or f"{client.hostname or '127.0.0.1'}:{client.port or self.default_port}",
            "lookupd_http_addresses": options.pop("lookupd_http_addresses", ()),
        }
        self.channel_name: str = options.pop("channel", "celery")
        lookupds = several(self._where["lookupd_http_addresses"])
        self.cluster = Cluster(self.channel_name, several(options.pop("nsqd_http_addresses", ())), lookupds)
        self._max_defer = float(options.pop("max_defer", 3600.0))
        self._reader = {"max_attempts": _MAX_ATTEMPTS, **options.pop("reader", {})}
        # Kombu tries again by itself; and each of Celery's events would wait for nsqds that are away.
        self._producer = Producer(**{"fail_fast": True, **self._where, **options.pop("producer", {})})
        #: Messages of all consumers: (channel, queue, message).
        self.inbox: queues.SimpleQueue[tuple[Channel, str, Message]] = queues.SimpleQueue()
        self._group: ReaderGroup | None = None
        self._starting = threading.Lock()

    def publish(self, topic: str, message: dict[str, Any], delay: float = 0.0) -> None:
        """Publish a message, deferred for ``delay`` seconds at most.

        :raises OperationalError: no nsqd could be reached, or none confirmed it
        """
        defer = min(delay, self._max_defer) if delay > 0 else None
        try:
            self._producer.publish(topic, json.dumps(message).encode(), defer=defer)
        except (NotSent, OutcomeUnknown) as exc:
            raise OperationalError(str(exc)) from exc

    def defer(self, message: Message, left: float) -> None:
        """A message that is not due: nsqd takes shorter delays only, or has lost it in a restart."""
        delay = min(left, self._max_defer)
        try:
            # As a new message: a requeue would count as an attempt.
            self._producer.publish(message.topic, message.body, defer=delay)
        except PublishError:
            message.requeue(delay, backoff=False)
        else:
            message.finish()

    def bury(self, message: Message, reason: str = "its workers died, or it came too often") -> None:
        """Publish a message to the topic of dead letters, unless it is ephemeral, and finish it."""
        if not message.topic.endswith(_EPHEMERAL):
            try:
                self._producer.publish(f"{message.topic}.dead", deadletter.make_envelope(message, reason))
            except PublishError:
                message.requeue(backoff=False)
                return
        message.finish()

    def start_reader(self, topic: str, channel: str, handler: Any, limit: int) -> Reader:
        """Start a Reader beside the others of this connection."""
        options = {"max_in_flight": limit, **self._where, **self._reader}
        reader = Reader(topic, channel, handler, on_giving_up=self.bury, **options)
        with self._starting:
            try:
                if self._group is None:
                    raise NotRunning
                self._group.add(reader)
            except NotRunning:  # there is none, or its last Reader has stopped
                self._group = ReaderGroup(reader, own_thread=True)
                self._group.start()
        return reader

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Wait for a message, and hand it to its consumer.

        :raises TimeoutError: if there is none in time
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                channel, queue, message = self.inbox.get(timeout=left)
            except queues.Empty:
                raise TimeoutError from None
            if not message.is_lost and channel.deliver(queue, message):
                return

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        group, self._group = self._group, None
        if group is not None:
            group.stop(_CONNECTION_CLOSES)
        self._producer.close()

    def driver_version(self) -> str:
        from gnsq_like import __version__

        return __version__


def _is_for_replies(exchange: str) -> bool:
    """Whether this is an exchange of replies to remote control."""
    return exchange.startswith("reply.") and exchange.endswith(".pidbox")


def _replies(exchange: str, routing_key: str) -> str:
    return nsq_name(f"{exchange}.{routing_key}", ephemeral=True)


def _left(message: dict[str, Any]) -> float:
    """Seconds until the ETA of a task; 0 if it has none."""
    eta = (message.get("headers") or {}).get("eta")
    if not eta:
        return 0.0
    at = datetime.fromisoformat(eta)
    return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - time.time())


_transports.TRANSPORT_ALIASES["nsq"] = f"{__name__}:Transport"
