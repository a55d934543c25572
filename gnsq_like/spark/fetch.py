"""Messages of one nsqd for a batch read: received, answered, and the connection closed, all in one call.

Spark may leave a worker waiting for as long as it likes between two batches of rows, and nothing of ours runs
then. So no connection is open when rows are handed over; each call makes one. The order at the end is the one
that leaves nothing in flight: RDY 0, the answers, CLS; nsqd's CLOSE_WAIT says that all of that was executed;
what came in between is requeued.
"""

from __future__ import annotations

import logging
import time

from gevent.event import Event

from gnsq_like import Connection
from gnsq_like.errors import NSQError
from gnsq_like.spark.options import SourceOptions
from gnsq_like.spark.segments import RawMessage

logger = logging.getLogger(__name__)


class Fetch:
    """One connection's worth of messages.

    :param address: the nsqd
    :param wanted: messages at most; never more than twice ``segmentMessages`` and nsqd's max_rdy_count
    :param keep: whether the messages stay in nsqd: requeued rather than finished
    """

    def __init__(self, address: str, options: SourceOptions, wanted: int, *, keep: bool) -> None:
        self._options = options
        self._wanted = wanted
        self._keep = keep
        self._connection = Connection(
            address,
            options.connection_options(),
            on_messages=self._take,
            on_close=lambda connection, error: self._enough.set(),
        )
        #: Received; written by the connection's greenlet, as the next two.
        self._messages: list[RawMessage] = []
        self._bytes = 0
        #: Monotonic time of the last messages; 0 before the first.
        self._arrived = 0.0
        #: Set when all that is wanted is there, or nothing more can come.
        self._enough = Event()

    def run(self) -> list[RawMessage]:
        """The messages, answered. May switch.

        When the connection is lost under way, nsqd gives out again what was not answered: of messages that are
        not kept none is returned then.

        :raises ConnectionFailed: no connection came about
        """
        connection = self._connection
        try:
            negotiated = connection.connect()
            connection.subscribe(self._options.topic, self._options.channel)
            self._wanted = min(self._wanted, 2 * self._options.segment_messages, negotiated.max_rdy_count)
            connection.set_rdy(self._wanted)
            self._gather()
            connection.set_rdy(0)
            messages, self._messages = self._messages, []
            if not connection.alive and not self._keep:
                logger.warning("%s; it gives out %d messages again", connection.error, len(messages))
                return []
            self._answer(messages)
            return messages
        finally:
            connection.close()

    def _take(self, connection: Connection, messages: list[RawMessage]) -> None:
        # In the connection's greenlet; never switches.
        self._messages += messages
        self._bytes += sum([len(message[3]) for message in messages])
        self._arrived = time.monotonic()
        if len(self._messages) >= self._wanted or self._bytes >= self._options.segment_bytes:
            self._enough.set()

    def _gather(self) -> None:
        """Wait until all is there, none came for a while, or it took too long. May switch."""
        deadline = time.monotonic() + self._options.fetch_max_wait
        while True:
            until = min(deadline, self._arrived + self._options.fetch_idle) if self._arrived else deadline
            left = until - time.monotonic()
            if left <= 0 or self._enough.wait(left):
                return

    def _answer(self, messages: list[RawMessage]) -> None:
        """FIN or REQ, and the orderly end. May switch."""
        connection = self._connection
        if self._keep:
            self._give_back(messages)
        else:
            connection.finish_many([message[2] for message in messages])
        try:
            connection.close_subscription()
        except NSQError as exc:
            logger.warning("%s; what it had not executed by then, nsqd gives out again", exc)
        self._give_back(self._messages)

    def _give_back(self, messages: list[RawMessage]) -> None:
        for message in messages:
            self._connection.requeue(message[2])
