"""Counts messages in flight and RDY at proxies, frame by frame, and explains each message above max_in_flight.

All is seen at the client's side of the proxies: a message is in flight from when it is passed to the client until its
FIN or REQ comes from there. nsqd may send a message too many only where it has not read what the client has said:

- RDY_ON_ITS_WAY: the connection holds as many as the client's last RDY, and an earlier RDY allowed it.
- ANOTHER_CAME: within RDY, but one of those above, which the client could not count on, is still in flight elsewhere.
- NOT_PLANNED_YET: max_in_flight was lowered a moment ago, and no RDY has come on the connection since.

Anything else is unexplained.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import gevent

from gnsq_like.testing.proxy import Observer
from gnsq_like.wire.frames import FrameDecoder

RDY_ON_ITS_WAY = "RDY was on its way"
ANOTHER_CAME = "one that was on its way is in flight"
NOT_PLANNED_YET = "max_in_flight was lowered a moment ago"
#: Seconds beside the delays of the network for what happens at once.
SLACK = 1.0
#: Seconds between two ticks of :func:`hub_clock`.
_TICK = 0.01


@contextmanager
def hub_clock() -> Iterator[Callable[[], float]]:
    """Context manager: seconds in which this thread's hub has run.

    They stand still with it, for as long as it gets no CPU: it has had a hundred turns within a second of this clock.
    """
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1

    with gevent.get_hub().loop.timer(_TICK, _TICK) as timer:
        timer.start(tick)
        yield lambda: ticks * _TICK


@dataclass
class _Connection:
    decoder: FrameDecoder = field(default_factory=FrameDecoder)
    rest: bytes = b""
    rdy: int = 0
    rdy_at: float = float("-inf")
    #: The RDY commands before, with the time at which the next one followed.
    earlier: list[tuple[float, int]] = field(default_factory=list)
    held: set[bytes] = field(default_factory=set)
    #: Those of them that came because RDY was on its way.
    extra: set[bytes] = field(default_factory=set)


class Frames:
    """What passes between one Reader and its nsqds. ``observer`` makes one for each proxy; they share a thread.

    :param delay: seconds of the network, each way
    :param clock: seconds; see :func:`hub_clock`
    """

    def __init__(self, max_in_flight: int, delay: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limit = max_in_flight
        self._lowered_at = float("-inf")
        self._delay = delay
        self._connections: dict[tuple[int, int], _Connection] = {}
        self.received = 0
        self.rdys = 0
        self.most_in_flight = 0
        #: Messages above max_in_flight, or above RDY, by their explanation.
        self.explained: Counter[str] = Counter()
        self.unexplained: list[str] = []

    def lower(self, max_in_flight: int) -> None:
        """Call it before max_in_flight is changed to less, and after it was changed to more."""
        if max_in_flight < self._limit:
            self._lowered_at = self._clock()
        self._limit = max_in_flight

    def observer(self, nsqd: int) -> Observer:
        """The observer for the proxy of this nsqd."""

        def observe(number: int, where: str, data: bytes) -> None:
            connection = self._connections.setdefault((nsqd, number), _Connection())
            if where == "to client":
                for item in connection.decoder.feed(data):
                    if isinstance(item, list):
                        for _, _, message_id, _ in item:
                            self._arrived(connection, message_id)
            elif where == "from client":
                *lines, connection.rest = (connection.rest + data).split(b"\n")
                for line in lines:
                    self._said(connection, line)
            elif where == "client closed":
                connection.held.clear()
                connection.extra.clear()

        return observe

    @property
    def in_flight(self) -> int:
        return sum(len(each.held) for each in self._connections.values())

    def _said(self, connection: _Connection, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        if word in (b"FIN", b"REQ"):
            connection.held.discard(rest[:16])
            connection.extra.discard(rest[:16])
        elif word == b"RDY" or line == b"CLS":
            self.rdys += 1
            connection.rdy_at = self._clock()
            connection.earlier.append((connection.rdy_at, connection.rdy))
            connection.rdy = int(rest) if rest else 0

    def _arrived(self, connection: _Connection, message_id: bytes) -> None:
        held, limit = len(connection.held), self._limit
        connection.held.add(message_id)
        self.received += 1
        total = self.in_flight
        self.most_in_flight = max(self.most_in_flight, total)
        if held < connection.rdy and total <= limit:
            return
        now = self._clock()
        on_its_way = [rdy for at, rdy in connection.earlier if at >= now - 2 * self._delay - SLACK]
        if held >= connection.rdy and held < max(on_its_way, default=0):
            self.explained[RDY_ON_ITS_WAY] += 1
            connection.extra.add(message_id)
        elif held < connection.rdy and total - limit <= sum(len(each.extra) for each in self._connections.values()):
            self.explained[ANOTHER_CAME] += 1
        elif held < connection.rdy and connection.rdy_at <= self._lowered_at and now <= self._lowered_at + SLACK:
            self.explained[NOT_PLANNED_YET] += 1
        else:
            self.unexplained.append(f"{total} of {limit} in flight, {held} before it at RDY {connection.rdy}")
