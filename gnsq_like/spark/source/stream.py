"""The stream reader that Spark drives: ``driver`` and ``executor`` under Spark's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from gnsq_like.errors import InvalidOption, NSQError
from gnsq_like.spark.options import SourceOptions, parse_options
from gnsq_like.spark.source.driver import Driver
from gnsq_like.spark.source.executor import read_part
from gnsq_like.spark.source.schema import check_schema
from gnsq_like.spark.staging.offsets import Part
from gnsq_like.spark.user_errors import plain_errors


def make_stream_reader(schema: StructType, given: Mapping[str, str]) -> NsqStreamReader:
    """The reader for these options. What is wrong with them is raised by its first call: what is raised here, pyspark
    replaces by an error of its own (its ``reader`` that is not there yet)."""
    try:
        options = parse_options(SourceOptions, given)
        check_schema(schema, options)
        if not options.staging_location:
            raise InvalidOption("stagingLocation", "", "a stream read needs one, which driver and executors share")
    except NSQError as exc:
        return NsqStreamReader(exc)
    return NsqStreamReader(options)


@dataclass
class NsqPartition(InputPartition):
    """A part, for Spark to carry to an executor."""

    part: Part


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's reader. Spark makes two, one for the driver's calls and one to be pickled for ``read``."""

    def __init__(self, options: SourceOptions | NSQError) -> None:
        #: Or what is wrong with them.
        self._options = options
        #: Made at the first call of the driver's; executors have none.
        self._made_driver: Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_made_driver": None}

    @property
    def options(self) -> SourceOptions:
        """The options; raises what is wrong with them."""
        if isinstance(self._options, NSQError):
            raise self._options
        return self._options

    def make_driver(self) -> Driver:
        """What answers the driver's calls. A subclass may make another one."""
        return Driver(self.options)

    @property
    def _driver(self) -> Driver:
        if self._made_driver is None:
            self._made_driver = self.make_driver()
        return self._made_driver

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        return self._driver.initial()

    @plain_errors()
    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark hands one limit back, which says no more than whether limits apply: both of ours are in the options.
        if self.options.max_messages is not None:
            return ReadMaxRows(self.options.max_messages)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadMaxRows(2**63 - 1)

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        self._driver.prepare_available_now()

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return dict(self._driver.latest(start, limited=not isinstance(limit, ReadAllAvailable)))

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [NsqPartition(part) for part in self._driver.parts(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, NsqPartition)
        with plain_errors():
            yield from read_part(partition.part, self.options)

    def commit(self, end: dict[str, Any]) -> None:
        self._driver.commit(end)
