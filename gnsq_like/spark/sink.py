"""The sink: a batch or a stream whose rows become messages.

The driver checks the options and the columns before anything runs. Each task publishes its rows as they come, as MPUBs
and DPUBs of a Producer. Spark repeats a failed task from its beginning, and published messages cannot be taken back:
the sink is at-least-once.

A batch is checked as a whole before its first row is published. Then its rows are grouped by topic. Rows that are not
deferred are published in MPUBs, limited by count and by bytes, several of them at a time; deferred rows are published
one by one (NSQ has no MPUB for them), pipelined. The Producer fails over between nsqds.

Everything runs within the call, in the caller's hub: a worker of Spark runs none of our code between calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from gevent.pool import Pool
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, IntegralType, StringType, StructType

from gnsq_like import Producer
from gnsq_like.errors import InvalidBody, InvalidOption, NotSent, NSQError, OutcomeUnknown, PublishError, UsageError
from gnsq_like.spark.format_options import (
    addresses,
    connection_options,
    duration_from,
    number,
    option,
    parse_options,
    size,
    text,
    words,
)
from gnsq_like.spark.user_errors import without_traceback
from gnsq_like.wire.names import encode_topic

logger = logging.getLogger(__name__)


#: How many MPUBs wait for their replies at a time: enough that nsqd never waits for the next one.
_WIDTH = 4
#: How many deferred messages wait for their replies at a time.
_DEFERRED_WIDTH = 1000
#: The bytes of an MPUB beside the bodies: for the count, and for the size of each body (docs/internals 1.10).
_COUNT_BYTES = 4
_SIZE_BYTES = 4
#: Milliseconds, beyond any sensible max-req-timeout of nsqd, whose default is an hour.
_MOST_DEFER_MS = 2**31
#: The columns of the sink, and their possible types.
_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "body": (BinaryType, StringType),
    "topic": (StringType,),
    "defer_ms": (IntegralType,),
}
_SELECT = "select body (BINARY or STRING) and, if wanted, topic (STRING) and defer_ms (BIGINT)"


class NotPublished(PublishError):
    """The sink gave up; the text has the reason, and the number of messages that may have been published."""


def topic_name(value: str) -> str:
    """The name of a topic."""
    name = text(value)
    encode_topic(name)
    return name


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Options for writing."""

    #: The topic of rows that do not name one.
    topic: str | None = option(topic_name, None)
    #: nsqlookupds: the sink publishes to all their nsqds, whatever topics these have.
    lookupd_http_addresses: tuple[str, ...] = option(words, ())
    #: Or the nsqds themselves.
    nsqd_tcp_addresses: tuple[str, ...] = option(addresses, ())
    #: The most messages in an MPUB.
    max_batch_messages: int = option(number(1), 1000)
    #: The most bytes in an MPUB; at most nsqd's max-body-size.
    max_batch_bytes: int = option(size(64), 5 << 20)
    #: The most bytes in a message; at most nsqd's max-msg-size.
    max_message_bytes: int = option(size(1), 1 << 20)
    #: Seconds for one attempt to publish: connecting, passing over nsqds that are away, and the reply.
    publish_timeout: float = option(duration_from("1ms"), 10.0)
    #: How often publishes that were not confirmed in that time are repeated.
    retries: int = option(number(0), 2)
    #: Options of the connections.
    nsq: Mapping[str, str] = field(default_factory=dict, metadata={"prefix": "nsq."})

    def __post_init__(self) -> None:
        if bool(self.lookupd_http_addresses) == bool(self.nsqd_tcp_addresses):
            raise InvalidOption(
                "nsqd_tcp_addresses", ",".join(self.nsqd_tcp_addresses), "give either it or lookupd_http_addresses"
            )
        connection_options(self.nsq)
        self.producer()

    @property
    def longest_body(self) -> int:
        """The most bytes that a body may have, so that it fits into an MPUB, too."""
        return min(self.max_message_bytes, self.max_batch_bytes - _COUNT_BYTES - _SIZE_BYTES)

    def producer(self) -> Producer:
        """Make a Producer with these options; raises InvalidOption, InvalidAddress."""
        connection = connection_options(self.nsq)
        return Producer(
            self.nsqd_tcp_addresses,
            lookupd_http_addresses=self.lookupd_http_addresses,
            own_thread=False,
            retry_unknown=True,
            timeout=self.publish_timeout,
            max_msg_bytes=self.max_message_bytes,
            max_body_bytes=self.max_batch_bytes,
            **{name: getattr(connection, name) for name in self.nsq},
        )


