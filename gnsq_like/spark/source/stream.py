"""The stream reader that Spark calls: ``driver`` and ``executor`` under Spark's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from gnsq_like.errors import InvalidOption, NSQError
from gnsq_like.spark.format_options import SourceOptions, parse_options
from gnsq_like.spark.source.by_columns import check_columns, rows_of
from gnsq_like.spark.source.driver import Driver
from gnsq_like.spark.source.executor import read_part
from gnsq_like.spark.staging.offsets import Part
from gnsq_like.spark.user_errors import without_traceback


def make_stream_reader(schema: StructType, given: Mapping[str, str]) -> NsqStreamReader:
    """Make the reader for these options. If they are wrong, its first call raises the error: an error of this function
    would be replaced by pyspark's, about a missing reader."""
    try:
        options = parse_options(SourceOptions, given)
        check_columns(schema, options)
        if not options.staging_location:
            raise InvalidOption("staging_location", "", "a stream read needs one, which driver and executors share")
    except NSQError as exc:
        return NsqStreamReader(exc, schema)
    return NsqStreamReader(options, schema)


@dataclass
class NsqPartition(InputPartition):
    """A part, which Spark sends to an executor."""

    part: Part


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one query. Spark makes two: one for the driver's calls, and one that it pickles for ``read``."""

    def __init__(self, options: SourceOptions | NSQError, schema: StructType) -> None:
        #: The options, or the error that they caused.
        self._options = options
        #: Spark's type of the rows.
        self._schema = schema
        #: Made when the driver first calls; executors have none.
        self._made_driver: Driver | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_made_driver": None}

    @property
    def options(self) -> SourceOptions:
        """The options; raises the error if they are wrong."""
        if isinstance(self._options, NSQError):
            raise self._options
        return self._options

    def make_driver(self) -> Driver:
        """Make the object that answers the driver's calls. A subclass may make another one."""
        return Driver(self.options)

    @property
    def _driver(self) -> Driver:
        if self._made_driver is None:
            self._made_driver = self.make_driver()
        return self._made_driver

    @without_traceback()
    def initialOffset(self) -> dict[str, object]:
        return self._driver.initial()

    @without_traceback()
    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark passes one limit back, which only shows whether limits apply; both of ours are in the options.
        return ReadMaxRows(self.options.max_messages)

    @without_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        self._driver.prepare_available_now()

    @without_traceback()
    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        return dict(self._driver.latest(start, limited=not isinstance(limit, ReadAllAvailable)))

    @without_traceback()
    def reportLatestOffset(self) -> dict[str, object] | None:
        # Spark shows it as sources[0].latestOffset in the progress of a query.
        return self._driver.lag()

    @without_traceback()
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        return [NsqPartition(part) for part in self._driver.parts(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, NsqPartition)
        with without_traceback():
            yield from rows_of(read_part(partition.part, self.options), partition.part, self.options, self._schema)

    def commit(self, end: dict[str, object]) -> None:
        self._driver.commit(end)
