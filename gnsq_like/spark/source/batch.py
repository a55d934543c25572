"""The batch read: the messages that the channels have now, as a DataFrame that is read once.

A batch read has no checkpoint and no commit: Spark never tells a source that a job succeeded, so there is no right
moment to finish messages. ``peek`` finishes none: each nsqd gives its first messages and gets them back. ``drain``
finishes messages before Spark has them, so each is delivered at most once. Neither is a way to process messages; a
stream with the trigger AvailableNow is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from gnsq_like.errors import NSQError
from gnsq_like.spark.options import SourceOptions, parse_options
from gnsq_like.spark.source.batch_receiver import BatchReceiver
from gnsq_like.spark.source.daemons import Daemons
from gnsq_like.spark.source.plan import by_log, make_plan
from gnsq_like.spark.source.schema import check_schema
from gnsq_like.spark.staging.offsets import Offset, Part
from gnsq_like.spark.staging.segments import Rows, encode_segment
from gnsq_like.spark.user_errors import without_traceback


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
