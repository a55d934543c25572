"""The work of tasks on the rows of a batch: Parquet files that belong to no table yet, and a report.

The same object does it in the source's own tasks, which then give Spark nothing but reports, and in tasks behind
Spark's plan, where SQL or a replay comes first. Messages that fit, rejected ones, and the archive have files of their
own. The driver looks at the reports of the tasks that count, and makes the files part of their tables (``batches``). A
task that is tried again writes new files, and the old ones stay as orphans until the next maintenance.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.metrics import Counting, Group
from gnsq_like.spark.pipeline.transform import BODY, KEPT, Function, applied, made_column
from gnsq_like.spark.source.by_columns import Parser
from gnsq_like.spark.tables.columns import storable
from gnsq_like.spark.tables.data_file import DataFile, FileWriter, hidden_path, new_path, time_of

_TIME = pa.timestamp("us", tz="UTC")
#: The columns of all tables beside the body.
KEPT_TYPES = pa.schema(
    [(name, {"timestamp": _TIME, "seen_at": _TIME, "attempts": pa.int32()}.get(name, pa.string())) for name in KEPT]
)


#: So many rows, or bytes in memory, are worked on at once: that takes fewer calls of pyarrow than a segment at a time.
_ROWS, _BYTES = 5000, 16 << 20


class Bodies(NamedTuple):
    """The bodies of a target, before and after its transformation."""

    #: The fields of the JSON objects; None for bodies that are kept as they are.
    schema: StructType | None
    #: The type in the rows that the writer gets or makes, and the type in the table.
    before: DataType
    after: DataType
    #: The function between these two (``transform.packed``), or nothing.
    function: bytes


@dataclass(frozen=True)
class WritingPlan:
    """The part of a pipeline that tasks need."""

    pipeline: Pipeline
    #: By the topic; None for topics without settings of their own.
    bodies: Mapping[str | None, Bodies]
    #: Whether the rows have columns of bodies already, made by Spark's plan; else they have bytes.
    is_made: bool

    def bodies_of(self, topic: str | None) -> Bodies:
        """The bodies of a topic's messages."""
        return self.bodies[topic if topic in self.bodies else None]


class WrittenFile(NamedTuple):
    """A file that a task has written."""

    #: "data", "rejected" or "archive".
    what: str
    #: Whose table it is; None for a table that is shared.
    topic: str | None
    file: DataFile


@dataclass
class Report:
    """The report of a task."""

    #: The time of the batch, in microseconds since the epoch; 0 without rows.
    seen_us: int = 0
    files: list[WrittenFile] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    #: How many messages of a topic were rejected for a reason.
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)


