"""Apache Iceberg by the package pyiceberg, with any catalog that pyiceberg has.

The batch's number is a property of the table, set in the transaction that adds the files; it outlives the snapshots.
pyiceberg's own retries are off: they repeat a transaction on a new state without a look at what that has, and so
committed a batch twice. (docs/internals S10)

A table's schema in Spark's types is a property, too: Iceberg has no TINYINT and SMALLINT.

pyiceberg expires snapshots, but does not delete files. Compaction is left to the user's engine (docs/pipeline.rst).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit
from weakref import finalize

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table
from pyiceberg.transforms import HourTransform
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.tables.columns import lacks, storable
from gnsq_like.spark.tables.committed_table import Care, is_committed, keep_trying
from gnsq_like.spark.tables.data_file import DataFile, TableError, clean, is_data_file

#: The column by whose hour the table is partitioned.
PARTITION = "seen_at"
#: The options for the table's name in the catalog, and for the catalog's own name, which a SQL catalog keeps with its
#: tables. The other options are the catalog's.
IDENTIFIER, CATALOG = "identifier", "catalog"

_SCHEMA = "gnsq-like.schema"
_BATCH = "gnsq-like.batch."
_PROPERTIES = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    # One metadata file a commit: old ones go, so that they do not pile up.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "write.parquet.compression-codec": "snappy",
}


def conflicts() -> tuple[type[Exception], ...]:
    """The exceptions of a commit that lost against another one, or whose outcome is unknown."""
    conflicts: tuple[type[Exception], ...] = (CommitFailedException, CommitStateUnknownException)
    try:
        from sqlalchemy.exc import OperationalError  # SQLite's file is locked for a moment
    except ModuleNotFoundError:
        return conflicts
    return (*conflicts, OperationalError)


class IcebergTable:
    """An Iceberg table.

    :param url: the directory of its data and its metadata
    :param home: the URL of the directory for SQLite's file ``catalog.db``, if the options name no catalog
    :param options: its name in the catalog, the catalog's name, and the catalog's own options
    :raises InvalidOption: from the constructor, if there is no catalog
    """

    def __init__(self, url: str, home: str, options: Mapping[str, str]) -> None:
        if urlsplit(url).scheme == "file" and re.search("[#?%]", url + home):
            raise InvalidOption("format", "iceberg", f"its place cannot have the characters # ? % in its name: {url}")
        self.url = url
        self._properties = dict(options)
        self.identifier = self._properties.pop(IDENTIFIER)
        if not re.fullmatch(r"[^.]+(\.[^.]+)+", self.identifier):
            raise InvalidOption(
                f"table.options.{IDENTIFIER}", self.identifier, "it must be a namespace and a name, such as nsq.clicks"
            )
        self._catalog_name = self._properties.pop(CATALOG, "nsq")
        #: The catalog's file, if that is made when the table is.
        self._file: Path | None = None
        if not {"uri", "type", "py-catalog-impl"} & self._properties.keys():
            if urlsplit(home).scheme != "file":
                reason = "it must be given: the catalog, such as https://host/catalog"
                raise InvalidOption("table.options.uri", None, reason)
            self._file = Path(home.removeprefix("file://"), "catalog.db")
            self._properties |= {"type": "sql", "uri": f"sqlite:///{self._file}?timeout=60"}
        self._catalog: Catalog | None = None
        #: The columns that the table is known to have.
        self._prepared: StructType | None = None

    def catalog(self) -> Catalog:
        """The catalog; raises TableError."""
        if self._catalog is None:
            with self._named_errors():
                if self._file is not None:
                    self._file.parent.mkdir(parents=True, exist_ok=True)
                self._catalog = load_catalog(self._catalog_name, **self._properties)
            # Its connections to a database end with this table. Not at the interpreter's exit, which a forked child has
            # too: a connection that both have would be closed for both.
            finalize(self, self._catalog.close).atexit = False
        return self._catalog

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Raise TableError for any error."""
        try:
            yield
        except TableError:
            raise
        except Exception as exc:  # of whatever the catalog is made of
            text = str(exc).strip().partition("\n")[0]
            raise TableError(f"the Iceberg table {self.identifier} at {self.url} cannot be used: {text}") from exc

    def load(self) -> Table | None:
        """The table's present state; None if there is no table. Raises TableError."""
        if self._file is not None and not self._file.exists():
            return None
        with self._named_errors(), suppress(NoSuchTableError):
            return self.catalog().load_table(self.identifier)
        return None

    def loaded(self) -> Table:
        """The table's present state; raises TableError also if there is none."""
        table = self.load()
        if table is None:
            raise TableError(f"the Iceberg table {self.identifier} at {self.url} is gone: it was deleted while in use")
        return table

    def columns(self) -> StructType | None:
        table = self.load()
        if table is None:
            return None
        kept = table.properties.get(_SCHEMA)
        if kept is None:
            raise TableError(f"the Iceberg table {self.identifier} was not made by a pipeline: take another name")
        return StructType.fromJson(json.loads(kept))

    def prepare(self, columns: StructType) -> None:
        wanted = storable(columns)
        if self._prepared == wanted:
            return
        found = self.columns()
        schema = to_arrow_schema(storable(columns, without_small=True), timezone="UTC")
        with self._named_errors():
            if found is None:
                self._create(schema, wanted)
            elif lacks(found, wanted):
                keep_trying(lambda: self._add(schema, wanted), conflicts(), self.url)
        self._prepared = wanted

    def _create(self, schema: pa.Schema, columns: StructType) -> None:
        catalog = self.catalog()
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(self.identifier.rpartition(".")[0])
        properties = {**_PROPERTIES, _SCHEMA: columns.json()}
        create = catalog.create_table_transaction
        with (
            suppress(TableAlreadyExistsError),  # another process did the same
            create(self.identifier, schema, location=self.url, properties=properties) as transaction,
            transaction.update_spec() as spec,
        ):
            spec.add_field(PARTITION, HourTransform(), f"{PARTITION}_hour")

    def _add(self, schema: pa.Schema, columns: StructType) -> bool:
        table = self.loaded()
        with table.transaction() as transaction:
            with transaction.update_schema() as update:
                update.union_by_name(schema)
            transaction.set_properties({_SCHEMA: columns.json()})
        return True

    def commit(self, application: str, number: int, files: Sequence[DataFile]) -> bool:
        paths = [f"{self.url}/{each.path}" for each in files]

        def attempt() -> bool:
            table = self.loaded()
            last = table.properties.get(_BATCH + application)
            if is_committed(self.url, None if last is None else int(last), number):
                return False
            with table.transaction() as transaction:
                transaction.add_files(paths, check_duplicate_files=False)
                transaction.set_properties({_BATCH + application: str(number)})
            return True

        with self._named_errors():
            return keep_trying(attempt, conflicts(), self.url)

    def maintain(self, care: Care) -> Iterator[str]:
        if self.load() is None or care.stop():
            return
        with self._named_errors():
            if care.keep_from is not None:
                yield from _drop(self, care.keep_from)
            if not care.stop():
                keep = _KEEP_VERSIONS if care.keep_versions is None else care.keep_versions
                yield from _expire(self, care.now - keep)
        if care.stop():
            return
        removed = clean(self.url, _is_ours, lambda: _tracked(self), care.now)
        if removed:
            yield f"{len(removed)} files removed that no snapshot has"