def publish_batches(batches: Iterator[pa.RecordBatch], options: SinkOptions) -> int:
    """Publish all rows and return their number. May switch.

    :raises UsageError: a row cannot be published; no row of its batch was
    :raises NotPublished: nsqd refused a publish, or did not confirm it
    """
    publishing = Publishing(options)
    try:
        for batch in batches:
            publishing.add(batch)
        return publishing.close()
    finally:
        publishing.drop()


class Publishing:
    """The publishing of one task."""

    def __init__(self, options: SinkOptions) -> None:
        self._producer = options.producer()
        self._options = options
        #: The number of confirmed messages.
        self._count = 0
        #: The first error.
        self._failure: NSQError | None = None

    def close(self) -> int:
        """Return how many messages were published."""
        self.drop()
        return self._count

    def drop(self) -> None:
        """Close the connections; publishes that still wait for a reply were given up."""
        self._producer.close(timeout=0)

    def add(self, batch: pa.RecordBatch) -> None:
        """Check a batch, then publish it; returns once nsqd has all of it. May switch."""
        if not batch.num_rows:
            return
        columns = {name.lower(): column for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        bodies = _bodies(columns["body"], self._options)
        defers = _defers(columns.get("defer_ms"))
        multi_publish = partial(self._producer.multi_publish, atomic=True)
        deferred = []
        pool = Pool(_WIDTH)
        for topic, rows in _by_topic(columns.get("topic"), self._options.topic, batch.num_rows):
            group = bodies if rows is None else bodies.take(rows)
            waits = defers if rows is None or defers is None else defers.take(rows)
            if waits is not None:
                later = pc.greater(waits, 0)
                deferred.append((topic, group.filter(later).to_pylist(), waits.filter(later).to_pylist()))
                group = group.filter(pc.invert(later))
            for chunk in _chunks(group, self._options):
                self._spawn(pool, topic, len(chunk), partial(multi_publish, topic, chunk))
        self._join(pool)
        pool = Pool(_DEFERRED_WIDTH)
        for topic, group, waits in deferred:
            for body, ms in zip(group, waits, strict=True):
                self._spawn(pool, topic, 1, partial(self._producer.publish, topic, body, defer=ms / 1000))
        self._join(pool)

    def _spawn(self, pool: Pool, topic: str, count: int, publish: Callable[[], object]) -> None:
        if self._failure is None:
            pool.spawn(self._publish, topic, count, publish)

    def _join(self, pool: Pool) -> None:
        pool.join()
        if self._failure is not None:
            raise self._failure

    def _publish(self, topic: str, count: int, publish: Callable[[], object]) -> None:
        """Publish so many messages, and repeat that if it is not confirmed. In a greenlet of a pool."""
        for left in range(self._options.retries, -1, -1):
            try:
                publish()
                self._count += count
                return
            except NSQError as exc:
                if not left or not isinstance(exc, NotSent | OutcomeUnknown):
                    self._failure = self._failure or self._given_up(topic, count, exc)
                    return

    def _given_up(self, topic: str, count: int, reason: NSQError) -> NotPublished:
        return NotPublished(
            f"{count} messages for topic {topic} were not published: {reason}. This task published {self._count} "
            f"others before, which stay; when Spark tries it again, they are published again"
        )


def _bodies(column: pa.Array, options: SinkOptions) -> pa.Array:
    """The bodies as bytes; raises InvalidBody if one cannot be published."""
    bodies = column.cast(pa.large_binary() if _is_large(column.type) else pa.binary())
    if bodies.null_count:
        raise InvalidBody(f"body is null in {bodies.null_count} of {len(bodies)} rows: leave them out")
    lengths = pc.binary_length(bodies)
    if empty := pc.sum(pc.equal(lengths, 0)).as_py():
        raise InvalidBody(f"body is empty in {empty} of {len(bodies)} rows: leave them out, nsqd refuses them")
    if (longest := pc.max(lengths).as_py()) > options.longest_body:
        raise InvalidBody(
            f"a body of {longest} bytes is too big: the most is {options.longest_body}, by max_message_bytes and "
            f"max_batch_bytes, which must fit nsqd's max-msg-size and max-body-size"
        )
    return bodies


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _defers(column: pa.Array | None) -> pa.Array | None:
    """How many milliseconds each row is deferred; None if no row is. Raises UsageError."""
    if column is None:
        return None
    waits = pc.fill_null(column, 0)
    extent = pc.min_max(waits).as_py()
    for wrong in (extent["min"], extent["max"]):
        if not 0 <= wrong < _MOST_DEFER_MS:
            raise UsageError(f"defer_ms is {wrong} in a row: it must be milliseconds, 0 or more, at most an hour or so")
    return waits if extent["max"] else None


def _by_topic(column: pa.Array | None, default: str | None, count: int) -> list[tuple[str, pa.Array | None]]:
    """The topics, each with the positions of its rows (None: all rows). Raises UsageError."""
    if column is None:
        assert default is not None, "check_columns() requires one of the two"
        return [(default, None)]
    if default is not None:
        column = pc.fill_null(column, default)
    elif column.null_count:
        raise UsageError(
            f"topic is null in {column.null_count} of {count} rows, and there is no option topic for those"
        )
    names = column.dictionary_encode()
    result = []
    for code, name in enumerate(names.dictionary.to_pylist()):
        encode_topic(name)
        result.append((name, pc.indices_nonzero(pc.equal(names.indices, code))))
    return result


def _chunks(bodies: pa.Array, options: SinkOptions) -> Iterator[list[bytes]]:
    """Divide bodies into lists for one MPUB each."""
    chunk: list[bytes] = []
    left = 0
    for body in bodies.to_pylist():
        needed = len(body) + _SIZE_BYTES
        if chunk and (needed > left or len(chunk) == options.max_batch_messages):
            yield chunk
            chunk = []
        if not chunk:
            left = options.max_batch_bytes - _COUNT_BYTES
        chunk.append(body)
        left -= needed
    if chunk:
        yield chunk


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

    :param overwrite: whether the user asked for another mode than "append"
    """

    def __init__(self, schema: StructType, overwrite: bool, options: SinkOptions) -> None:
        if overwrite:
            raise WrongMode(
                'a topic cannot be overwritten: write with mode("append"), or a stream with outputMode("append")'
            )
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of one task."""
        with without_traceback():
            return Published(publish_batches(iterator, self._options))


class NsqWriter(_Writer, DataSourceArrowWriter):
    """Publishes a batch."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how many messages stay published although the job failed."""
        _log_abort("the job", messages)


class NsqStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Publishes each batch of a stream."""

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
    for name, column in zip(names, schema.fields, strict=True):
        if name not in _COLUMNS:
            raise WrongColumns(f"the sink has no column {column.name}: {_SELECT}")
        if names.count(name) > 1:
            raise WrongColumns(f"there is more than one column {name}: {_SELECT}")
        if not isinstance(column.dataType, _COLUMNS[name]):
            raise WrongColumns(f"the column {column.name} is of type {column.dataType.simpleString()}: {_SELECT}")
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
