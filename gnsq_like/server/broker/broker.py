"""nsqd's topics, channels and messages (docs/internals 2); the only I/O is that of the queues passed in.

The broker decides, its caller acts. Calls change the state and schedule work, which calls ``on_work`` once;
the caller then calls :meth:`Broker.work`, sends what it returns, and calls it again at ``next_due``.
``now`` is monotonic seconds; ``now_ns`` is the wall clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gnsq_like.runtime.native import draw
from gnsq_like.server.broker.channel import ELSEWHERE, Channel, Client, Consumer, Delivery
from gnsq_like.server.broker.metadata import Entry
from gnsq_like.server.broker.queues import MemoryQueue, Queue, QueueMaker
from gnsq_like.server.broker.schedule import Schedule
from gnsq_like.server.broker.topic import Topic
from gnsq_like.server.daemon_options import NsqdOptions
from gnsq_like.wire.names import is_ephemeral

#: Messages dealt to consumers, and those whose deadlines passed, after which the rest is left for the next call.
_WORK_COUNT = 1000

#: Called with a topic, a channel or None, and whether it exists now.
OnChange = Callable[[Topic, Channel | None, bool], None]


class SubscribeRefused(Exception):
    """The channel may have no more consumers; the text is nsqd's."""


def _ignore_change(topic: Topic, channel: Channel | None, exists: bool) -> None:
    pass


class Broker:
    """All topics of one nsqd.

    :param on_work: called once whenever there is work again; must only take note of it
    :param on_change: called when a topic or channel is created or deleted; may hold a new topic
    :param random: a number from 0 to below 1
    :param make_queue: makes the queue of a topic or channel; None for queues in memory
    """

    def __init__(
        self,
        options: NsqdOptions | None = None,
        on_work: Callable[[], None] = lambda: None,
        on_change: OnChange = _ignore_change,
        random: Callable[[], float] = draw,
        make_queue: QueueMaker | None = None,
    ) -> None:
        self.options: NsqdOptions = options or NsqdOptions()
        self.topics: dict[str, Topic] = {}
        self._schedule: Schedule[Topic, Channel] = Schedule(on_work)
        self._on_change = on_change
        self._random = random
        self._make_queue = make_queue or self._memory_queue

    def _memory_queue(self, name: str, ephemeral: bool) -> Queue:
        return MemoryQueue(self.options.mem_queue_size if ephemeral else None)

    # -- the work ------------------------------------------------------------------------------------

    def work(self, now: float) -> list[Delivery]:
        """Handle deadlines that have passed, and decide which messages go to which consumers.

        Long work is split: the rest is left for the next call, which ``on_work`` or ``next_due`` requests at once.
        """
        expired = 0
        for due, channel, ids in self._schedule.pop_due(now):
            channel.expire(ids, due)
            expired += len(ids)
            if expired >= _WORK_COUNT:
                break
        for topic in self._schedule.take_topics():
            topic.flow(now)
        deliveries: list[Delivery] = []
        dealt = 0
        marked = self._schedule.take_marked()
        for index, channel in enumerate(marked, 1):
            found = channel.deliver(now)
            deliveries += found
            dealt += sum([len(messages) for _, messages in found])
            if dealt >= _WORK_COUNT:
                self._schedule.put_back(marked[index:])
                break
        self._schedule.tidy()
        return deliveries

    @property
    def next_due(self) -> float | None:
        """The time at which :meth:`work` must be called again even if nothing happens before."""
        return self._schedule.next_due

    # -- topics and channels -------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """The topic of this name, created if it does not exist."""
        topic = self.topics.get(name)
        if topic is None:
            queue = self._make_queue(name, is_ephemeral(name))
            topic = self.topics[name] = Topic(name, queue, self._schedule, self.options.node_id)
            self._on_change(topic, None, True)
        return topic

    def channel(self, topic: Topic, name: str, now: float) -> Channel:
        """The topic's channel of this name, created if it does not exist."""
        channel = topic.channels.get(name)
        if channel is None:
            queue = self._make_queue(f"{topic.name}:{name}", is_ephemeral(name))
            channel = Channel(topic.name, name, queue, self.options, self._schedule)
            topic.channels[name] = channel
            self._on_change(topic, channel, True)
            topic.flow(now)
        return channel

    def restore(self, entries: Iterable[Entry], now: float) -> None:
        """Restore topics and channels; no message moves before a topic has all of its channels."""
        for entry in entries:
            topic = self.topic(entry.name)
            topic.set_held(True, now)
            topic.set_paused(entry.paused, now)
            for each in entry.channels:
                self.channel(topic, each.name, now).set_paused(each.paused)
            topic.set_held(False, now)

    def delete_topic(self, topic: Topic) -> list[Consumer]:
        """Delete a topic with all its messages; returns the consumers, whose connections must be closed."""
        del self.topics[topic.name]
        self._on_change(topic, None, False)
        consumers: list[Consumer] = []
        for channel in list(topic.channels.values()):
            consumers += self.delete_channel(topic, channel)
        topic.queue.discard()
        return consumers

    def delete_channel(self, topic: Topic, channel: Channel) -> list[Consumer]:
        """Delete a channel with all its messages; returns the consumers, whose connections must be closed."""
        del topic.channels[channel.name]
        self._on_change(topic, channel, False)
        consumers = list(channel.consumers)
        channel.consumers.clear()
        channel.empty()
        channel.queue.discard()
        if is_ephemeral(topic.name) and not topic.channels and topic.name in self.topics:
            self.delete_topic(topic)
        return consumers

    def retry(self, now: float) -> None:
        """Retry everything that may be waiting for the disk after a failure."""
        for topic in self.topics.values():
            topic.flow(now)
            for channel in topic.channels.values():
                channel.mark()

    def close(self) -> int:
        """Write all messages to disk before the broker is abandoned; returns how many are lost."""
        return sum([topic.close() for topic in self.topics.values()])

    # -- clients -------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic_name: str,
        channel_name: str,
        client: Client,
        msg_timeout: float,
        sample_rate: int,
        now: float,
        distance: int = ELSEWHERE,
    ) -> Consumer:
        """Add a consumer; topic and channel are created if they do not exist.

        :raises SubscribeRefused: above max_channel_consumers
        """
        channel = self.channel(self.topic(topic_name), channel_name, now)
        limit = self.options.max_channel_consumers
        if limit and len(channel.consumers) >= limit:
            raise SubscribeRefused(f"consumers for {topic_name}:{channel_name} exceeds limit of {limit}")
        consumer = Consumer(channel, client, msg_timeout, sample_rate, distance, self._random)
        channel.consumers.append(consumer)
        return consumer

    def unsubscribe(self, consumer: Consumer) -> None:
        """Remove a consumer whose connection is gone; an ephemeral channel goes with its last consumer."""
        channel = consumer.channel
        if consumer not in channel.consumers:
            return  # its channel has been deleted
        channel.remove_consumer(consumer)
        topic = self.topics.get(channel.topic_name)
        if is_ephemeral(channel.name) and not channel.consumers and topic is not None:
            self.delete_channel(topic, channel)
