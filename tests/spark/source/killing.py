"""The format "nsq" with a reader that kills all processes of its session, driver, JVM and workers, at a point.

The environment's KILL_AT names the point (``spark_points``). To be registered instead of the real one::

    spark.dataSource.register(KillingDataSource)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from gnsq_like.spark.format_options import SourceOptions
from gnsq_like.spark.source.data_source import NsqDataSource
from gnsq_like.spark.source.driver import Driver
from gnsq_like.spark.source.stream import NsqPartition, NsqStreamReader
from tests.support.spark_engine import read_options
from tests.support.spark_points import KillAt, WatchedDriver, kill_session, watched_part

#: Counts the points that this process reaches; Spark's processes inherit the environment.
_reached = KillAt(os.environ.get("KILL_AT", ""), lambda: kill_session(os.getsid(0)))


class KillingReader(NsqStreamReader):
    def read_options(self, given: Mapping[str, str]) -> SourceOptions:
        return read_options(given)

    def make_driver(self) -> Driver:
        return WatchedDriver(self.options, _reached)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, NsqPartition)
        yield from watched_part(partition.part, self.options, _reached)


class KillingDataSource(NsqDataSource):
    def streamReader(self, schema: StructType) -> NsqStreamReader:
        return KillingReader(self.options, schema)
