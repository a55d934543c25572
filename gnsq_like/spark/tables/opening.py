"""Opening a table by the name of its format; only that format's package is loaded."""

from __future__ import annotations

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.tables.committed_table import CommittedTable


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
            "format", kind, f'{exc.name} is not installed; the format needs it: pip install "gnsq-like[{kind}]"'
        ) from exc
