"""nsqd's topics, channels and messages (docs/internals 2); no I/O but that of the queues it is given.

It decides, others act. Calls change the state and put work on the agenda, which calls ``on_work`` once;
whoever runs the broker then calls :meth:`Broker.work`, sends what it returns, and calls it again when
``next_due`` has come. ``now`` is monotonic seconds; ``now_ns`` the wall clock.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable

from gnsq_like.server.broker.channel import Channel, Consumer, Delivery
from gnsq_like.server.broker.queues import MemoryQueue, Queue, QueueMaker
from gnsq_like.server.broker.schedule import Schedule
from gnsq_like.server.broker.topic import Topic
from gnsq_like.server.options import NsqdOptions
from gnsq_like.wire.names import is_ephemeral

#: Called with a topic, a channel or None, and whether it exists now.
OnChange = Callable[[Topic, Channel | None, bool], None]


class SubscribeRefused(Exception):
    """Nobody more may subscribe; the text is nsqd's."""


def _ignore_change(topic: Topic, channel: Channel | None, exists: bool) -> None:
    pass


class Broker:
    """All topics of one nsqd.

    :param on_work: called once whenever there is work again; it must only take a note
    :param on_change: told of topics and channels that come and go; may set a new topic on hold
    :param random: a number from 0 to below 1
    :param make_queue: makes the queue of a topic or channel; None for queues in memory
    """

    def __init__(
        self,
        options: NsqdOptions | None = None,
        on_work: Callable[[], None] = lambda: None,
        on_change: OnChange = _ignore_change,
        random: Callable[[], float] = random_module.random,
        make_queue: QueueMaker | None = None,
    ) -> None:
        self.options = options or NsqdOptions()
        self.topics: dict[str, Topic] = {}
        self._agenda = Schedule(on_work)
        self._on_change = on_change
        self._random = random
        self._make_queue = make_queue or self._memory_queue

    def _memory_queue(self, name: str, ephemeral: bool) -> Queue:
        return MemoryQueue(self.options.mem_queue_size if ephemeral else None)

    # -- the work ------------------------------------------------------------------------------------

    def work(self, now: float) -> list[Delivery]:
        """See to deadlines that have come, and decide what is sent to whom."""
        for due, channel, ids in self._agenda.pop_due(now):
            channel.expire(ids, due)
        for topic in self._agenda.take_topics():
            topic.flow(now)
        deliveries: list[Delivery] = []
        for channel in self._agenda.take_marked():
            deliveries += channel.deliver(now)
        self._agenda.tidy()
        return deliveries

    @property
    def next_due(self) -> float | None:
        """When :meth:`work` is to be called again even if nothing happens until then."""
        return self._agenda.next_due

    # -- topics and channels -------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """The topic of this name, made if there is none."""
        topic = self.topics.get(name)
        if topic is None:
            queue = self._make_queue(name, is_ephemeral(name))
            topic = self.topics[name] = Topic(name, queue, self._agenda, self.options.node_id)
            self._on_change(topic, None, True)
        return topic

    def channel(self, topic: Topic, name: str, now: float) -> Channel:
        """The topic's channel of this name, made if there is none."""
        channel = topic.channels.get(name)
        if channel is None:
            queue = self._make_queue(f"{topic.name}:{name}", is_ephemeral(name))
            channel = Channel(topic.name, name, queue, self.options, self._agenda, self._random)
            topic.channels[name] = channel
            self._on_change(topic, channel, True)
            topic.flow(now)
        return channel

    def delete_topic(self, topic: Topic) -> list[Consumer]:
        """Drop a topic with all it holds; gives the consumers, whose connections are to be closed."""
        del self.topics[topic.name]
        self._on_change(topic, None, False)
        consumers: list[Consumer] = []
        for channel in list(topic.channels.values()):
            consumers += self.delete_channel(topic, channel)
        topic.queue.discard()
        return consumers

    def delete_channel(self, topic: Topic, channel: Channel) -> list[Consumer]:
        """Drop a channel with all it holds; gives the consumers, whose connections are to be closed."""
        del topic.channels[channel.name]
        self._on_change(topic, channel, False)
        consumers = list(channel.consumers)
        channel.consumers.clear()
        channel.empty()
        channel.queue.discard()
        if topic.ephemeral and not topic.channels and topic.name in self.topics:
            self.delete_topic(topic)
        return consumers

    def retry(self, now: float) -> None:
        """The disk failed, and may be working again: look at all that may wait on it."""
        for topic in self.topics.values():
            topic.flow(now)
            for channel in topic.channels.values():
                channel.mark()

    def close(self) -> None:
        """Write down all messages; the broker is not used any more."""
        for topic in self.topics.values():
            topic.close()

    # -- clients -------------------------------------------------------------------------------------

    def publish(self, topic_name: str, bodies: list[bytes], now: float, now_ns: int, defer: float = 0.0) -> Topic:
        """Accept messages.

        :param defer: seconds that they stay deferred in each channel
        :raises DiskError: if they must go to disk and cannot; none is accepted then
        """
        topic = self.topic(topic_name)
        topic.publish(bodies, defer, now, now_ns)
        return topic

    def subscribe(
        self, topic_name: str, channel_name: str, client: object, msg_timeout: float, sample_rate: int, now: float
    ) -> Consumer:
        """Add a consumer; topic and channel are made if there are none.

        :raises SubscribeRefused: above max_channel_consumers
        """
        channel = self.channel(self.topic(topic_name), channel_name, now)
        limit = self.options.max_channel_consumers
        if limit and len(channel.consumers) >= limit:
            raise SubscribeRefused(f"consumers for {topic_name}:{channel_name} exceeds limit of {limit}")
        consumer = Consumer(channel, client, msg_timeout, sample_rate)
        channel.add_consumer(consumer)
        return consumer

    def unsubscribe(self, consumer: Consumer) -> None:
        """The consumer's connection is gone; an ephemeral channel goes with its last consumer."""
        channel = consumer.channel
        if consumer not in channel.consumers:
            return  # the channel was deleted under it
        channel.remove_consumer(consumer)
        topic = self.topics.get(channel.topic_name)
        if channel.ephemeral and not channel.consumers and topic is not None:
            self.delete_channel(topic, channel)
