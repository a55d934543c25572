"""The source of a pipeline that needs nothing of Spark between nsqd and the table: its tasks write the files.

Spark gets one row a part, the task's report. It is ``format("nsq")`` with another kind of reading.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from gnsq_like.errors import NSQError
from gnsq_like.spark.format_options import SourceOptions, parse_options
from gnsq_like.spark.pipeline.transform import BODY, KEPT
from gnsq_like.spark.pipeline.writing import Writing, WritingPlan
from gnsq_like.spark.source.data_source import NsqDataSource
from gnsq_like.spark.source.executor import read_part
from gnsq_like.spark.source.stream import NsqPartition, NsqStreamReader
from gnsq_like.spark.user_errors import without_traceback

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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

    @without_traceback()
    def streamReader(self, schema: StructType) -> NsqStreamReader:
        try:
            options: SourceOptions | NSQError = parse_options(SourceOptions, self.options, ignored=(_PLAN,))
        except NSQError as exc:
            options = exc
        return PipelineReader(options, schema, pickle.loads(base64.b64decode(self.options[_PLAN])))


class PipelineReader(NsqStreamReader):
    """Writes what it reads."""

    def __init__(self, options: SourceOptions | NSQError, schema: StructType, plan: WritingPlan) -> None:
        super().__init__(options, schema)
        self._plan = plan

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
