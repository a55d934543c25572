"""One message, as a channel or a topic's queue holds it."""

from __future__ import annotations

from typing import Protocol


class Owner(Protocol):
    """What a message knows of the consumer that it was sent to."""

    #: Messages that it has and has not answered.
    in_flight_count: int


class Message:
    """A message. Every channel has its own copy, with attempts, owner and deadline of its own."""

    __slots__ = ("attempts", "body", "defer", "delivered_at", "due", "id", "owner", "timestamp_ns")

    #: The consumer that has it in flight; set by its delivery, as the next.
    owner: Owner | None
    #: When it was sent to its owner.
    delivered_at: float
    #: When it times out (in flight) or is queued again (deferred); set then.
    due: float

    def __init__(self, message_id: bytes, timestamp_ns: int, body: bytes, defer: float = 0.0) -> None:
        self.id: bytes = message_id
        #: When it was published, by the wall clock.
        self.timestamp_ns: int = timestamp_ns
        self.body: bytes = body
        #: Seconds for which it is deferred once it arrives in a channel.
        self.defer: float = defer
        #: Deliveries so far; 16 bits on the wire.
        self.attempts: int = 0

    def copy(self) -> Message:
        """The same message for another channel, not yet delivered."""
        return Message(self.id, self.timestamp_ns, self.body, self.defer)
