"""One message, as a channel or a topic's queue holds it, and ids for new ones.

Ids are 16 hex characters of a 64-bit number that grows with time (docs/internals 1.15). Each topic has its own
generator. Where nsqd waits a millisecond because the 4096 ids of a tick are used up, or because the clock went back,
this one continues in the next tick: ids stay unique and growing, without a wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

#: A tick is 2**20 ns, about a millisecond.
_TICK_BITS = 20
#: 2010-11-04 01:42:54.657 UTC in milliseconds, subtracted from ticks although these are longer: nsqd's own epoch.
_EPOCH = 1288834974288
_NODE_BITS = 10
_SEQUENCE_BITS = 12
#: The sequence numbers of a tick as the last three characters of an id.
_SEQUENCE = [b"%03x" % number for number in range(1 << _SEQUENCE_BITS)]


class Owner(Protocol):
    """The consumer that a message was sent to."""

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


def made_at_ns(message_id: bytes) -> int:
    """When an id was made, by the wall clock."""
    return ((int(message_id, 16) >> _NODE_BITS + _SEQUENCE_BITS) + _EPOCH) << _TICK_BITS


class MessageIds:
    """The ids of one topic's messages.

    :param node_id: 0 to 1023
    """

    def __init__(self, node_id: int) -> None:
        self._node = node_id
        self._tick = 0
        #: The ids of the tick that have not been used.
        self._left: Iterator[bytes] = iter(())

    def make(self, count: int, now_ns: int) -> list[bytes]:
        """The next ``count`` ids, at the wall clock's ``now_ns``."""
        tick = now_ns >> _TICK_BITS
        if tick > self._tick:
            self._enter(tick)
        ids = list(islice(self._left, count))
        while len(ids) < count:
            self._enter(self._tick + 1)
            ids += islice(self._left, count - len(ids))
        return ids

    def _enter(self, tick: int) -> None:
        self._tick = tick
        # Ticks before the epoch are negative; like nsqd, this keeps the low 64 bits, of which the sequence has 12.
        begin = b"%013x" % (((tick - _EPOCH) << _NODE_BITS | self._node) & 0xFFFFFFFFFFFFF)
        self._left = map(begin.__add__, _SEQUENCE)
