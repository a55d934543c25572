"""A batch becomes part of its tables: tasks write files and report them, and the driver commits what they report.

The archive comes first, then the tables of the topics one by one, then rejected messages and dead letters, and the
metrics last. The docstring of the package explains why a repeated batch leaves the same content.

Dead letters have the envelope of ``gnsq_like.deadletter``. Tasks make them from the files of rejected messages.
"""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from gnsq_like.deadletter import DeadLetter, pack_envelope
from gnsq_like.spark.pipeline import metrics
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.destinations import TableWriter
from gnsq_like.spark.pipeline.faults import PipelineFailed, sentence
from gnsq_like.spark.pipeline.metrics import Group, MinuteMetrics
from gnsq_like.spark.pipeline.owners import Owner
from gnsq_like.spark.pipeline.reachable import check_sink
from gnsq_like.spark.pipeline.selecting import data_error
from gnsq_like.spark.pipeline.tasks import is_reports, run_in_tasks
from gnsq_like.spark.pipeline.writing import Report, Writing, WritingPlan
from gnsq_like.spark.sink import Publishing, SinkOptions
from gnsq_like.spark.tables.data_file import (
    DataFile,
    FileWriter,
    batch_directory,
    batch_name,
    drop_files,
    hidden_path,
    place,
    time_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Smaller batches do not show whether a schema is wrong.
LEAST_TO_JUDGE = 100
#: Seconds that a batch waits for the id of its query: it may begin before start() has returned.
_PATIENCE = 60.0


class BatchWriter:
    """A function for ``foreachBatch``: of reports, or of rows that are to be written.

    :param plan: the plan of the tasks
    :param depth: returns how many messages wait in nsqd now, or None if that is not known
    :param on_written: called with the metrics of each batch, in a thread of Spark
    :param owner: the owner that the tables must have; None for any
    """

    def __init__(
        self,
        pipeline: Pipeline,
        plan: WritingPlan,
        depth: Callable[[], int | None],
        on_written: Callable[[list[MinuteMetrics]], None],
        owner: Owner | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._plan = plan
        self._owner = owner
        #: By the topic; None for one that all topics share.
        self._tables: dict[str | None, TableWriter] = {}
        self._depth = depth
        self._on_written = on_written
        self._query_id = ""
        self._is_named = threading.Event()
        #: The error of the last batch; Spark only keeps its text.
        self.failure: Exception | None = None

    def check(self) -> None:
        """Raise InvalidOption if readers could not read one of the tables once it has new rows."""
        named = [of.topic for of in self._pipeline.source_options.named]
        for topic in named if self._pipeline.is_by_topic else [None]:
            self._table(topic).check()

    def belongs_to(self, query_id: str) -> None:
        """Set the query of the batches; its id stays the same as long as its checkpoint exists."""
        self._query_id = query_id
        self._is_named.set()

    def __call__(self, rows: DataFrame, number: int) -> None:
        try:
            if not self._is_named.wait(_PATIENCE):
                raise PipelineFailed("Spark has not started the query of a batch")
            self._commit(rows.sparkSession, self._reports(rows), number)
        except Exception as exc:
            said = data_error(exc)
            self.failure = PipelineFailed(said) if said else exc
            # Not the whole text: when Spark stops a query, it searches the error with a regular expression, which
            # overflows Java's stack for long texts from py4j.
            raise PipelineFailed(sentence(self.failure, self._pipeline.location)) from None

    def _reports(self, rows: DataFrame) -> list[Report]:
        """The reports of the tasks."""
        if is_reports(rows):
            return [pickle.loads(each[0]) for each in rows.collect()]
        return run_in_tasks(rows, partial(Writing, self._plan))

    def _commit(self, spark: SparkSession, reports: Sequence[Report], number: int) -> None:
        groups = [group for report in reports for group in report.groups]
        if not groups:
            return
        files: dict[tuple[str, str | None], list[DataFile]] = {}
        for report in reports:
            for what, topic, file in report.files:
                files.setdefault((what, topic), []).append(file)
        try:
            self._judge(groups, reports)
        except PipelineFailed:
            for (what, topic), each in files.items():
                drop_files(self._own(topic).place(what), each)
            raise
        seen_at = time_of(max(report.seen_us for report in reports))
        if self._pipeline.archive:
            self._place("archive", files.get(("archive", None), []), seen_at, number)
        for topic in sorted({self._topic(group.topic) for group in groups}, key=str):
            self._table(topic).write(files.get(("data", topic), []), self._query_id, number, seen_at)
        rejected = files.get(("rejected", None), [])
        self._place("rejected", rejected, seen_at, number)
        if rejected:
            self._publish_letters(spark, seen_at, number)
        made = metrics.fold(
            groups, batch_number=number, seen_at=seen_at, written_at=datetime.now(UTC), depth=self._depth()
        )
        self._place("metrics", [_written(self._pipeline.place("metrics"), made)], seen_at, number)
        self._on_written(made)

    def _topic(self, topic: str) -> str | None:
        """The topic whose table a message goes to; None for one that all topics share."""
        return topic if self._pipeline.is_by_topic else None

    def _own(self, topic: str | None) -> Pipeline:
        return self._pipeline if topic is None else self._pipeline.for_topic(topic)

    def _table(self, topic: str | None) -> TableWriter:
        if topic not in self._tables:
            self._tables[topic] = TableWriter(self._own(topic), self._plan.bodies_of(topic).after, self._owner)
        return self._tables[topic]

    def _place(self, what: str, files: Sequence[DataFile], seen_at: datetime, number: int) -> None:
        place(self._pipeline.place(what), self._directory(seen_at, number), files)

    def _directory(self, seen_at: datetime, number: int) -> str:
        return batch_directory(seen_at, batch_name(self._query_id, number))

    def _judge(self, groups: Iterable[Group], reports: Iterable[Report]) -> None:
        """Raise PipelineFailed if so many messages are rejected that the schema must be wrong."""
        counts: dict[str | None, list[int]] = {}
        for group in groups:
            found = counts.setdefault(self._topic(group.topic), [0, 0])
            found[0] += group.messages
            found[1] += 0 if group.fits else group.messages
        for topic, (messages, rejected) in sorted(counts.items(), key=str):
            if messages < LEAST_TO_JUDGE or rejected <= self._own(topic).stop_above * messages:
                continue
            reasons: Counter[str] = Counter()
            for report in reports:
                for (of, reason), count in report.reasons.items():
                    reasons[reason] += count if self._topic(of) == topic else 0
            [(why, _)] = reasons.most_common(1)
            table = f"topics.{topic}" if topic in self._pipeline.topics else "parse"
            which = "a batch" if topic is None else f"topic {topic} in a batch"
            raise PipelineFailed(
                f"the schema must be wrong: {rejected} of {messages} messages of {which} do not fit it, mostly because "
                f"{why}. Nothing of the batch was written: correct {table}.schema and start again, or raise "
                f"{table}.stop_above to reject them"
            )

    def _publish_letters(self, spark: SparkSession, seen_at: datetime, number: int) -> None:
        options = self._pipeline.sink_options
        if options is None:
            return
        check_sink(options)  # Spark's tasks would try for minutes
        rejected = self._pipeline.place("rejected")
        rows = spark.read.parquet(f"{rejected}/{self._directory(seen_at, number)}")
        run_in_tasks(rows, lambda schema: PublishingLetters(options, rejected))


def _written(table: str, rows: Sequence[MinuteMetrics]) -> DataFile:
    """A file of metrics."""
    batch = metrics.as_rows(rows)
    writer = FileWriter(table, hidden_path(), batch.schema)
    try:
        writer.add(batch)
        return writer.close()
    finally:
        writer.drop()


# -- dead letters ---------------------------------------------------------------------------------------


class PublishingLetters:
    """The work of one task (``tasks.Work``), on rows of the table of rejected messages.

    :param rejected: the place of that table, which has the whole body
    """

    def __init__(self, options: SinkOptions, rejected: str) -> None:
        self._publishing = Publishing(options)
        #: The size limit of the dead-letter topic; longer letters have their body cut.
        self._most_bytes = options.longest_body
        self._rejected = rejected

    def add(self, batch: pa.RecordBatch) -> None:
        """Publish the letters of some messages. May switch."""
        times = {name: batch.column(name).cast(pa.int64()).to_pylist() for name in ("timestamp", "seen_at")}
        letters = [
            DeadLetter(
                topic=row["topic"],
                channel=row["channel"],
                nsqd_address=row["nsqd_address"],
                id=row["id"],
                attempts=row["attempts"],
                timestamp_ns=published * 1000,
                given_up_ns=seen * 1000,
                body=row["body"],
                reason=row["reason"],
            )
            for row, published, seen in zip(batch.to_pylist(), times["timestamp"], times["seen_at"], strict=True)
        ]
        packed = [pack_within(self._most_bytes, each, self._rejected) for each in letters]
        self._publishing.add(pa.RecordBatch.from_pydict({"body": pa.array(packed, pa.binary())}))

    def close(self) -> int:
        """Return how many were published."""
        return self._publishing.close()

    def drop(self) -> None:
        """Close the connections."""
        self._publishing.drop()


def pack_within(most_bytes: int, letter: DeadLetter, rejected: str) -> bytes:
    """Pack a letter into at most ``most_bytes``. The body is cut if necessary, and the reason says so then."""
    packed = pack_envelope(letter)
    size = len(letter.body)
    keep = size
    while len(packed) > most_bytes and keep:
        # An envelope can be several times as long as its body, but never shorter.
        keep = min(keep // 2, most_bytes)
        why = f"{letter.reason} (the first {keep} of {size} bytes; the whole is in {rejected})"
        packed = pack_envelope(dataclasses.replace(letter, body=letter.body[:keep], reason=why))
    return packed
