"""A topic: copies every message to all of its channels (docs/internals 2.1, 2.4). ``now`` is passed in.

A message goes straight to the channels unless the topic has no channel, is paused, or has others waiting. Waiting
messages move in portions, one each time the broker works, so that a long backlog delays no other topic.
"""

from __future__ import annotations

from itertools import repeat

from gnsq_like.server.broker.channel import Channel
from gnsq_like.server.broker.message import Message, MessageIds
from gnsq_like.server.broker.queues import Queue
from gnsq_like.server.broker.schedule import Schedule

#: The most that moves to the channels at once.
_FLOW_COUNT = 2000
_FLOW_BYTES = 4 * 1024 * 1024


class Topic:
    """A topic and its channels; only :class:`~gnsq_like.server.broker.broker.Broker` makes either.

    :param queue: for messages that wait for a first channel or the end of a pause
    :param node_id: part of the messages' ids
    """

    def __init__(self, name: str, queue: Queue, schedule: Schedule[Topic, Channel], node_id: int) -> None:
        self.name = name
        self.channels: dict[str, Channel] = {}
        self.queue = queue
        self.paused: bool = False
        #: While it is unknown which channels the topic has on other nsqds: those get these messages too.
        self.held: bool = False
        #: Messages accepted, and the bytes of their bodies.
        self.message_count: int = 0
        self.message_bytes: int = 0
        self._schedule = schedule
        self._ids = MessageIds(node_id)

    @property
    def depth(self) -> int:
        """Messages that have not moved to the channels."""
        return len(self.queue)

    @property
    def _flows(self) -> bool:
        return not self.held and not self.paused and bool(self.channels)

    def publish(self, bodies: list[bytes], defer: float, now: float, now_ns: int) -> None:
        """Accept messages: PUB, MPUB and DPUB.

        :raises DiskError: if they must go to disk and cannot; then none is accepted
        """
        for channel in self.channels.values():
            channel.queue.settle()
        ids = self._ids.make(len(bodies), now_ns)
        messages = list(map(Message, ids, repeat(now_ns), bodies, repeat(defer)))
        if self._flows and not len(self.queue):
            self._hand_out(messages, now, refusable=True)
        else:
            self.queue.put(messages)
            self.queue.trim()
        self.message_count += len(messages)
        self.message_bytes += sum(map(len, bodies))

    def _hand_out(self, messages: list[Message], now: float, refusable: bool) -> None:
        """Give every channel its own copy of the messages.

        :param refusable: whether the first channel may refuse them all by raising DiskError
        """
        for index, channel in enumerate(self.channels.values()):
            if index:
                messages = [message.copy() for message in messages]
            channel.put(messages, now, refusable and not index)

    def flow(self, now: float) -> None:
        """Move a portion of the waiting messages to the channels, unless they must stay; the rest is scheduled."""
        if self._flows and len(self.queue):
            messages = self.queue.take(_FLOW_COUNT, _FLOW_BYTES)
            if messages:
                self._hand_out(messages, now, refusable=False)
                if len(self.queue):
                    self._schedule.mark_topic(self)

    def set_held(self, held: bool, now: float) -> None:
        """Keep messages here until all channels that need them exist."""
        self.held = held
        self.flow(now)

    def set_paused(self, paused: bool, now: float) -> None:
        """Pause or unpause: a paused topic accepts and keeps messages; its channels go on delivering."""
        self.paused = paused
        self.flow(now)

    def empty(self) -> None:
        """Drop the messages that wait at the topic; its channels keep theirs."""
        self.queue.clear()

    def close(self) -> int:
        """Write what is in memory to disk, here and in the channels, before the topic is abandoned.

        Returns how many messages are lost.
        """
        return sum([channel.close() for channel in self.channels.values()]) + self.queue.close()