class Writing:
    """The work of one task (``tasks.Work``).

    :param schema: that of the rows, which is not needed
    """

    def __init__(self, plan: WritingPlan, schema: pa.Schema | None = None) -> None:
        self._plan = plan
        self._report = Report()
        self._counting = Counting()
        #: By the topic.
        self._readers: dict[str, _Reader] = {}
        self._files: dict[tuple[str, str | None], FileWriter] = {}
        #: Rows that are not worked on yet.
        self._waiting: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows, of any topics, at once or with the next ones."""
        self._waiting.append(batch)
        rows, size = (sum(getattr(each, name) for each in self._waiting) for name in ("num_rows", "nbytes"))
        if rows >= _ROWS or size >= _BYTES:
            self._work()

    def _work(self) -> None:
        waiting, self._waiting = self._waiting, []
        for batch in pa.Table.from_batches(waiting).combine_chunks().to_batches() if waiting else ():
            self._write_rows(batch)

    def _write_rows(self, batch: pa.RecordBatch) -> None:
        for topic, rows in by_topic(batch):
            if topic not in self._readers:
                self._readers[topic] = _Reader(self._plan, topic)
            self._add(topic, self._readers[topic], rows)

    def _add(self, topic: str, reader: _Reader, rows: pa.RecordBatch) -> None:
        read = reader.read(rows)
        kept = [rows.column(name).cast(KEPT_TYPES.field(name).type) for name in KEPT]
        fits = read.reasons.is_null()
        self._report.seen_us = max(self._report.seen_us, pc.max(kept[-1].cast(pa.int64())).as_py() or 0)
        self._counting.add(topic, dict(zip(KEPT, kept, strict=True)), read.sizes, fits)
        if self._plan.pipeline.archive:
            self._write("archive", None, _table([*kept, read.raw]))
        if read.reasons.null_count < len(fits):
            rejected = _table([*kept, read.raw, read.reasons], "reason").filter(pc.invert(fits))
            self._write("rejected", None, rejected)
            self._report.reasons.update((topic, reason) for reason in rejected.column("reason").to_pylist())
        chosen = _table([*kept, read.bodies])
        if read.bodies.null_count:
            chosen = chosen.filter(read.bodies.is_valid())
        if chosen.num_rows:
            self._write("data", topic if self._plan.pipeline.is_by_topic else None, reader.transformed(chosen))

    def _write(self, what: str, topic: str | None, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if (what, topic) not in self._files:
            own = self._plan.pipeline if topic is None else self._readers[topic].pipeline
            is_committed = what == "data" and own.format != "parquet"
            path = new_path(time_of(self._report.seen_us)) if is_committed else hidden_path()
            self._files[what, topic] = FileWriter(own.place(what), path, rows.schema)
        self._files[what, topic].add(rows)

    def close(self) -> Report:
        """Complete the files."""
        self._work()
        files = [WrittenFile(what, topic, each.close()) for (what, topic), each in self._files.items()]
        return replace(self._report, files=files, groups=self._counting.groups())

    def drop(self) -> None:
        """Remove the files that are not complete."""
        for each in self._files.values():
            each.drop()


class _Read(NamedTuple):
    """The bodies of some rows."""

    #: As bytes; null where nothing needs them.
    raw: pa.Array
    sizes: pa.Array
    #: Null where a body does not fit, or is left out.
    bodies: pa.Array
    #: Null where a body fits.
    reasons: pa.Array


class _Reader:
    """The bodies of one topic."""

    def __init__(self, plan: WritingPlan, topic: str) -> None:
        #: The pipeline of this topic alone.
        self.pipeline = plan.pipeline.for_topic(topic)
        bodies = plan.bodies_of(topic)
        #: The column that Spark's plan has made of them, if it has.
        keys = list(plan.bodies)
        self._made = made_column(keys.index(topic if topic in keys else None)) if plan.is_made else None
        self._function: Function | None = pickle.loads(bodies.function) if bodies.function else None
        stored = storable(bodies.after, without_small=self.pipeline.format == "iceberg")
        self._stored = to_arrow_type(stored, timezone="UTC")
        made = to_arrow_type(storable(bodies.before), timezone="UTC") if bodies.function else self._stored
        self._parser = Parser(bodies.schema, self.pipeline.timestamp_unit, made) if bodies.schema is not None else None

    def read(self, rows: pa.RecordBatch) -> _Read:
        """The bodies, in the type that they have in the table unless there is a function."""
        if self._made is not None:
            bodies = rows.column(self._made)
            if self._function is None:
                bodies = bodies.cast(self._stored)
            return _Read(rows.column("raw"), rows.column("size"), bodies, rows.column("reason"))
        raw = rows.column(BODY)
        if self._parser is None:
            return _Read(raw, pc.binary_length(raw), raw, pa.nulls(len(raw), pa.string()))
        return _Read(raw, pc.binary_length(raw), *self._parser.parse(raw))

    def transformed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the table."""
        if self._function is None:
            return rows
        made = applied(self._function, rows)
        kept = [made.column(name).cast(KEPT_TYPES.field(name).type) for name in KEPT]
        return _table([*kept, made.column(BODY).cast(self._stored)])


def _table(columns: list[pa.Array], *more: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(columns, names=[*KEPT, BODY, *more])


def by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic."""
    topics: list[Any] = batch.column("topic").unique().to_pylist()
    for topic in topics:
        yield topic, batch if len(topics) == 1 else batch.filter(pc.equal(batch.column("topic"), topic))


def plain_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with bytes as the source has them before it parses them."""
    kept = [rows.column(name).cast(KEPT_TYPES.field(name).type) for name in KEPT]
    sizes = pc.binary_length(rows.column(BODY))
    return pa.RecordBatch.from_arrays([*kept, sizes, rows.column(BODY)], names=[*KEPT, "size", BODY])
