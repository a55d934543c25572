"""One message, as a channel or a topic's queue holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnsq_like.server.broker.channel import Consumer


class Message:
    """A message. Every channel has a copy of its own: attempts, owner and deadline differ."""

    __slots__ = ("attempts", "body", "defer", "delivered_at", "due", "id", "owner", "timestamp_ns")

    def __init__(self, message_id: bytes, timestamp_ns: int, body: bytes, defer: float = 0.0) -> None:
        self.id = message_id
        #: When it was published, by the wall clock.
        self.timestamp_ns = timestamp_ns
        self.body = body
        #: Seconds that it stays deferred once it arrives in a channel.
        self.defer = defer
        #: Deliveries so far; on the wire 16 bits.
        self.attempts = 0
        #: Who has it in flight.
        self.owner: Consumer | None = None
        #: When it went out to its owner.
        self.delivered_at = 0.0
        #: When it times out (in flight) or comes back (deferred).
        self.due = 0.0

    def copy(self) -> Message:
        """The same message for another channel, not yet delivered."""
        return Message(self.id, self.timestamp_ns, self.body, self.defer)
