"""The batch read: a look at the messages that the channels have now, as a DataFrame.

A batch read has no checkpoint and no commit: Spark never tells a source that a job succeeded, so there is no right
moment to finish messages. It finishes none: each nsqd gives its first messages and gets them back. To process messages,
read a stream with the trigger AvailableNow.

Spark may pause a worker between two batches of rows for any length of time, during which none of our code runs. So the
connection is closed before Spark has rows. The order at its end leaves nothing in flight: RDY 0, the requeues, CLS;
nsqd's CLOSE_WAIT confirms that all of these were executed; messages that arrived in between are requeued.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from gnsq_like import Connection
from gnsq_like.errors import NSQError
from gnsq_like.spark.format_options import SourceOptions, parse_options
from gnsq_like.spark.source.by_columns import check_columns, rows_of
from gnsq_like.spark.source.executor import MessageBuffer, give_back
from gnsq_like.spark.source.nsqds import Nsqds
from gnsq_like.spark.source.plan import by_log, make_plan
from gnsq_like.spark.staging.offsets import Offset, Part, TopicChannel
from gnsq_like.spark.staging.records import RawMessage, encode_segment, segment_rows
from gnsq_like.spark.user_errors import without_traceback

logger = logging.getLogger(__name__)


class NsqBatchReader(DataSourceReader):
    """Shows the first messages of each nsqd. The constructor raises InvalidOption, WrongSchema."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_options(SourceOptions, given)
        check_columns(schema, self._options)
        #: Spark's type of the rows.
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """One for each nsqd and topic with messages."""
        options = self._options
        with without_traceback():
            daemons = Nsqds(options)
            daemons.prepare()
            plan = make_plan(
                daemons.settled_depths(),
                max_messages=options.max_messages,
                max_bytes=options.max_bytes,
                # Two tasks at one channel could see the same messages.
                min_partitions=1,
                segment_messages=options.segment_messages,
            )
        now = int(time.time() * 1e6)
        parts = [part for of, shares in by_log(plan).items() for part in Offset("", 0, shares).parts(of)]
        return [InputPartition(replace(part, seen_us=now)) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a part, at most those that one connection holds."""
        if not isinstance(partition.value, Part):  # Spark makes a partition of its own if there are none
            return
        part, options = partition.value, self._options
        with without_traceback():
            messages = peek(part.address, part.of, options, part.messages)
            if messages:
                plain = segment_rows(encode_segment(messages), options.plain_columns, part)
                yield from rows_of([plain], part, options, self._schema)


# -- one connection -------------------------------------------------------------------------------------


def peek(address: str, of: TopicChannel, options: SourceOptions, wanted: int) -> list[RawMessage]:
    """Receive as many messages as one connection holds, and give them back. May switch.

    :param address: the nsqd
    :param of: the topic and the channel
    :param wanted: the most messages to receive; two segments and nsqd's max_rdy_count are limits, too
    :raises ConnectionFailed: nsqd cannot be reached
    """
    buffer = MessageBuffer(options)
    connection = Connection(address, options.connection_options(), on_messages=buffer.take, on_close=buffer.note_end)
    try:
        negotiated = connection.connect()
        connection.subscribe(*of)
        wanted = min(wanted, 2 * options.segment_messages, negotiated.max_rdy_count)
        connection.set_rdy(wanted)
        buffer.wait(wanted, expected=True)
        messages = buffer.pop()
        give_back(connection, messages)
        try:
            connection.close_subscription()
        except NSQError as exc:
            logger.warning("%s; nsqd delivers again, after msg_timeout, whatever was in flight", exc)
        for message in buffer.pop():
            connection.requeue(message[2])
        return messages
    finally:
        connection.close()
