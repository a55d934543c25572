"""The tables of a pipeline that have atomic commits, and the checks before a run writes to them.

None of this needs Spark to run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.pipeline.config import FORMATS, Pipeline
from gnsq_like.spark.tables.committed_table import CommittedTable

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


def table_of(pipeline: Pipeline) -> CommittedTable | None:
    """The pipeline's table; None for one of plain Parquet files. Raises InvalidOption."""
    if pipeline.format == "parquet":
        return None
    home = pipeline.location if "://" in pipeline.location else f"file://{pipeline.location}"
    return open_table(
        pipeline.format, pipeline.place("data"), title=pipeline.title, home=home, options=pipeline.format_options
    )


def check_table(pipeline: Pipeline, body: DataType) -> None:
    """Raise InvalidOption if the table has another format, or readers could not read it with bodies of this type.

    For a table of plain Parquet files, ``kept_schema.check_kept`` does the second.

    :raises TableError: it cannot be read
    """
    check_format(pipeline)
    table = table_of(pipeline)
    columns = table.columns() if table is not None else None
    if columns is None:
        return
    from gnsq_like.spark.pipeline.kept_schema import BODY, refuse_change
    from gnsq_like.spark.tables.columns import added_in_map

    if BODY not in columns.names:
        raise InvalidOption("data", pipeline.place("data"), "the table there was not made by a pipeline")
    old, new = columns[BODY].dataType, body
    refuse_change(old, new, pipeline.place("data"), pipeline.schema, widens=pipeline.format == "iceberg")
    added = added_in_map(old, new) if pipeline.format == "delta" else None
    if added is not None:
        raise InvalidOption(
            "parse.schema",
            pipeline.schema,
            f"a field is added to the values of the MAP {added.removesuffix('{}')}, and readers by deltalake could not "
            f"read the table's older rows then. Add the field elsewhere, or begin a new table: give data another place",
        )


def check_format(pipeline: Pipeline) -> None:
    """Raise InvalidOption if the place of the table has one of another format."""
    place = pipeline.place("data")
    if not place.startswith("file://"):
        return
    directory = Path(place.removeprefix("file://"))
    for kind, sign in FORMATS.items():
        if kind != pipeline.format and next(directory.glob(sign), None) is not None:
            raise InvalidOption(
                "format", pipeline.format, f"{directory} holds a table of the format {kind}: give data another place"
            )


def open_table(kind: str, url: str, *, title: str, home: str, options: dict[str, str] | None = None) -> CommittedTable:
    """The table of a format at a place, which need not exist.

    :param kind: "delta" or "iceberg"
    :param title: the table's name in a catalog, unless the options give one
    :param home: the URL of the directory where a catalog may be made
    :param options: for delta the options of the object store, for iceberg the catalog's, both by their libraries' names
    :raises InvalidOption: a package is missing, or an option
    """
    try:
        if kind == "delta":
            from gnsq_like.spark.tables.delta import DeltaLakeTable

            return DeltaLakeTable(url, options or {})
        from gnsq_like.spark.tables.iceberg import open_iceberg

        return open_iceberg(url, title=title, home=home, options=options or {})
    except ModuleNotFoundError as exc:
        raise InvalidOption(
            "format",
            kind,
            f"{exc.name} is not installed; the format needs it: install the extra [{kind}]",
        ) from exc
