"""Whether each client's messages in flight stay within its max_in_flight, counted at the wire.

A message is in flight from when its last byte is on its way to the client until the client's FIN or REQ, or the end of
the connection; all seen at the client's side, so that an answer always comes before the RDY that it made room for.

nsqd delivers while it counts fewer messages in flight than RDY. It may still send a message too many where its count
or its RDY is another than the client's: RDY was lowered, and the command is on its way; or a message's time was over,
and nsqd no longer counts it while the client's handler still runs. Such a message is marked when it arrives on a
connection that holds its RDY already. Above max_in_flight, no more than the marked messages are excused; any other
means that the client granted too much.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

#: Seconds for RDY to arrive on an undisturbed way, on a busy machine.
RDY_TAKES = 1.0
#: Of a message's timeout: it begins before we see the message, by its time in nsqd's output buffer.
TIMEOUT_SHARE = 0.75

RDY_ON_ITS_WAY = "RDY was on its way"
TIMED_OUT = "nsqd's timeout was over"


@dataclass(frozen=True)
class _Sent:
    """A message that nsqd has sent."""

    at: float
    #: The RDY that nsqd may have followed.
    rdy: int


@dataclass
class _Connection:
    client: str = ""
    rdy: int = 0
    #: The highest RDY that nsqd may still follow, and when it was lowered.
    earlier_rdy: int = 0
    lowered_at: float = float("-inf")
    #: The messages that have not reached the client yet.
    sent: dict[bytes, _Sent] = field(default_factory=dict)
    #: When nsqd sent those in flight.
    held: dict[bytes, float] = field(default_factory=dict)
    #: Why those of them came that came although as many as RDY were held.
    excused: dict[bytes, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Excess:
    """A client that had more messages in flight than it may, without an excuse."""

    client: str
    at: float
    in_flight: int
    max_in_flight: int
    excused: int


class Window:
    """Counts messages in flight of each client.

    :param msg_timeout: seconds after which nsqd takes a message back
    """

    def __init__(self, msg_timeout: float) -> None:
        self._msg_timeout = msg_timeout
        self._limits: dict[str, int] = {}
        self._connections: dict[object, _Connection] = {}
        #: By client, for those that have connections.
        self._of: dict[str, set[object]] = {}
        #: Messages above the limit with an excuse, by their excuse; and the most at one time.
        self.excused: Counter[str] = Counter()
        self.most_excused = 0
        self.excesses: list[Excess] = []
        #: (nsqd, when, RDY) of messages that nsqd should not have sent.
        self.beyond_rdy: list[tuple[int, float, int]] = []
        #: Until when each nsqd's way is disturbed, so that RDY takes longer.
        self.disturbed_until: dict[int, float] = {}

    def limit(self, client: str, max_in_flight: int) -> None:
        """A client begins."""
        self._limits[client] = max_in_flight

    def identified(self, connection: object, client: str) -> None:
        self._connections[connection] = _Connection(client)
        self._of.setdefault(client, set()).add(connection)

    def granted(self, connection: object, rdy: int, at: float) -> None:
        found = self._connections.get(connection)
        if found is None:
            return
        if rdy < found.rdy:
            assert isinstance(connection, tuple)
            if at > max(found.lowered_at, self.disturbed_until.get(connection[0], 0.0)) + RDY_TAKES:
                found.earlier_rdy = 0  # the one before has arrived
            found.earlier_rdy = max(found.earlier_rdy, found.rdy)
            found.lowered_at = at
        found.rdy = rdy

    def delivered(self, connection: object, message_id: bytes, at: float) -> None:
        """nsqd has sent it; from then on its timeout runs."""
        found = self._connections.get(connection)
        if found is not None:
            found.sent[message_id] = _Sent(at, self._followed(connection, found, at))

    def _followed(self, connection: object, found: _Connection, at: float) -> int:
        """The highest RDY that nsqd may follow at that time."""
        is_on_its_way = self._is_disturbed(connection, at) or at <= found.lowered_at + RDY_TAKES
        return max(found.rdy, found.earlier_rdy if is_on_its_way else 0)

    def _is_disturbed(self, connection: object, at: float) -> bool:
        assert isinstance(connection, tuple)
        return bool(at <= self.disturbed_until.get(connection[0], 0.0) + RDY_TAKES)

    def received(self, connection: object, message_id: bytes, at: float) -> None:
        found = self._connections.get(connection)
        if found is None:
            return
        sent = found.sent.pop(message_id, None) or _Sent(at, self._followed(connection, found, at))
        if len(found.held) >= found.rdy and message_id not in found.held:
            excuse = self._excuse(connection, found, sent, at)
            if excuse:
                found.excused[message_id] = excuse
            else:
                self.beyond_rdy.append((connection[0], at, found.rdy))  # type: ignore[index]
        found.held[message_id] = sent.at
        self._check(found.client, message_id, found, at)

    def _excuse(self, connection: object, found: _Connection, sent: _Sent, at: float) -> str:
        """Why nsqd sent another message, though RDY is held; empty if there is no reason."""
        in_time = sum(at - since < TIMEOUT_SHARE * self._msg_timeout for since in found.held.values())
        if in_time < found.rdy:
            return TIMED_OUT
        if in_time < max(sent.rdy, self._followed(connection, found, at)):
            return RDY_ON_ITS_WAY
        return TIMED_OUT if self._is_disturbed(connection, at) else ""

    def _check(self, client: str, message_id: bytes, found: _Connection, at: float) -> None:
        limit = self._limits.get(client)
        if limit is None:
            return
        others = [self._connections[each] for each in self._of[client]]
        in_flight = sum(len(each.held) for each in others)
        if in_flight <= limit:
            return
        excused = sum(len(each.excused) for each in others)
        self.most_excused = max(self.most_excused, min(excused, in_flight - limit))
        if in_flight - limit > excused:
            self.excesses.append(Excess(client, at, in_flight, limit, excused))
        elif message_id in found.excused:
            self.excused[found.excused[message_id]] += 1

    def answered(self, connection: object, message_id: bytes) -> None:
        found = self._connections.get(connection)
        if found is not None:
            found.held.pop(message_id, None)
            found.excused.pop(message_id, None)

    def client_closed(self, connection: object) -> None:
        found = self._connections.pop(connection, None)
        if found is not None:
            self._of[found.client].discard(connection)
