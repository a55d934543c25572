"""Messages of one nsqd for a batch read: received, answered, and the connection closed, all in one call.

Spark may pause a worker between two batches of rows for any length of time, during which none of our code runs. So no
connection is open while Spark has rows; each call makes a new one. The order at the end leaves nothing in flight:
RDY 0, the answers, CLS; nsqd's CLOSE_WAIT confirms that all of these were executed; messages that arrived in between
are requeued.
"""

from __future__ import annotations

import logging

from gnsq_like import Connection
from gnsq_like.errors import NSQError
from gnsq_like.spark.options import SourceOptions
from gnsq_like.spark.source.message_buffer import MessageBuffer
from gnsq_like.spark.staging.offsets import TopicChannel
from gnsq_like.spark.staging.segments import RawMessage

logger = logging.getLogger(__name__)


class BatchReceiver:
    """Receives as many messages as one connection holds.

    :param address: the nsqd
    :param of: the topic and the channel
    :param wanted: the most messages to receive; two segments and nsqd's max_rdy_count are limits, too
    :param keep: whether the messages stay in nsqd: they are requeued then rather than finished
    """

    def __init__(self, address: str, of: TopicChannel, options: SourceOptions, wanted: int, *, keep: bool) -> None:
        self._of = of
        self._options = options
        self._wanted = wanted
        self._keep = keep
        self._buffer = MessageBuffer(options)
        self._connection = Connection(
            address,
            options.connection_options(),
            on_messages=self._buffer.take,
            on_close=self._buffer.note_end,
        )

    def run(self) -> list[RawMessage]:
        """Receive, answer and return the messages. May switch.

        If the connection is lost under way, nsqd delivers unanswered messages again, so none are returned then, unless
        they are to be kept anyway.

        :raises ConnectionFailed: nsqd cannot be reached
        """
        connection = self._connection
        try:
            negotiated = connection.connect()
            connection.subscribe(*self._of)
            self._wanted = min(self._wanted, 2 * self._options.segment_messages, negotiated.max_rdy_count)
            connection.set_rdy(self._wanted)
            self._buffer.wait(self._wanted, expected=True)
            connection.set_rdy(0)
            messages = self._buffer.pop()
            if not connection.alive and not self._keep:
                logger.warning("%s; nsqd will deliver %d messages again", connection.error, len(messages))
                return []
            self._answer(messages)
            return messages
        finally:
            connection.close()

    def _answer(self, messages: list[RawMessage]) -> None:
        """FIN or requeue the messages, and close in good order. May switch."""
        connection = self._connection
        if self._keep:
            self._requeue(messages)
        else:
            connection.finish_many([message[2] for message in messages])
        try:
            connection.close_subscription()
        except NSQError as exc:
            logger.warning("%s; nsqd delivers again whatever it had not finished by then", exc)
        self._requeue(self._buffer.pop())

    def _requeue(self, messages: list[RawMessage]) -> None:
        for message in messages:
            self._connection.requeue(message[2])
