"""A topic: gives every message to all of its channels (docs/internals 2.1, 2.4). ``now`` is passed in.

A message goes straight to the channels, unless something keeps it here: there is no channel, the topic is
paused, or others wait already. What waits flows in portions, one each time the broker works, so that
nobody else waits for a long backlog.
"""

from __future__ import annotations

from gnsq_like.server.broker.channel import Channel
from gnsq_like.server.broker.message import Message
from gnsq_like.server.broker.message_ids import MessageIds
from gnsq_like.server.broker.queues import Queue
from gnsq_like.server.broker.schedule import Schedule
from gnsq_like.wire.names import is_ephemeral

#: What moves to the channels in one go.
_FLOW_COUNT = 2000
_FLOW_BYTES = 4 * 1024 * 1024


class Topic:
    """A topic and its channels; only :class:`~gnsq_like.server.broker.broker.Broker` makes either.

    :param queue: for messages that wait for a first channel or the end of a pause
    :param node_id: part of the messages' ids
    """

    def __init__(self, name: str, queue: Queue, agenda: Schedule, node_id: int) -> None:
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.channels: dict[str, Channel] = {}
        self.queue = queue
        self.paused = False
        #: While it is not known which channels other nsqds have of this topic: they are to get these messages too.
        self.held = False
        #: Messages accepted, and the bytes of their bodies.
        self.message_count = 0
        self.message_bytes = 0
        self._agenda = agenda
        self._ids = MessageIds(node_id)

    @property
    def depth(self) -> int:
        """Messages that have not gone to the channels."""
        return len(self.queue)

    @property
    def _flows(self) -> bool:
        return not self.held and not self.paused and bool(self.channels)

    def publish(self, bodies: list[bytes], defer: float, now: float, now_ns: int) -> None:
        """Accept messages: PUB, MPUB and DPUB.

        :raises DiskError: if they must go to disk and cannot; none is accepted then
        """
        for channel in self.channels.values():
            channel.queue.settle()
        messages = [
            Message(message_id, now_ns, body, defer)
            for message_id, body in zip(self._ids.make(len(bodies), now_ns), bodies, strict=True)
        ]
        if self._flows and not len(self.queue):
            self._hand_out(messages, now, refusable=True)
        else:
            self.queue.put(messages)
            self.queue.trim()
        self.message_count += len(messages)
        self.message_bytes += sum(map(len, bodies))

    def _hand_out(self, messages: list[Message], now: float, refusable: bool) -> None:
        """Give messages to all channels, each a copy of its own.

        :param refusable: whether the first channel may refuse all by raising DiskError
        """
        first, *others = self.channels.values()
        copies = [[message.copy() for message in messages] for _ in others]
        first.put(messages, now, refusable)
        for channel, copied in zip(others, copies, strict=True):
            channel.put(copied, now, refusable=False)

    def flow(self, now: float) -> None:
        """Move a portion of what waits to the channels, if anything may; the rest follows."""
        if self._flows and len(self.queue):
            messages = self.queue.take(_FLOW_COUNT, _FLOW_BYTES)
            if messages:
                self._hand_out(messages, now, refusable=False)
                if len(self.queue):
                    self._agenda.mark_topic(self)

    def set_held(self, held: bool, now: float) -> None:
        """Keep messages here until all channels that must have them are there."""
        self.held = held
        self.flow(now)

    def set_paused(self, paused: bool, now: float) -> None:
        """Pause or unpause: a paused topic takes messages and keeps them; its channels deliver on."""
        self.paused = paused
        self.flow(now)

    def empty(self) -> None:
        """Drop what waits at the topic; its channels keep what they have."""
        self.queue.clear()

    def close(self) -> None:
        """Write down what is in memory, here and in the channels; nothing is used any more."""
        for channel in self.channels.values():
            channel.close()
        self.queue.close()
