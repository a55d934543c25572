"""A channel: its queue, its consumers, and messages in flight or deferred (docs/internals 1.7, 1.12, 2.4 to 2.7).

A message of a channel is in exactly one place: in ``queue``, in ``in_flight``, in ``deferred``, or gone
(finished, sampled away, emptied). Rules for editors: no I/O and no clock here, ``now`` is monotonic
seconds; whatever may make a delivery possible marks the channel in the schedule, and only
:meth:`Channel.deliver` decides on deliveries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gnsq_like.server.broker.latency import Latencies
from gnsq_like.server.broker.message import Message
from gnsq_like.server.broker.queues import Queue
from gnsq_like.server.broker.schedule import Schedule
from gnsq_like.server.daemon_options import NsqdOptions

#: The reasons for which FIN, REQ or TOUCH fails, in nsqd's words.
NOT_IN_FLIGHT = "ID not in flight"
NOT_OWNER = "client does not own message"

#: attempts has 16 bits on the wire, and wraps.
_ATTEMPTS_MASK = 0xFFFF
#: Bytes of bodies, and messages, that a channel deals out before others have their turn, and before it checks again
#: which connections are held up.
_DEAL_BYTES = 4 * 1024 * 1024
_DEAL_COUNT = 1000


#: The distance of a consumer from nsqd: same zone, same region, or neither.
SAME_ZONE, SAME_REGION, ELSEWHERE = range(3)


class Client(Protocol):
    """A consumer's connection, which the broker only passes on."""

    def send_messages(self, messages: list[Message]) -> None: ...
    def flush_if_full(self) -> None: ...
    def abort(self) -> None: ...


class Consumer:
    """One client's subscription.

    :param client: its connection, which the broker only passes on
    :param msg_timeout: seconds until a message sent to it times out
    :param sample_rate: 0 for all messages; of 100, r lets about r+1 through and discards the others
    :param distance: SAME_ZONE, SAME_REGION or ELSEWHERE
    :param random: a number from 0 to below 1, for sampling
    """

    def __init__(
        self,
        channel: Channel,
        client: Client,
        msg_timeout: float,
        sample_rate: int,
        distance: int,
        random: Callable[[], float],
    ) -> None:
        self.channel = channel
        self.client = client
        self.msg_timeout = msg_timeout
        self.distance = distance
        self._sample_rate = sample_rate
        self._random = random
        #: The last RDY; it is compared with ``in_flight_count``, and never counted down.
        self.ready_count: int = 0
        self.in_flight_count = 0
        #: Messages sent to it, and those it finished or requeued.
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        #: Whether its connection accepts no more bytes at the moment.
        self.held_up: bool = False

    def room(self) -> int:
        """The number of messages that may be sent to it now."""
        if self.held_up or self.channel.paused:
            return 0
        return max(0, self.ready_count - self.in_flight_count)

    def sample(self, messages: list[Message]) -> list[Message]:
        """The messages that sampling keeps."""
        rate = self._sample_rate
        # nsqd keeps a message if a random number from 0 to 99 is not above the rate.
        return [message for message in messages if int(self._random() * 100) <= rate] if rate else messages

    def set_ready(self, count: int) -> None:
        """RDY."""
        self.ready_count = count
        self.channel.mark()

    def set_held_up(self, held_up: bool) -> None:
        """Set whether its connection accepts no more bytes."""
        self.held_up = held_up
        if not held_up:
            self.channel.mark()


#: Messages to be sent to one consumer.
Delivery = tuple[Consumer, list[Message]]


