"""Work of a pipeline that Spark's tasks do in Python, and its reports.

Where Spark has nothing to do between nsqd and the table, the source's own tasks write the files (:func:`reports`): it
is ``format("nsq")`` with another kind of reading, which gives one row for a part, the task's report.

Else an Arrow table function does the work on the rows of a DataFrame (:func:`run_in_tasks`). In each task, it makes an
object and gives it the batches; the function's only row is that object's report. If a task fails, Spark gives its rows
to another; only reports of successful tasks are collected. Why not a data source: Spark plans and commits its writes in
Python processes beside the driver, and does not retry if one dies. Why not ``mapInArrow``: that needs pandas.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.functions import arrow_udtf
from pyspark.sql.types import StructType

from gnsq_like.spark.format_options import SourceOptions, parse_options
from gnsq_like.spark.pipeline.transform import BODY, KEPT
from gnsq_like.spark.pipeline.writing import Writing, WritingPlan
from gnsq_like.spark.source.data_source import NsqDataSource
from gnsq_like.spark.source.executor import read_part
from gnsq_like.spark.source.stream import NsqPartition, NsqStreamReader
from gnsq_like.spark.user_errors import without_traceback

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Report = TypeVar("_Report", covariant=True)


class Work(Protocol[_Report]):
    """The work of one task."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take some rows."""

    def close(self) -> _Report:
        """Complete the work, and report it."""

    def drop(self) -> None:
        """Drop incomplete work; called at the end in any case."""


def run_in_tasks(rows: DataFrame, make: Callable[[pa.Schema], Work[_Report]]) -> list[_Report]:
    """Run work in each task that has rows, and return the reports.

    :param make: begins the work of a task, in the task
    """

    class Task:
        def __init__(self) -> None:
            self._work: Work[_Report] | None = None

        def eval(self, batch: pa.RecordBatch) -> None:
            if self._work is None:
                self._work = make(batch.schema)
            self._work.add(batch)

        def terminate(self) -> list[pa.Table]:
            # Spark fails if there is a row from a task that had none.
            return [pa.table({"report": [pickle.dumps(self._work.close())]})] if self._work is not None else []

        def cleanup(self) -> None:
            if self._work is not None:
                self._work.drop()

    function: Any = arrow_udtf(Task, returnType="report BINARY")
    return [pickle.loads(each.report) for each in function(rows.asTable()).collect()]


# -- the source's own tasks -----------------------------------------------------------------------------


#: The option with the pickled WritingPlan; Spark's options are text.
_PLAN = "plan"
_REPORT = "report"


def reports(spark: SparkSession, plan: WritingPlan) -> DataFrame:
    """The stream of the reports of tasks that write."""
    spark.dataSource.register(PipelineSource)
    packed = base64.b64encode(pickle.dumps(plan)).decode()
    given = {**plan.pipeline.source_given, "columns": ",".join([*KEPT, BODY]), _PLAN: packed}
    return spark.readStream.format(PipelineSource.name()).options(**given).load()


def is_reports(rows: DataFrame) -> bool:
    """Whether the rows are reports already."""
    return rows.columns == [_REPORT]


class PipelineSource(NsqDataSource):
    """The data source of :func:`reports`."""

    @classmethod
    def name(cls) -> str:
        return "nsq_pipeline"

    def schema(self) -> str:
        return f"{_REPORT} BINARY"

    def streamReader(self, schema: StructType) -> NsqStreamReader:
        return PipelineReader(self.options, schema)


class PipelineReader(NsqStreamReader):
    """Writes what it reads."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        super().__init__(given, schema)
        self._plan: WritingPlan = pickle.loads(base64.b64decode(self._given.pop(_PLAN)))

    def read_options(self, given: Mapping[str, str]) -> SourceOptions:
        # The rows that Spark gets are reports, so these are not checked for the columns.
        return parse_options(SourceOptions, given)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, NsqPartition)
        with without_traceback():
            writing = Writing(self._plan)
            try:
                for batch in read_part(partition.part, self.options):
                    writing.add(batch)
                packed = pickle.dumps(writing.close())
            finally:
                writing.drop()
            yield pa.RecordBatch.from_arrays([pa.array([packed], pa.binary())], names=[_REPORT])
