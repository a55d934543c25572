"""The batch read: the messages that the channels have now, as a DataFrame that is read once.

A batch read has no checkpoint and no commit: Spark never tells a source that a job succeeded, so there is no right
moment to finish messages. ``peek`` finishes none: each nsqd gives its first messages and gets them back. ``drain``
finishes messages before Spark has them, so each is delivered at most once. Neither is a way to process messages; a
stream with the trigger AvailableNow is.

Spark may pause a worker between two batches of rows for any length of time, during which none of our code runs. So no
connection is open while Spark has rows; each :class:`BatchReceiver` makes a new one. The order at its end leaves
nothing in flight: RDY 0, the answers, CLS; nsqd's CLOSE_WAIT confirms that all of these were executed; messages that
arrived in between are requeued.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from gnsq_like import Connection
from gnsq_like.errors import NSQError
from gnsq_like.spark.options import SourceOptions, check_schema, parse_options
from gnsq_like.spark.source.daemons import Daemons
from gnsq_like.spark.source.message_buffer import MessageBuffer
from gnsq_like.spark.source.plan import by_log, make_plan
from gnsq_like.spark.staging.offsets import Offset, Part, TopicChannel
from gnsq_like.spark.staging.segments import RawMessage, Rows, encode_segment
from gnsq_like.spark.user_errors import without_traceback

logger = logging.getLogger(__name__)


def make_batch_reader(schema: StructType, given: Mapping[str, str]) -> NsqBatchReader:
    """Make the reader for these options; raises InvalidOption, WrongSchema."""
    options = parse_options(SourceOptions, given)
    check_schema(schema, options)
    return NsqBatchReader(options)


class NsqBatchReader(DataSourceReader):
    """Peeks or drains, as the option ``batch_mode`` says."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._keep = options.batch_mode == "peek"

    def partitions(self) -> list[InputPartition]:
        """One for each nsqd and topic with messages; more for a drain if ``min_partitions`` asks for more."""
        options = self._options
        with without_traceback():
            daemons = Daemons(options)
            daemons.prepare()
            plan = make_plan(
                daemons.settled_depths(),
                max_messages=options.max_messages,
                max_bytes=options.max_bytes,
                # Two tasks that peek at one channel could see the same messages.
                min_partitions=1 if self._keep else options.min_partitions,
                segment_messages=options.segment_messages,
            )
        return [InputPartition(part) for of, shares in by_log(plan).items() for part in Offset("", 0, shares).parts(of)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a part; for a peek at most those that one connection holds."""
        if isinstance(partition.value, Part):  # Spark makes a partition of its own if there are none
            with without_traceback():
                yield from self._read(partition.value)

    def _read(self, part: Part) -> Iterator[pa.RecordBatch]:
        options = self._options
        rows = Rows(options.columns, *part.of, part.address)
        rest, rest_bytes = part.messages, part.bytes
        while rest > 0 and (rest_bytes > 0 or not part.bytes):
            try:
                messages = BatchReceiver(part.address, part.of, options, rest, keep=self._keep).run()
            except NSQError:
                if rest == part.messages:
                    raise
                return  # a failed task would lose the messages so far, which are finished
            if not messages:
                return
            yield rows.of(encode_segment(messages))
            if self._keep:
                return
            rest -= len(messages)
            rest_bytes -= sum([len(message[3]) for message in messages])


# -- one connection -------------------------------------------------------------------------------------


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
