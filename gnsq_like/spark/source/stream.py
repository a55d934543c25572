"""The stream reader that Spark calls: ``driver`` and ``executor`` under Spark's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.format_options import SourceOptions, parse_options
from gnsq_like.spark.source.by_columns import check_columns, rows_of
from gnsq_like.spark.source.driver import Driver
from gnsq_like.spark.source.executor import read_part
from gnsq_like.spark.staging.offsets import Part
from gnsq_like.spark.user_errors import without_traceback


@dataclass
class NsqPartition(InputPartition):
    """A part, which Spark sends to an executor."""

    part: Part


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one query. Spark makes two: one for the driver's calls, and one that it pickles for ``read``."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(given)
        #: Spark's type of the rows.
        self._schema = schema
        #: Made when the driver first calls; executors have none.
        self._made_driver: Driver | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_made_driver": None}

    @cached_property
    def options(self) -> SourceOptions:
        """The options, read by the first call: Spark replaces an error of the constructor by one of its own, about a
        missing reader. Raises InvalidOption, WrongSchema."""
        return self.read_options(self._given)

    def read_options(self, given: Mapping[str, str]) -> SourceOptions:
        """Read and check the options. A subclass may do this in another way."""
        options = parse_options(SourceOptions, given)
        check_columns(self._schema, options)
        if not options.staging_location:
            raise InvalidOption("staging_location", "", "a stream read needs one, which driver and executors share")
        return options

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
