"""Tables of windows, written without Spark, and read through the view of docs/pipeline.rst by DuckDB."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql.pandas.types import to_arrow_schema

from gnsq_like.spark.pipeline import Pipeline
from gnsq_like.spark.pipeline.ddl import schema_of
from gnsq_like.spark.pipeline.destinations import table_of
from gnsq_like.spark.pipeline.paths import batch_path
from gnsq_like.spark.pipeline.windows import WindowTable
from gnsq_like.spark.tables.folding import DEFINITIONS
from gnsq_like.spark.tables.iceberg import IcebergTable
from gnsq_like.spark.tables.parquet_files import write_file
from tests.support.pages import blocks, page, section
from tests.support.pipeline_tables import START, batch, written

FORMATS = ("parquet", "delta", "iceberg")
#: The window of docs/pipeline.rst.
WINDOW = {
    "length": "5m",
    "by": ["page"],
    "columns": {"clicks": "count(*)", "seconds": "sum(seconds)", "longest": "max(seconds)"},
}
COLUMNS = schema_of(
    "window_start TIMESTAMP, window_end TIMESTAMP, page STRING, clicks BIGINT, seconds BIGINT, longest INT, "
    "seen_at TIMESTAMP"
)
#: (clicks, seconds, longest) by the window's start and the page.
Totals = dict[tuple[datetime, str], tuple[int, int, int]]


def pipeline_at(directory: Path, format: str, **maintain: str) -> Pipeline:
    """A pipeline with a window "pages", whose metrics have batches until long after ``START``."""
    written(directory, batch(0), batch(360 * 24 * 3))
    return pipeline_for(directory, format, **maintain)


def pipeline_for(directory: Path, format: str, **maintain: str) -> Pipeline:
    """The same one again, as another process has it."""
    source = {"topic": "clicks", "channel": "c", "lookupdHttpAddresses": "127.0.0.1:1"}
    return Pipeline(
        location=str(directory / "place"),
        metrics=str(directory / "a place with 100% #" / "metrics"),
        source=source,
        format=format,
        windows={"pages": WINDOW},
        maintain=maintain,
    )


def add(pipeline: Pipeline, number: int, at: datetime, sums: Totals) -> None:
    """Write the partial sums of a batch that arrived then."""
    own = pipeline.for_window("pages")
    place = own.place("data")
    definitions = Path(place.removeprefix("file://"), DEFINITIONS)
    definitions.mkdir(parents=True, exist_ok=True)
    kept = {"added": WindowTable.read(WINDOW, "windows.pages").added}
    (definitions / "000001.json").write_text(json.dumps(kept))
    table = table_of(own)
    schema = to_arrow_schema(COLUMNS if table is None else table.stored(COLUMNS), timezone="UTC")
    rows = pa.RecordBatch.from_pylist([_row(*key, *values, at) for key, values in sums.items()], schema)
    if table is None:
        directory = Path(batch_path(place, at, f"0123-{number:06d}").removeprefix("file://"))
        directory.mkdir(parents=True, exist_ok=True)
        unfinished = directory / "_unfinished"
        parquet.write_table(pa.Table.from_batches([rows]), unfinished)
        unfinished.rename(directory / "part-0.parquet")
        return
    table.prepare(COLUMNS)
    file = write_file(iter([rows]), place, at)
    assert file is not None and table.commit("0123/windows/pages", number, [file])


def _row(start: datetime, name: str, clicks: int, seconds: int, longest: int, at: datetime) -> dict[str, Any]:
    values = (start, start + timedelta(minutes=5), name, clicks, seconds, longest, at)
    return dict(zip(COLUMNS.names, values, strict=True))


def window_of(at: datetime) -> datetime:
    """The start of the window of a time."""
    return at.replace(minute=at.minute // 5 * 5, second=0, microsecond=0)


def partial_sums(count: int, step: timedelta) -> list[tuple[datetime, Totals]]:
    """Partial sums of batches that arrived one after the other; each also has a late click."""
    found: list[tuple[datetime, Totals]] = []
    for number in range(count):
        at = START + number * step
        sums = {(window_of(at), name): (number + 1, 10 * number, number) for name in ("/", "/a")}
        found.append((at, {**sums, (window_of(START), "/late"): (1, number, number)}))
    return found


def added(batches: list[tuple[datetime, Totals]]) -> Totals:
    """The totals of batches."""
    found: Totals = {}
    for _, sums in batches:
        for key, (clicks, seconds, longest) in sums.items():
            c, s, m = found.get(key, (0, 0, 0))
            found[key] = (c + clicks, s + seconds, max(m, longest))
    return found


def documented_view() -> str:
    """The view of docs/pipeline.rst, with ``{table}`` for what it reads."""
    [view] = [each for each in blocks(section(page("pipeline.rst"), "Sums by window"), "sql") if "CREATE VIEW" in each]
    start, end = view.index("read_parquet("), view.index("GROUP BY")
    return f"{view[:start]}{{table}}\n{view[end:]}"


def source_of(pipeline: Pipeline) -> str:
    """What DuckDB reads a table of windows with."""
    own = pipeline.for_window("pages")
    place = own.place("data").removeprefix("file://")
    if own.format == "parquet":
        return f"read_parquet('{place}/*/*/*/*.parquet', union_by_name = true)"
    if own.format == "delta":
        return f"delta_scan('{place}')"
    table = table_of(own)
    assert isinstance(table, IcebergTable)
    loaded = table.load()
    assert loaded is not None
    return f"iceberg_scan('{loaded.metadata_location}')"


def query(pipeline: Pipeline, sql: str) -> list[tuple[Any, ...]]:
    """The rows of a query of the view ``pages``, or of the ``partial`` sums, by DuckDB."""
    import duckdb

    with duckdb.connect() as connection:
        for name in ("avro", pipeline.format):
            if pipeline.format == "parquet":
                break
            package = Path(import_module(f"duckdb_extension_{name}").__path__[0])
            [extension] = package.rglob(f"{name}.duckdb_extension")
            connection.load_extension(str(extension))
        source = source_of(pipeline)
        connection.execute(documented_view().format(table=source))
        connection.execute(f"CREATE VIEW partial AS SELECT * FROM {source}")
        return connection.sql(sql).fetchall()


def totals(pipeline: Pipeline) -> Mapping[tuple[datetime, str], tuple[int, ...]]:
    """What the view says."""
    rows = query(pipeline, "SELECT epoch_us(window_start), page, clicks, seconds, longest FROM pages")
    found = {
        (datetime.fromtimestamp(us / 1_000_000, UTC), name): (int(clicks), int(seconds), longest)
        for us, name, clicks, seconds, longest in rows
    }
    assert len(found) == len(rows)
    return found
