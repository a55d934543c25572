"""Taking messages out of a channel, as a consumer: works on every kind of nsqd.

While RDY stands nothing is answered, so no more messages come than RDY says: exactly ``count`` can be taken,
and the rest stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from uuid import uuid4

from gnsq_like.connection.connection import Connection
from gnsq_like.options import ConnectionOptions
from gnsq_like.testing.place import Place
from gnsq_like.testing.waiting import INTERVAL, sleep
from gnsq_like.wire.frames import RawMessage

#: Looks in a row that must find nothing more: between two queues of the real nsqd a message is counted nowhere.
_LOOKS = 2

#: Gives, for a client's id, how many messages wait in the channel and its topic, and how many the client has in
#: flight.
Look = Callable[[str], tuple[int, int]]


@dataclass(frozen=True)
class TakenMessage:
    """A message that a test took."""

    body: bytes
    id: str
    #: Deliveries, this one counted.
    attempts: int
    #: When it was published, in Unix seconds.
    timestamp: float


class _Consumer:
    """A consumer that keeps what comes. Its methods are called in its hub; ``held`` may be read anywhere."""

    def __init__(self, address: str, client_id: str, timeout: float) -> None:
        #: Messages in flight.
        self.held: list[RawMessage] = []
        self._timeout = timeout
        # Without a buffer nsqd writes each message at once.
        options = ConnectionOptions(
            client_id=client_id, output_buffer_size=-1, output_buffer_timeout=-1, connect_timeout=timeout
        )
        self._connection = Connection(address, options, on_messages=lambda _, messages: self.held.extend(messages))

    def subscribe(self, topic: str, channel: str) -> None:
        self._connection.connect()
        self._connection.subscribe(topic, channel, self._timeout)

    def let(self, count: int | None) -> int:
        """Let so many come; None for as many as nsqd allows. Gives the RDY that was sent."""
        most = self._connection.negotiated.max_rdy_count
        rdy = most if count is None else min(most, count)
        self._connection.set_rdy(rdy)
        return rdy

    def end_subscription(self) -> None:
        """Afterwards no more messages come, and all that were sent are held."""
        self._connection.close_subscription(self._timeout)

    def answer(self, finish: bool) -> list[RawMessage]:
        """Finish or requeue all that are held, and give them."""
        answered = list(self.held)
        self.held.clear()
        self._connection.set_rdy(0)
        for _, _, message_id, _ in answered:
            if finish:
                self._connection.finish(message_id)
            else:
                self._connection.requeue(message_id)
        return answered

    def close(self) -> None:
        self._connection.close()


def take(
    address: str, topic: str, channel: str, *, count: int | None, finish: bool, timeout: float, look: Look
) -> tuple[list[TakenMessage], bool]:
    """Take messages; gives them, and whether that was all that was wanted. May switch.

    :param count: how many; None for all that are there
    :param finish: else they are requeued in the end, as they are when not all came in time
    :param timeout: seconds
    """
    deadline = monotonic() + timeout
    client_id = f"testing-{uuid4().hex}"
    taken: list[RawMessage] = []
    with Place() as place:
        consumer = _Consumer(address, client_id, timeout)
        try:
            place.run(consumer.subscribe, topic, channel)
            is_complete = False
            while not is_complete and monotonic() < deadline:
                rdy = place.run(consumer.let, None if count is None else count - len(taken))
                is_complete = _wait(consumer, rdy, count is None, lambda: look(client_id), deadline)
                is_complete = is_complete and (count is None or len(taken) + len(consumer.held) == count)
                if finish and not is_complete and len(consumer.held) == rdy:
                    taken += place.run(consumer.answer, True)
            place.run(consumer.end_subscription)
            taken += place.run(consumer.answer, finish and is_complete)
            while look(client_id)[1] and monotonic() < deadline + timeout:
                sleep(INTERVAL)
        finally:
            place.run(consumer.close)
    messages = [
        TakenMessage(body, message_id.decode(), attempts, timestamp / 1e9)
        for timestamp, attempts, message_id, body in taken
    ]
    return messages, is_complete


def _wait(
    consumer: _Consumer, rdy: int, until_nothing_waits: bool, look: Callable[[], tuple[int, int]], deadline: float
) -> bool:
    """Wait until ``rdy`` messages are held, or until nothing waits: whether no more are to come."""
    looks = 0
    while True:
        held = len(consumer.held)
        if until_nothing_waits:
            looks = looks + 1 if look() == (0, held) else 0
            if looks == _LOOKS:
                return True
        if held == rdy:
            return not until_nothing_waits
        if monotonic() >= deadline:
            return False
        sleep(INTERVAL)
