"""Takes messages out of a channel, as a consumer does: works with every kind of nsqd.

No message is answered while RDY is set, so nsqd sends no more than RDY: exactly ``count`` can be taken, and the rest
stays in the channel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from gnsq_like.connection.connection import Connection
from gnsq_like.options import ConnectionOptions
from gnsq_like.runtime.hub_calls import sleep
from gnsq_like.testing.hub import kit_hub
from gnsq_like.testing.waits import INTERVAL
from gnsq_like.wire.frames import RawMessage

#: How many times in a row nothing must be left: between two of its queues the real nsqd does not count a message.
_LOOKS = 2

#: Returns, for a client's id, how many messages wait in the channel and its topic, and how many the client has in
#: flight.
Look = Callable[[str], tuple[int, int]]


@dataclass(frozen=True)
class TakenMessage:
    """A message taken out of a channel."""

    body: bytes
    id: str
    #: Deliveries, including this one.
    attempts: int
    #: Time of the publish, in Unix seconds.
    timestamp: float


class _Consumer:
    """A consumer that keeps its messages. Call its methods in its hub; ``held`` may be read in any thread."""

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

    def ask_for(self, count: int | None) -> int:
        """Ask for that many; None for as many as nsqd allows. Returns the RDY sent."""
        most = self._connection.negotiated.max_rdy_count
        rdy = most if count is None else min(most, count)
        self._connection.set_rdy(rdy)
        return rdy

    def end_subscription(self) -> None:
        """On return no more messages arrive, and all that nsqd has sent are in ``held``."""
        self._connection.close_subscription(self._timeout)

    def answer(self, finish: bool) -> list[RawMessage]:
        """Finish or requeue all held messages, and return them."""
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
    """Take messages; returns them, and whether they are all that were wanted. May switch.

    :param count: how many; None for all that wait
    :param finish: False requeues them at the end; they are also requeued if fewer than ``count`` arrived in time
    :param timeout: seconds
    """
    deadline = time.monotonic() + timeout
    client_id = f"testing-{uuid4().hex}"
    taken: list[RawMessage] = []
    with kit_hub() as hub:
        consumer = _Consumer(address, client_id, timeout)
        try:
            hub.run(consumer.subscribe, topic, channel)
            is_complete = False
            while not is_complete and time.monotonic() < deadline:
                rdy = hub.run(consumer.ask_for, None if count is None else count - len(taken))
                is_complete = _wait(consumer, rdy, count is None, lambda: look(client_id), deadline)
                is_complete = is_complete and (count is None or len(taken) + len(consumer.held) == count)
                if finish and not is_complete and len(consumer.held) == rdy:
                    taken += hub.run(consumer.answer, True)
            hub.run(consumer.end_subscription)
            taken += hub.run(consumer.answer, finish and is_complete)
            while look(client_id)[1] and time.monotonic() < deadline + timeout:
                sleep(INTERVAL)
        finally:
            hub.run(consumer.close)
    messages = [
        TakenMessage(body, message_id.decode(), attempts, timestamp / 1e9)
        for timestamp, attempts, message_id, body in taken
    ]
    return messages, is_complete


def _wait(
    consumer: _Consumer, rdy: int, until_nothing_waits: bool, look: Callable[[], tuple[int, int]], deadline: float
) -> bool:
    """Wait until ``rdy`` messages are held, or until nothing waits; returns whether no more can arrive."""
    looks = 0
    while True:
        held = len(consumer.held)
        if until_nothing_waits:
            looks = looks + 1 if look() == (0, held) else 0
            if looks == _LOOKS:
                return True
        if held == rdy:
            return not until_nothing_waits
        if time.monotonic() >= deadline:
            return False
        sleep(INTERVAL)
