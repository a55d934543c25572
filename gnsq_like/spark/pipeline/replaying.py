"""Replays archived or rejected messages: through the present schema into another table, or into a topic.

Each batch becomes a batch of the new table, with the same name, in the hour of its arrival. So a replay may be
repeated: plain files are overwritten, a table with commits skips batches that it has, and each message is there once. A
topic takes nothing back: there, messages of a replay that is repeated come again.

The archive has every message as it came. Each batch is archived before any of it is put elsewhere, so whatever is in a
table was archived. Rejected messages are kept in batches of the same kind, and replayed under other names, so that they
do not replace the archive's batch of that number, of which they are a part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from gnsq_like.errors import InvalidOption, NSQError
from gnsq_like.spark import register
from gnsq_like.spark.format_options import ddl_of, parse_options
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import PipelineFailed, sentence
from gnsq_like.spark.pipeline.maintenance import hours_of
from gnsq_like.spark.pipeline.reachable import check_sink
from gnsq_like.spark.pipeline.run import check_functions, session_for
from gnsq_like.spark.pipeline.selecting import first_line, is_sql, transformed
from gnsq_like.spark.pipeline.tasks import run_in_tasks
from gnsq_like.spark.pipeline.transform import BODY, KEPT
from gnsq_like.spark.sink import Publishing, SinkOptions
from gnsq_like.spark.tables.data_file import directories

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gnsq_like.spark.pipeline.metrics import MinuteMetrics


@dataclass(frozen=True, slots=True)
class Replayed:
    """The progress of a replay."""

    batches: int = 0
    #: All messages, and how many of them were rejected.
    messages: int = 0
    rejected: int = 0


def replay(
    pipeline: Pipeline,
    *,
    start: datetime,
    end: datetime,
    rejected: bool = False,
    where: str = "",
    into: str = "",
    topic: str = "",
    spark: SparkSession | None = None,
    master: str | None = None,
    log_level: str = "OFF",
    watch: Callable[[Replayed], None] = lambda replayed: None,
) -> Replayed:
    """Replay the messages that arrived from ``start`` to before ``end``. May switch, and blocks.

    :param rejected: those that the pipeline has rejected, instead of all in the archive
    :param where: an SQL condition on the table's columns, such as "topic = 'clicks'"
    :param into: the place of a table for them, as the pipeline would have written it now; what does not fit, and
        metrics, are beside it, in ``-rejected`` and ``-metrics``
    :param topic: or the topic to publish their bodies to, at the source's nsqds
    :param spark: the session; without one, a new one as for :func:`run_pipeline`
    :param watch: called after each batch
    :raises InvalidOption: an argument is wrong, or the pipeline has no archive
    :raises NotBegun: Spark does not start
    :raises PipelineFailed: it ended by itself; the same replay again completes it
    """
    if not rejected and not pipeline.archive:
        raise InvalidOption("archive", "", "the pipeline has no archive; give it one for replays of later messages")
    if bool(into) == bool(topic):
        raise InvalidOption("into", into, "give either a table or a topic")
    if start.tzinfo is None or end.tzinfo is None or not start < end:
        raise InvalidOption("from", start.isoformat(), f"it must be before {end.isoformat()}, both with a time zone")
    target = _into_table(pipeline, into, rejected) if into else pipeline
    check_functions(pipeline)
    sink = None
    if topic:
        sink = parse_options(SinkOptions, pipeline.at_source({"topic": topic}))
        check_sink(sink)
    with session_for(pipeline, spark, master, log_level) as session:
        register(session)
        replayed = Replayed()
        try:
            step = partial(_into, target) if sink is None else partial(_publish, sink)
            for batch in _complete_batches(pipeline, "rejected" if rejected else "archive", start, end):
                replayed = step(_rows(session, batch.directory, start, end, where), batch, replayed)
                watch(replayed)
        except NSQError:
            raise
        except Exception as exc:
            said = sentence(exc, target.place("data"))
            raise PipelineFailed(f"{said}. The same replay again completes it") from exc
        return replayed


def _into_table(pipeline: Pipeline, into: str, rejected: bool) -> Pipeline:
    """The pipeline that writes the new table. Of rejected messages, any share may not fit."""
    place = into.rstrip("/")
    left_out = {"data", "stop_above"} if rejected else {"data"}
    topics = {
        topic: {key: each for key, each in given.items() if key not in left_out}
        for topic, given in pipeline.topics.items()
    }
    beside: dict[str, Any] = {
        "data": place,
        "rejected": f"{place}-rejected",
        "metrics": f"{place}-metrics",
        "stop_above": 1.0 if rejected else pipeline.stop_above,
        # In a catalog, too, it is another table.
        "table": pipeline.table_named(place.rpartition("/")[2]),
    }
    found = replace(pipeline, **beside, topics=topics, archive="", dead_letters={}, name=pipeline.title)
    taken = [pipeline, *map(pipeline.for_topic, pipeline.topics)]
    if found.place("data").rstrip("/") in {each.place("data").rstrip("/") for each in taken}:
        raise InvalidOption("into", into, "that is the pipeline's table, which has these messages: give another place")
    return found


def _rows(spark: SparkSession, directory: str, start: datetime, end: datetime, where: str) -> DataFrame:
    """The rows of a batch that are wanted. Raises InvalidOption."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F

    rows = spark.read.parquet(directory).where((F.col("seen_at") >= start) & (F.col("seen_at") < end))
    if not where:
        return rows
    try:
        return rows.where(where)
    except (AnalysisException, ParseException) as exc:
        raise InvalidOption("where", where, first_line(exc)) from exc


