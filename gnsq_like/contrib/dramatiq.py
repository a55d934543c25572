"""A broker for Dramatiq: actors' messages are NSQ's.

::

    broker = NSQBroker(nsqd_tcp_addresses="127.0.0.1:4150")
    dramatiq.set_broker(broker)

    @dramatiq.actor
    def count(url): ...

    count.send("https://nsq.io")        # then run: dramatiq MODULE, or dramatiq-gevent MODULE

A queue is a topic with one channel. ``ack`` is FIN; ``nack`` publishes the message to the topic of dead letters, then
FIN. A delayed message is a deferred one, and a retry is a new one, as with Dramatiq's own brokers: so NSQ's attempts
count only workers that died, and messages handed back. ``docs/jobs.rst`` lists the limits.

Each consumer is a Reader. All of a process are one group in one thread, or in the hub of a patched process; Dramatiq's
threads take messages with ``Reader.get``, and may answer them from anywhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from gnsq_like import Message, Reader
from gnsq_like.contrib.shared.extras import missing
from gnsq_like.contrib.shared.jobs import Jobs
from gnsq_like.contrib.shared.queues import Queues, several
from gnsq_like.errors import NSQError

try:
    import dramatiq
except ModuleNotFoundError as exc:
    raise missing(exc, "dramatiq") from exc
from dramatiq.common import current_millis, iter_queue, q_name
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound
from dramatiq.middleware import Retries

if TYPE_CHECKING:
    from dramatiq import Middleware

    from gnsq_like.options import ConnectionOptionsDict

__all__ = ["NSQBroker"]

#: Consecutive counts of 0 after which a queue is empty: for an instant, nsqd counts a message nowhere while it moves
#: from the topic to the channel.
_EMPTY_COUNTS = 2


class NSQBroker(dramatiq.Broker):
    """Sends and receives the messages of Dramatiq's actors.

    :param middleware: see ``dramatiq.Broker``
    :param nsqd_tcp_addresses: one or several nsqds, on which queues are created
    :param lookupd_http_addresses: one or several nsqlookupds, for further nsqds
    :param nsqd_http_addresses: of the same nsqds, for :meth:`join` and :meth:`flush` without nsqlookupds
    :param topic: the topic of a queue, with ``{queue}`` in it
    :param channel: the channel of all queues
    :param dead_letters: the topic of a queue's dead letters, with ``{topic}`` in it: envelopes, see
        ``gnsq_like.deadletter``; None drops them
    :param max_defer: the longest delay in seconds that nsqd takes at once: its max-req-timeout. A message with a longer
        one is deferred again when it arrives
    :param reader: further options of the Readers. ``max_in_flight`` is Dramatiq's prefetch unless given;
        ``max_attempts`` (10) is the number of deliveries after which a message is a dead letter
    :param producer: further options of the Producer
    :param options: of all connections, see :class:`gnsq_like.options.ConnectionOptions`
    :raises InvalidAddress, InvalidOption: if an argument is invalid
    """

    #: The topic of each declared queue.
    queues: dict[str, str]

    def __init__(
        self,
        middleware: list[Middleware] | None = None,
        *,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        lookupd_http_addresses: str | Iterable[str] = (),
        nsqd_http_addresses: str | Iterable[str] = (),
        topic: str = "dramatiq.{queue}",
        channel: str = "dramatiq",
        dead_letters: str | None = "{topic}.dead",
        max_defer: float = 3600.0,
        reader: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
        **options: Unpack[ConnectionOptionsDict],
    ) -> None:
        super().__init__(middleware)
        self._topic = topic
        self._channel = channel
        lookupds = several(lookupd_http_addresses)
        self._cluster = Queues(channel, several(nsqd_http_addresses), lookupds)
        where: dict[str, Any] = {
            "nsqd_tcp_addresses": several(nsqd_tcp_addresses),
            "lookupd_http_addresses": lookupds,
            **options,
        }
        self._jobs = Jobs(
            where,
            producer=producer or {},
            reader=reader or {},
            max_defer=max_defer,
            dead_letters=lambda topic: None if dead_letters is None else dead_letters.format(topic=topic),
            unreachable=ConnectionClosed,
        )
        self._make_reader("check", 1)
        #: The worker of this process, while it stops.
        self._stopping: dramatiq.Worker | None = None
        #: In each thread: ``message``, which its worker has run and not answered.
        self._ran = threading.local()

    # -- queues -------------------------------------------------------------------------------------

    def topic_of(self, queue_name: str) -> str:
        """The topic of a queue."""
        return self._topic.format(queue=q_name(queue_name))

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; nsqd creates its topic with the first message or consumer.

        :raises InvalidName: if nsqd would refuse its topic, or that of its dead letters
        """
        if queue_name not in self.queues:
            self._jobs.check_topic(self.topic_of(queue_name))
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = self.topic_of(queue_name)
            # No queue for delayed messages, which are in the same topic.
            self.emit_after("declare_queue", queue_name)

    def flush(self, queue_name: str) -> None:
        """Drop the messages of a queue on all nsqds, those that are delayed or being processed included.

        :raises NSQError: if an nsqd does not answer
        """
        self._cluster.empty(self.topic_of(queue_name))

    def flush_all(self) -> None:
        """Drop the messages of all declared queues."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until a queue has no message on any nsqd, those that are delayed or being processed included.

        :param interval: milliseconds between two polls
        :param timeout: milliseconds in total
        :raises QueueNotFound: if the queue is not declared
        :raises QueueJoinTimeout: when the time is over
        """
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        empty = 0
        while True:
            empty = 0 if self._cluster.count(self.topic_of(queue_name)) else empty + 1
            if empty == _EMPTY_COUNTS:
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise QueueJoinTimeout(queue_name)
            time.sleep(interval / 1000)

    # -- sending ------------------------------------------------------------------------------------

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Publish a message, and return it when nsqd has it.

        :param delay: milliseconds until it is delivered
        :raises ConnectionClosed: no nsqd could be reached, or none confirmed it
        :raises NSQError: if nsqd refuses it, for instance because it is too large
        """
        ran: NSQMessageProxy | None = getattr(self._ran, "message", None)
        is_retry = isinstance(message, NSQMessageProxy)
        if delay is not None:
            message = message.copy(options={"eta": current_millis() + delay})
        try:
            self.emit_before("enqueue", message, delay)
            self._jobs.publish(self.topic_of(message.queue_name), message.encode(), (delay or 0) / 1000)
        except Exception:
            if ran is not None:
                ran.is_unpublished = True
            raise
        if ran is not None and is_retry:
            ran.is_retried = True
        self.emit_after("enqueue", message, delay)
        return message

    # -- receiving ----------------------------------------------------------------------------------

    @property
    def has_retries(self) -> bool:
        """Whether a job that fails is retried or rejected, and never acknowledged."""
        return any(isinstance(each, Retries) for each in self.middleware)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> NSQConsumer:
        """Consume a declared queue.

        :param prefetch: maximum number of messages in flight
        :param timeout: milliseconds after which an iteration yields None
        :raises QueueNotFound: if the queue is not declared
        """
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        reader = self._make_reader(queue_name, prefetch)
        self._jobs.start(reader)
        if self._stopping is not None:
            reader.pause()
        return NSQConsumer(self, self._jobs, queue_name, reader, timeout / 1000)

    def _make_reader(self, queue_name: str, prefetch: int) -> Reader:
        return self._jobs.make_reader(self.topic_of(queue_name), self._channel, max_in_flight=prefetch)

    def close(self) -> None:
        """End the consumers and the connections. Messages that are still held are requeued."""
        self._jobs.close()

    # -- Dramatiq's signals -------------------------------------------------------------------------

    def emit_before(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """As Dramatiq's; a worker that begins to stop fetches nothing more, and hands back the messages that it has not
        begun.

        Dramatiq's own order is to wait for the running jobs first.
        """
        if signal == "worker_shutdown":
            [self._stopping] = args
            for thread in self._stopping.workers:
                thread.stop()
            self._jobs.pause()
            self._hand_back()
        super().emit_before(signal, *args, **kwargs)

    def _hand_back(self) -> bool:
        """Whether the worker is stopping; if so, hand back the messages that it has fetched and not begun."""
        if self._stopping is None:
            return False
        for item in iter_queue(self._stopping.work_queue):
            # Dramatiq before 2.2 has pairs: priority, message.
            message = item.message if hasattr(item, "message") else item[1]
            _of(message).delivery.requeue(0, backoff=False)
        return True

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """As Dramatiq's; publishes that fail meanwhile are noted, because Dramatiq only logs an exception.

        Its middleware publishes the successors of a job here: retries, next jobs of pipelines, callbacks.
        """
        if signal == "process_message":
            self._ran.message = args[0]
        try:
            super().emit_after(signal, *args, **kwargs)
        finally:
            if signal == "process_message":
                self._ran.message = None
            elif signal == "worker_shutdown":
                self._stopping = None


class NSQConsumer(dramatiq.Consumer):
    """Yields the messages of a queue as Dramatiq's, and None where there is none in time.

    :param timeout: seconds
    """

    def __init__(self, broker: NSQBroker, jobs: Jobs, queue_name: str, reader: Reader, timeout: float) -> None:
        self._broker = broker
        self._jobs = jobs
        self._queue_name = queue_name
        self._reader = reader
        self._timeout = timeout

    def __next__(self) -> NSQMessageProxy | None:
        """The next message that is due; None if there is none in time, or while the worker stops.

        :raises ConnectionClosed: if the nsqds refuse for good
        """
        self._broker._hand_back()  # the last one may have come to the worker when that had stopped
        try:
            message = self._reader.get(self._timeout)
        except NSQError as exc:
            raise ConnectionClosed(str(exc)) from exc
        if message is None:
            return None
        if self._broker._hand_back():
            message.requeue(0, backoff=False)
            return None
        message.touch_until_answered()
        try:
            job = _read(message.body)
        except (DecodeError, RecursionError, TypeError) as exc:
            self._jobs.bury(f"not a message of Dramatiq: {exc}", message)
            return None
        if job.queue_name != self._queue_name:
            # Of a queue that was renamed, or whose messages were moved: the worker looks for its consumer by this name.
            job = job.copy(queue_name=self._queue_name)
        eta = job.options.pop("eta", None)
        if isinstance(eta, int | float) and (left := (eta - current_millis()) / 1000) > 0:
            self._jobs.defer(message, left)
            return None
        return NSQMessageProxy(job, message)

    def ack(self, message: dramatiq.MessageProxy) -> None:
        """FIN; but if a successor could not be published, the message is delivered again later.

        Dramatiq also acknowledges a message that failed and is not retried because Retries does not understand its
        options. It becomes a dead letter.
        """
        if message._exception is not None and not _of(message).is_retried and self._broker.has_retries:
            self.nack(message)
        elif not self._runs_again(message):
            _of(message).delivery.finish()

    def nack(self, message: dramatiq.MessageProxy) -> None:
        """Make it a dead letter; if no nsqd takes that, it is delivered again later."""
        if self._runs_again(message):
            return
        error = message._exception
        self._jobs.bury("rejected" if error is None else f"{type(error).__name__}: {error}", _of(message).delivery)

    def _runs_again(self, message: dramatiq.MessageProxy) -> bool:
        """Requeue a message if a successor of it was not published."""
        job = _of(message)
        runs_again = job.is_unpublished and not job.is_retried
        if runs_again:
            job.delivery.requeue(backoff=False)
        return runs_again

    def requeue(self, messages: Iterable[dramatiq.MessageProxy]) -> None:
        """Hand messages back that no worker has begun."""
        for message in messages:
            _of(message).delivery.requeue(0, backoff=False)

    def close(self) -> None:
        """Take no more messages; those that are being processed can still be answered."""
        self._jobs.end(self._reader)


class NSQMessageProxy(dramatiq.MessageProxy):
    """A message that a worker has, with its delivery."""

    def __init__(self, job: dramatiq.Message[Any], delivery: Message) -> None:
        super().__init__(job)
        #: For its answer, and to see whether it :attr:`~gnsq_like.Message.is_lost`.
        self.delivery = delivery
        #: Whether a successor could not be published: Dramatiq logs that, and then acknowledges the message.
        self.is_unpublished = False
        #: Whether its retry was published: then it runs again in any case, with its successors.
        self.is_retried = False


#: The types of a message's fields, all of which Dramatiq uses without a check.
_FIELDS: dict[str, type | tuple[type, ...]] = {
    **{"queue_name": str, "actor_name": str, "message_id": str},
    **{"kwargs": dict, "options": dict, "message_timestamp": (int, float)},
}


def _read(body: bytes) -> dramatiq.Message[Any]:
    """Dramatiq's message of these bytes.

    :raises DecodeError, RecursionError: if it cannot be decoded
    :raises TypeError: if one of its fields has another type than Dramatiq's own
    """
    job = dramatiq.Message.decode(body)
    for name, kind in _FIELDS.items():
        if not isinstance(value := getattr(job, name), kind):
            raise TypeError(f"{name} cannot be of type {type(value).__name__}")
    if not isinstance(job.options.get("throws") or (), type | tuple):
        raise TypeError("the option throws is no exception")  # would end the thread in which the job fails
    return job


def _of(message: dramatiq.MessageProxy) -> NSQMessageProxy:
    assert isinstance(message, NSQMessageProxy)
    return message
