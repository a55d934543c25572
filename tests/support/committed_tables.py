"""Tables with atomic commits, written without Spark, and read by what others wrote: deltalake, pyiceberg and DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.destinations import table_of
from gnsq_like.spark.tables.columns import storable
from gnsq_like.spark.tables.committed_table import CommittedTable
from gnsq_like.spark.tables.data_file import DataFile, FileWriter, new_path
from gnsq_like.spark.tables.iceberg import IcebergTable
from tests.support.ddl import schema_of

Kind = Literal["delta", "iceberg"]
KINDS: tuple[Kind, ...] = ("delta", "iceberg")

AT = datetime(2026, 11, 21, 13, 59, 50, 123456, UTC)
APPLICATION = "0b0e/data"


def columns(body: str = "number BIGINT") -> StructType:
    """The columns of a small table."""
    return schema_of(f"id STRING, seen_at TIMESTAMP, body STRUCT<{body}>")


def open_at(kind: Kind, directory: Path) -> CommittedTable:
    """The table in a directory, with its catalog if it has one."""
    directory.mkdir(parents=True, exist_ok=True)
    source = {"topic": "clicks", "channel": "table", "lookupd_http_addresses": "127.0.0.1:4161"}
    table = table_of(Pipeline(location=str(directory), source=source, format=kind))
    assert table is not None
    return table


def rows_of(numbers: Sequence[int], at: datetime = AT) -> list[dict[str, Any]]:
    """Rows of the small table."""
    return [{"id": f"{number:016x}", "seen_at": at, "body": {"number": number}} for number in numbers]


def write(table: CommittedTable, rows: list[dict[str, Any]], kind: StructType, at: datetime = AT) -> list[DataFile]:
    """Write a file, which no commit has yet."""
    schema = to_arrow_schema(storable(kind, without_small=isinstance(table, IcebergTable)), timezone="UTC")
    writer = FileWriter(table.url, new_path(at), schema)
    writer.add(pa.RecordBatch.from_pylist(rows, schema))
    return [writer.close()]


def add(table: CommittedTable, number: int, numbers: Sequence[int], at: datetime = AT) -> bool:
    """Write and commit a batch of the small table."""
    return table.commit(APPLICATION, number, write(table, rows_of(numbers, at), columns(), at))


def read(kind: Kind, directory: Path) -> list[dict[str, Any]]:
    """All rows, by the library of the format."""
    rows: list[dict[str, Any]] = read_columns(kind, directory, "*").to_pylist()
    return [{name: value for name, value in row.items() if name not in {"date", "hour"}} for row in rows]


def kind_of(format: str) -> Kind | None:
    """The format of a pipeline, if its tables have atomic commits."""
    return next((each for each in KINDS if each == format), None)


def read_columns(kind: Kind, directory: Path, *columns: str) -> pa.Table:
    """These columns of the table, by the library of the format.

    If each topic has a table, those of all of them.
    """
    found = []
    if kind == "delta":
        from deltalake import DeltaTable, QueryBuilder

        query = f"SELECT {', '.join(columns)} FROM t"
        place = directory / "data"
        for each in [place] if (place / "_delta_log").exists() else sorted(place.iterdir()):
            found.append(pa.table(QueryBuilder().register("t", DeltaTable(each)).execute(query)))
        return pa.concat_tables(found)
    from pyiceberg.catalog import load_catalog

    with load_catalog("nsq", type="sql", uri=f"sqlite:///{directory}/catalog.db?timeout=60") as catalog:
        for _, name in catalog.list_tables("nsq"):
            if name.startswith("clicks"):
                found.append(catalog.load_table(f"nsq.{name}").scan(selected_fields=columns).to_arrow())
    return pa.concat_tables(found)


def duckdb_rows(kind: Kind, directory: Path, query: str = "SELECT * FROM {table}") -> list[tuple[Any, ...]]:
    """The rows of a query, by DuckDB."""
    import duckdb

    with duckdb.connect() as connection:
        for name in ("avro", kind):
            package = Path(import_module(f"duckdb_extension_{name}").__path__[0])
            [extension] = package.rglob(f"{name}.duckdb_extension")
            connection.load_extension(str(extension))
        place = f"{directory}/data" if kind == "delta" else metadata_of(directory)
        return connection.sql(query.format(table=f"{kind}_scan('{place}')")).fetchall()


def metadata_of(directory: Path) -> str:
    """Where an Iceberg table's present metadata is."""
    from pyiceberg.catalog import load_catalog

    with load_catalog("nsq", type="sql", uri=f"sqlite:///{directory}/catalog.db?timeout=60") as catalog:
        return catalog.load_table("nsq.clicks").metadata_location
