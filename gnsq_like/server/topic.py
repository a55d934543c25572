"""A topic: gives every message to all of its channels (NSQ.md 2.1, 2.4). No I/O; ``now`` is passed in."""

from __future__ import annotations

from gnsq_like.server.channel import Channel
from gnsq_like.server.message import Message
from gnsq_like.server.message_ids import MessageIds
from gnsq_like.server.options import NsqdOptions
from gnsq_like.server.queues import MemoryQueue, Queue
from gnsq_like.wire.names import is_ephemeral

#: What moves to the channels in one go.
_FLOW_COUNT = 5000
_FLOW_BYTES = 16 * 1024 * 1024


class Topic:
    """A topic and its channels; only :class:`~gnsq_like.server.broker.Broker` makes either."""

    def __init__(self, name: str, options: NsqdOptions) -> None:
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.channels: dict[str, Channel] = {}
        #: Messages that wait for a first channel or the end of a pause.
        self.queue: Queue = MemoryQueue(options.mem_queue_size if self.ephemeral else None)
        self.paused = False
        #: While it is not known which channels other nsqds have of this topic: they are to get these messages too.
        self.held = False
        #: Messages accepted, and the bytes of their bodies.
        self.message_count = 0
        self.message_bytes = 0
        self._ids = MessageIds(options.node_id)

    @property
    def depth(self) -> int:
        """Messages that have not gone to the channels."""
        return len(self.queue)

    def publish(self, bodies: list[bytes], defer: float, now: float, now_ns: int) -> None:
        """Accept messages: PUB, MPUB and DPUB."""
        messages = [
            Message(message_id, now_ns, body, defer)
            for message_id, body in zip(self._ids.make(len(bodies), now_ns), bodies, strict=True)
        ]
        self.message_count += len(messages)
        self.message_bytes += sum(map(len, bodies))
        self.queue.put(messages)
        self.flow(now)

    def flow(self, now: float) -> None:
        """Move what waits to the channels, if anything may: each gets a copy of its own."""
        if not self.held and not self.paused and self.channels:
            first, *others = self.channels.values()
            while len(self.queue):
                messages = self.queue.take(_FLOW_COUNT, _FLOW_BYTES)
                for channel in others:
                    channel.put([message.copy() for message in messages], now)
                first.put(messages, now)
        self.queue.trim()

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