class Channel:
    """A channel of a topic.

    :param queue: for messages that wait
    """

    def __init__(
        self, topic_name: str, name: str, queue: Queue, options: NsqdOptions, schedule: Schedule[Any, Channel]
    ) -> None:
        self.topic_name = topic_name
        self.name = name
        self._options = options
        self._schedule = schedule
        self.paused: bool = False
        self.queue = queue
        self.in_flight: dict[bytes, Message] = {}
        self.deferred: dict[bytes, Message] = {}
        self.consumers: list[Consumer] = []
        #: Index of the consumer that gets the first message next time.
        self._turn = 0
        #: Messages that arrived, that were requeued by a client, and that timed out.
        self.message_count: int = 0
        self.requeue_count: int = 0
        self.timeout_count: int = 0
        #: Messages taken from memory for consumers in the same zone, in the same region and elsewhere: by distance.
        self.taken_counts: list[int] = [0, 0, 0]
        #: Latencies of its messages; None if no percentiles are configured.
        self.latencies: Latencies | None = None
        if options.e2e_processing_latency_percentiles:
            self.latencies = Latencies(options.e2e_processing_latency_window_time)

    @property
    def depth(self) -> int:
        """Messages that wait, without those in flight or deferred."""
        return len(self.queue)

    def mark(self) -> None:
        """Note that a delivery may have become possible; does nothing without consumers."""
        if self.consumers:
            self._schedule.mark(self)
        else:
            self.queue.trim()

    # -- arriving ------------------------------------------------------------------------------------

    def put(self, messages: list[Message], now: float, refusable: bool) -> None:
        """Accept messages from the topic; a deferral begins here, not at the publish.

        :param refusable: whether their publish can still be refused
        :raises DiskError: if so, and they must go to disk and cannot; then none is accepted
        """
        waiting = [message for message in messages if not message.defer]
        if refusable:
            self.queue.put(waiting)
        else:
            self.queue.keep(waiting)
        self.message_count += len(messages)
        if len(waiting) < len(messages):
            for message in messages:
                if message.defer and message.id not in self.in_flight and message.id not in self.deferred:
                    self._defer(message, now + message.defer)
        self.mark()

    def _defer(self, message: Message, due: float) -> None:
        message.due = due
        self.deferred[message.id] = message
        self._schedule.remind(due, self, [message.id])

    # -- delivering ----------------------------------------------------------------------------------

    def deliver(self, now: float) -> list[Delivery]:
        """Deal the waiting messages to the nearest consumers with room, evenly and in turns.

        After ``_DEAL_BYTES`` or ``_DEAL_COUNT``, the rest is left for the next call, when some connection may be held
        up.
        """
        deliveries: list[Delivery] = []
        queue = self.queue
        budget, count = _DEAL_BYTES, _DEAL_COUNT
        while len(queue):
            ready = self._ready()
            if not ready:
                break
            share = -(-len(queue) // len(ready))
            left = len(queue)
            for consumer in ready:
                on_disk = queue.backend_depth
                messages = queue.take(min(share, consumer.room(), count), budget)
                # Like nsqd, this leaves out messages from disk, and counts those that are sampled away.
                self.taken_counts[consumer.distance] += len(messages) - (on_disk - queue.backend_depth)
                budget -= sum([len(message.body) for message in messages])
                count -= len(messages)
                messages = self._send(consumer, consumer.sample(messages), now)
                if messages:
                    deliveries.append((consumer, messages))
                if budget <= 0 or not count or not len(queue):
                    break
            self._turn = self.consumers.index(consumer) + 1
            if budget <= 0 or not count:
                self.mark()
                break
            if len(queue) == left:  # the disk cannot be read at the moment
                break
        queue.trim()
        return deliveries

    def _ready(self) -> list[Consumer]:
        """The nearest consumers with room."""
        consumers = self.consumers
        if len(consumers) > 1:
            consumers = consumers[self._turn :] + consumers[: self._turn]
        ready = [consumer for consumer in consumers if consumer.room() > 0]
        nearest = min((consumer.distance for consumer in ready), default=ELSEWHERE)
        return [consumer for consumer in ready if consumer.distance == nearest]

    def _send(self, consumer: Consumer, messages: list[Message], now: float) -> list[Message]:
        """Note messages as in flight; returns them without duplicates.

        After a kill, the disk may have several records of a message. While one is in flight
        or deferred, the others are dropped: their ids would stand for both.
        """
        due = now + consumer.msg_timeout
        in_flight = self.in_flight
        sent: list[Message] = []
        for message in messages:
            if message.id in in_flight or message.id in self.deferred:
                continue
            sent.append(message)
            message.attempts = (message.attempts + 1) & _ATTEMPTS_MASK
            message.owner = consumer
            message.delivered_at = now
            message.due = due
            in_flight[message.id] = message
        if sent:
            consumer.in_flight_count += len(sent)
            consumer.message_count += len(sent)
            self._schedule.remind(due, self, [message.id for message in sent])
        return sent

    # -- answers -------------------------------------------------------------------------------------

    def finish(self, consumer: Consumer, ids: list[bytes]) -> list[tuple[bytes, str]]:
        """FIN of several messages; returns those that failed, with the reasons."""
        in_flight = self.in_flight
        failed: list[tuple[bytes, str]] = []
        for message_id in ids:
            message = in_flight.get(message_id)
            if message is None:
                failed.append((message_id, NOT_IN_FLIGHT))
            elif message.owner is not consumer:
                failed.append((message_id, NOT_OWNER))
            else:
                del in_flight[message_id]
                if self.latencies is not None:
                    self.latencies.add(message.timestamp_ns)
        done = len(ids) - len(failed)
        if done:
            consumer.in_flight_count -= done
            consumer.finish_count += done
            self.mark()
        return failed

    def requeue(self, consumer: Consumer, message_id: bytes, delay: float, now: float) -> str | None:
        """REQ; without a delay the message goes to the tail at once. Returns the reason if it failed."""
        message = self._owned(consumer, message_id)
        if isinstance(message, str):
            return message
        self._take_back(message)
        self.requeue_count += 1
        consumer.requeue_count += 1
        if delay > 0:
            self._defer(message, now + delay)
        else:
            self.queue.keep([message])
        return None

    def touch(self, consumer: Consumer, message_id: bytes, now: float) -> str | None:
        """TOUCH: restart its timeout, up to max_msg_timeout in total. Returns the reason if it failed."""
        message = self._owned(consumer, message_id)
        if isinstance(message, str):
            return message
        message.due = min(now + consumer.msg_timeout, message.delivered_at + self._options.max_msg_timeout)
        self._schedule.remind(message.due, self, [message_id])
        return None

    def _owned(self, consumer: Consumer, message_id: bytes) -> Message | str:
        """The message that the consumer has in flight, or the reason why it has not."""
        message = self.in_flight.get(message_id)
        if message is None:
            return NOT_IN_FLIGHT
        return message if message.owner is consumer else NOT_OWNER

    def _take_back(self, message: Message) -> None:
        """Remove from flight, for any reason but FIN."""
        del self.in_flight[message.id]
        assert message.owner is not None
        message.owner.in_flight_count -= 1
        message.owner = None
        self.mark()

    # -- deadlines -----------------------------------------------------------------------------------

    def awaits(self, message_id: bytes, due: float) -> bool:
        """Whether this message is in flight or deferred until ``due``."""
        message = self.in_flight.get(message_id) or self.deferred.get(message_id)
        return message is not None and message.due == due

    def expire(self, ids: list[bytes], due: float) -> None:
        """Return to the queue those of the messages whose deadline is still ``due``, which has passed."""
        for message_id in ids:
            if not self.awaits(message_id, due):
                continue
            message = self.deferred.pop(message_id, None)
            if message is None:
                message = self.in_flight[message_id]
                self._take_back(message)
                self.timeout_count += 1
            self.queue.keep([message])
            self.mark()

    # -- managing ------------------------------------------------------------------------------------

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer whose connection is gone; its messages stay in flight until they time out (docs/internals
        2.6)."""
        self.consumers.remove(consumer)
        self._turn = 0

    def set_paused(self, paused: bool) -> None:
        """Pause or unpause: a paused channel delivers nothing; everything else continues."""
        self.paused = paused
        self.mark()

    def close(self) -> int:
        """Write all messages to disk, also those in flight and deferred, before the channel is abandoned.

        Returns how many are lost.
        """
        return self.queue.close([*self.in_flight.values(), *self.deferred.values()])

    def empty(self) -> None:
        """Drop all messages, also those in flight and deferred; consumers have room for as many again."""
        self.queue.clear()
        self.in_flight.clear()
        self.deferred.clear()
        for consumer in self.consumers:
            consumer.in_flight_count = 0
        self.mark()
