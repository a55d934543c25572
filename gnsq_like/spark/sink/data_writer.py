"""The sink: a batch or a stream whose rows become messages.

The driver checks the options and the columns before anything runs. Each task publishes its rows as they come
(``publishing``). Spark tries a failed task again from its beginning, and what nsqd has cannot be taken back: the
sink is at-least-once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, IntegralType, StringType, StructType

from gnsq_like.errors import UsageError
from gnsq_like.spark.options import parse_options
from gnsq_like.spark.sink.publishing import SinkOptions, publish_batches
from gnsq_like.spark.user_errors import plain_errors

logger = logging.getLogger(__name__)

#: The columns that a sink understands, and the types they may have.
_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "body": (BinaryType, StringType),
    "topic": (StringType,),
    "defer_ms": (IntegralType,),
}
_SELECT = "select body (BINARY or STRING) and, where wanted, topic (STRING) and defer_ms (BIGINT)"


class WrongColumns(UsageError):
    """A DataFrame that cannot be published; the text says which column is wrong."""


class WrongMode(UsageError):
    """A save mode or an output mode that NSQ cannot have."""


@dataclass
class Published(WriterCommitMessage):
    """What one task published."""

    count: int


class NsqWriter(DataSourceArrowWriter):
    """Publishes a batch."""

    def __init__(self, schema: StructType, overwrite: bool, options: SinkOptions) -> None:
        if overwrite:
            raise WrongMode('a topic cannot be overwritten: write with mode("append")')
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of one task."""
        with plain_errors():
            return Published(publish_batches(iterator, self._options))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say what stays published although the job failed."""
        _tell_aborted("the job", messages)


class NsqStreamWriter(DataSourceStreamArrowWriter):
    """Publishes each batch of a stream."""

    def __init__(self, schema: StructType, overwrite: bool, options: SinkOptions) -> None:
        if overwrite:
            raise WrongMode('a topic cannot be overwritten: write with outputMode("append")')
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of one task."""
        with plain_errors():
            return Published(publish_batches(iterator, self._options))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: what was published needs no commit."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Say what stays published although the batch failed."""
        _tell_aborted(f"batch {batchId}", messages)


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a sink; raises InvalidOption."""
    # Spark adds these to the options of a stream's sink.
    return parse_options(SinkOptions, given, ignored=("checkpointlocation", "path", "queryname"))


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises WrongColumns for a DataFrame that cannot be published."""
    names = [name.lower() for name in schema.names]
    for name, field in zip(names, schema.fields, strict=True):
        if name not in _COLUMNS:
            raise WrongColumns(f"the sink has no column {field.name}: {_SELECT}")
        if names.count(name) > 1:
            raise WrongColumns(f"the column {name} is there more than once: {_SELECT}")
        if not isinstance(field.dataType, _COLUMNS[name]):
            raise WrongColumns(f"the column {field.name} is of type {field.dataType.simpleString()}: {_SELECT}")
    if "body" not in names:
        raise WrongColumns(f"there is no column body: {_SELECT}")
    if "topic" not in names and options.topic is None:
        raise WrongColumns("there is neither an option topic nor a column topic: give one of them")


def _tell_aborted(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = [message.count for message in messages if isinstance(message, Published)]
    logger.warning(
        "%s failed: %d of its %d tasks had published all their rows (%d messages), the others maybe some; nsqd keeps "
        "them, and publishing again makes duplicates",
        what,
        len(done),
        len(messages),
        sum(done),
    )
