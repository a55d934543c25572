"""Message ids: 16 hex characters of a 64-bit number that grows with time (docs/internals 1.15).

Each topic has its own generator. Where nsqd waits a millisecond because the 4096 ids of a tick are used
up, or because the clock went back, this one continues in the next tick: ids stay unique and growing,
without a wait.
"""

from __future__ import annotations

#: A tick is 2**20 ns, about a millisecond.
_TICK_BITS = 20
#: 2010-11-04 01:42:54.657 UTC in milliseconds, subtracted from ticks although these are longer: nsqd's own epoch.
_EPOCH = 1288834974288
_NODE_BITS = 10
#: The sequence numbers of a tick as the last three characters of an id.
_SEQUENCE = [b"%03x" % number for number in range(1 << 12)]


class MessageIds:
    """The ids of one topic's messages.

    :param node_id: 0 to 1023
    """

    def __init__(self, node_id: int) -> None:
        self._node = node_id
        self._tick = 0
        #: The next sequence number in ``_tick``.
        self._sequence = 0

    def make(self, count: int, now_ns: int) -> list[bytes]:
        """The next ``count`` ids, at the wall clock's ``now_ns``."""
        tick = now_ns >> _TICK_BITS
        if tick > self._tick:
            self._tick = tick
            self._sequence = 0
        ids: list[bytes] = []
        while count:
            # Ticks before the epoch are negative; like nsqd, this keeps the low 64 bits, of which the sequence has 12.
            begin = b"%013x" % (((self._tick - _EPOCH) << _NODE_BITS | self._node) & 0xFFFFFFFFFFFFF)
            made = [begin + end for end in _SEQUENCE[self._sequence : self._sequence + count]]
            ids += made
            count -= len(made)
            self._sequence += len(made)
            if self._sequence == len(_SEQUENCE):
                self._tick += 1
                self._sequence = 0
        return ids
