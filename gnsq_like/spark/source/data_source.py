"""The data source that Spark loads as ``format("nsq")``.

``pyspark_nsq`` imports this module in every session that looks for any data source. So this module loads nothing
heavy, and nothing that may be missing, before the source is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from gnsq_like.spark.user_errors import without_traceback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.types import StructType

    from gnsq_like.spark.sink import NsqStreamWriter, NsqWriter
    from gnsq_like.spark.source.batch import NsqBatchReader
    from gnsq_like.spark.source.stream import NsqStreamReader


class NsqDataSource(DataSource):
    """NSQ for Spark. The options are defined in ``format_options`` and documented in docs/spark.rst."""

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def __reduce__(self) -> tuple[Callable[..., DataSource], tuple[Any, ...]]:
        """Pickle together with the place of gnsq_like.

        The driver's process for a streaming source is the only one that Spark starts without the files of addPyFile
        and --py-files: it looks for them in a directory that does not exist. Its Python may have no other gnsq_like.
        """
        found = type(self)
        if not found.__module__.startswith("gnsq_like."):
            return found, (self.options,)  # a subclass comes with its own module
        return _loader(), (str(Path(__file__).parents[3]), found.__module__, found.__name__, self.options)

    @without_traceback()
    def schema(self) -> str:
        """The columns of a read, as Spark's DDL."""
        from gnsq_like.spark.format_options import SourceOptions, ddl_of, parse_options

        return ddl_of(parse_options(SourceOptions, self.options))

    @without_traceback()
    def reader(self, schema: StructType) -> NsqBatchReader:
        """For ``spark.read``: shows messages of the channels."""
        from gnsq_like.spark.source.batch import NsqBatchReader

        return NsqBatchReader(self.options, schema)

    @without_traceback()
    def streamReader(self, schema: StructType) -> NsqStreamReader:
        """For ``spark.readStream``: stages the messages, so that Spark can read a batch again."""
        from gnsq_like.spark.source.stream import NsqStreamReader

        return NsqStreamReader(self.options, schema)

    @without_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> NsqWriter:
        """For ``DataFrame.write``: publishes the rows."""
        from gnsq_like.spark.sink import NsqWriter, sink_options

        return NsqWriter(schema, overwrite, sink_options(self.options))

    @without_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> NsqStreamWriter:
        """For ``DataFrame.writeStream``: publishes each batch."""
        from gnsq_like.spark.sink import NsqStreamWriter, sink_options

        return NsqStreamWriter(schema, overwrite, sink_options(self.options))


def _loader() -> Callable[[str, str, str, Mapping[str, str]], DataSource]:
    """A function that makes the data source. cloudpickle sends a nested function as code, so it needs no gnsq_like."""

    def load(place: str, module: str, name: str, options: Mapping[str, str]) -> DataSource:
        import sys
        from importlib import import_module

        if place not in sys.path:
            sys.path.insert(1, place)  # where Spark puts such files
        made: DataSource = getattr(import_module(module), name)(options)
        return made

    return load