def _into(pipeline: Pipeline, rows: DataFrame, batch: BatchPlace, replayed: Replayed) -> Replayed:
    """Write a batch into the new table."""
    from gnsq_like.spark.pipeline.batches import BatchWriter

    written: list[MinuteMetrics] = []
    rows = rows.select(*KEPT, BODY)
    wanted, plan = transformed(parsed(rows, pipeline) if is_sql(pipeline) else rows, pipeline)
    writer = BatchWriter(pipeline, plan, lambda: None, written.extend)
    # A table with commits remembers the last batch of a query, and a replay that is repeated begins before it.
    writer.belongs_to(f"{batch.query_id}-{batch.number}")
    writer(wanted, batch.number)
    return Replayed(
        replayed.batches + bool(written),
        replayed.messages + sum(row.messages for row in written),
        replayed.rejected + sum(row.rejected for row in written),
    )


def parsed(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Rows with bodies as bytes, as the source would give them with the pipeline's schemas."""
    from pyspark.sql.functions import arrow_udtf
    from pyspark.sql.types import StructType

    options = pipeline.parsed_options
    ddl = ddl_of(options)
    schema: Any = StructType.fromDDL(ddl)

    class Parse:
        def eval(self, batch: Any) -> Iterator[Any]:
            import pyarrow as pa

            from gnsq_like.spark.pipeline.writing import by_topic, plain_rows
            from gnsq_like.spark.source.by_columns import ParsedRows

            for topic, found in by_topic(batch):
                made = ParsedRows(options, schema, topic).of(plain_rows(found))
                yield pa.Table.from_batches([made])

    function: Any = arrow_udtf(Parse, returnType=ddl)
    return function(rows.asTable())


def _publish(options: SinkOptions, rows: DataFrame, batch: BatchPlace, replayed: Replayed) -> Replayed:
    """Publish the bodies of a batch."""
    messages = sum(run_in_tasks(rows.select("body"), lambda schema: Publishing(options)))
    return replace(replayed, batches=replayed.batches + 1, messages=replayed.messages + messages)


# -- batches of plain files -----------------------------------------------------------------------------


#: A batch of this age is complete; the metrics show whether a newer one is. Older metrics may have been removed.
_SURELY_DONE = timedelta(days=1)
_HOUR = timedelta(hours=1)
_BATCH = re.compile(r"batch=(\w+)-(\d+)")


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """A batch in a table of plain files."""

    directory: str
    #: The beginning of the id of its query.
    query_id: str
    number: int


def _complete_batches(pipeline: Pipeline, what: str, start: datetime, end: datetime) -> Iterator[BatchPlace]:
    """The batches of "archive" or "rejected" in the hours from ``start`` to before ``end``, in the order of arrival.

    Without a batch that is being written.
    """
    now = datetime.now(UTC)
    for at, hour in hours_of(pipeline.place(what)):
        if at >= end or at + _HOUR <= start:
            continue
        names = _names(f"{pipeline.place(what)}/{hour}")
        if at > now - _SURELY_DONE:
            names &= _names(f"{pipeline.place('metrics')}/{hour}")
        found = [(match[1], int(match[2]), name) for name in names if (match := _BATCH.fullmatch(name))]
        for query_id, number, name in sorted(found):
            named = query_id if what == "archive" else f"r{query_id}"
            yield BatchPlace(f"{pipeline.place(what)}/{hour}/{name}", named, number)


def _names(directory: str) -> set[str]:
    return {name for name in directories(directory) if name.startswith("batch=")}