# -- care -----------------------------------------------------------------------------------------------


#: Manifests and their lists.
_MANIFEST = re.compile(r"metadata/[^/]+\.avro")
#: Each commit writes all snapshots.
_KEEP_VERSIONS = timedelta(hours=6)


def _is_ours(path: str) -> bool:
    return is_data_file(path) or _MANIFEST.fullmatch(path) is not None


def _drop(table: IcebergTable, first: datetime) -> Iterator[str]:
    """Delete earlier rows: whole files, since each has one hour."""
    utc = first.astimezone(UTC)
    earlier = f"{PARTITION} < '{utc.isoformat()}'"

    def delete() -> bool:
        loaded = table.loaded()
        if next(iter(loaded.scan(row_filter=earlier).plan_files()), None) is None:
            return False
        loaded.delete(earlier)
        return True

    if keep_trying(delete, conflicts(), table.url):
        yield f"rows before {utc:%Y-%m-%d %H}:00 dropped"


def _expire(table: IcebergTable, before: datetime) -> Iterator[str]:
    count = 0

    def expire() -> bool:
        nonlocal count
        loaded = table.loaded()
        current = loaded.current_snapshot()
        limit = before.timestamp() * 1000
        old = [
            each for each in loaded.snapshots() if each.timestamp_ms < limit and current is not None and each != current
        ]
        count = len(old)
        if old:
            loaded.maintenance.expire_snapshots().older_than(before.astimezone(UTC).replace(tzinfo=None)).commit()
        return bool(old)

    if keep_trying(expire, conflicts(), table.url):
        yield f"{count} snapshots expired"


def _tracked(table: IcebergTable) -> set[str]:
    """The files of all snapshots: their data, manifests, and lists of manifests."""
    loaded = table.loaded()
    found: set[str] = set()
    seen: set[str] = set()
    for snapshot in loaded.snapshots():
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(loaded.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(loaded.io, discard_deleted=True)
            found.update(each.data_file.file_path for each in entries)
    return {path.removeprefix(f"{table.url}/") for path in found | seen}
