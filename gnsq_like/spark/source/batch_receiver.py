"""Messages of one nsqd for a batch read: received, answered, and the connection closed, all in one call.

Spark may leave a worker waiting for as long as it likes between two batches of rows, and nothing of ours runs
then. So no connection is open when rows are handed over; each call makes one. The order at the end is the one
that leaves nothing in flight: RDY 0, the answers, CLS; nsqd's CLOSE_WAIT says that all of that was executed;
what came in between is requeued.
"""

from __future__ import annotations

import logging

from gnsq_like import Connection
from gnsq_like.errors import NSQError
from gnsq_like.spark.options import SourceOptions
from gnsq_like.spark.source.message_buffer import MessageBuffer
from gnsq_like.spark.staging.segments import RawMessage

logger = logging.getLogger(__name__)


class BatchReceiver:
    """One connection's worth of messages.

    :param address: the nsqd
    :param wanted: messages at most; never more than twice ``segmentMessages`` and nsqd's max_rdy_count
    :param keep: whether the messages stay in nsqd: requeued rather than finished
    """

    def __init__(self, address: str, options: SourceOptions, wanted: int, *, keep: bool) -> None:
        self._options = options
        self._wanted = wanted
        self._keep = keep
        self._gathering = MessageBuffer(options)
        self._connection = Connection(
            address,
            options.connection_options(),
            on_messages=self._gathering.take,
            on_close=self._gathering.note_end,
        )

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
            self._gathering.wait(self._wanted, expected=True)
            connection.set_rdy(0)
            messages = self._gathering.pop()
            if not connection.alive and not self._keep:
                logger.warning("%s; it gives out %d messages again", connection.error, len(messages))
                return []
            self._answer(messages)
            return messages
        finally:
            connection.close()

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
        self._give_back(self._gathering.pop())

    def _give_back(self, messages: list[RawMessage]) -> None:
        for message in messages:
            self._connection.requeue(message[2])
