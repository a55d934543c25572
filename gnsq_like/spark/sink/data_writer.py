"""The sink: a batch or a stream whose rows become messages.

The driver checks the options and the columns before anything runs. Each task publishes its rows as they come
(``publishing``). Spark repeats a failed task from its beginning, and published messages cannot be taken back: the
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
from gnsq_like.spark.user_errors import without_traceback

logger = logging.getLogger(__name__)

#: The columns of the sink, and their possible types.
_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "body": (BinaryType, StringType),
    "topic": (StringType,),
    "defer_ms": (IntegralType,),
}
_SELECT = "select body (BINARY or STRING) and, if wanted, topic (STRING) and defer_ms (BIGINT)"


class WrongColumns(UsageError):
    """A DataFrame that cannot be published; the text says which column is wrong."""


class WrongMode(UsageError):
    """A save mode or an output mode that NSQ does not support."""


@dataclass
class Published(WriterCommitMessage):
    """The report of one task: how many messages it published."""

    count: int


class _Writer:
    """The common part of the writers of batches and of streams.

    :param overwrite: whether the user asked for another mode than ``append``
    """

    #: How the user asks for the only possible mode.
    append = ""

    def __init__(self, schema: StructType, overwrite: bool, options: SinkOptions) -> None:
        if overwrite:
            raise WrongMode(f"a topic cannot be overwritten: write with {self.append}")
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of one task."""
        with without_traceback():
            return Published(publish_batches(iterator, self._options))


class NsqWriter(_Writer, DataSourceArrowWriter):
    """Publishes a batch."""

    append = 'mode("append")'

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how many messages stay published although the job failed."""
        _log_abort("the job", messages)


class NsqStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Publishes each batch of a stream."""

    append = 'outputMode("append")'

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: published messages need no commit."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log how many messages stay published although the batch failed."""
        _log_abort(f"batch {batchId}", messages)


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Read the options of a sink; raises InvalidOption."""
    # Spark adds the ignored ones to the options of a stream's sink.
    return parse_options(SinkOptions, given, ignored=("checkpointlocation", "path", "queryname"))


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise WrongColumns if a DataFrame cannot be published."""
    names = [name.lower() for name in schema.names]
    for name, field in zip(names, schema.fields, strict=True):
        if name not in _COLUMNS:
            raise WrongColumns(f"the sink has no column {field.name}: {_SELECT}")
        if names.count(name) > 1:
            raise WrongColumns(f"there is more than one column {name}: {_SELECT}")
        if not isinstance(field.dataType, _COLUMNS[name]):
            raise WrongColumns(f"the column {field.name} is of type {field.dataType.simpleString()}: {_SELECT}")
    if "body" not in names:
        raise WrongColumns(f"there is no column body: {_SELECT}")
    if "topic" not in names and options.topic is None:
        raise WrongColumns("there is neither an option topic nor a column topic: give one of them")


def _log_abort(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = [message.count for message in messages if isinstance(message, Published)]
    logger.warning(
        "%s failed: %d of its %d tasks had published all their rows (%d messages), the others perhaps some; nsqd keeps "
        "them, and publishing again makes duplicates",
        what,
        len(done),
        len(messages),
        sum(done),
    )
