"""Care of a pipeline's tables: compacts small files (in ``spark/tables``), and removes old hours and files of killed
tasks.

It may run beside the pipeline and beside readers. Files that a reader or an unfinished batch may need stay: a Delta or
Iceberg table keeps the files of older versions as long as ``keep_versions`` says. Plain Parquet files are not
compacted: without a log of the valid files, a reader that has just listed an hour would miss files, or rows.

A run does it beside its batches (:class:`Leisure`), in a native thread and without an effect on the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import gevent
from pyarrow import fs

from gnsq_like.spark.pipeline.config import TableOptions
from gnsq_like.spark.pipeline.destinations import table_of
from gnsq_like.spark.pipeline.owners import locked
from gnsq_like.spark.tables.committed_table import Care
from gnsq_like.spark.tables.data_file import TableError, clean, directories, file_system, hour_of, is_hidden

if TYPE_CHECKING:
    from gnsq_like.spark.pipeline.config import Pipeline

logger = logging.getLogger(__name__)

_IN_USE = "the tables are being maintained already, by the holder of {}.lock"


def maintain_tables(
    pipeline: Pipeline, *, stop: Callable[[], bool] = lambda: False, now: datetime | None = None
) -> Iterator[str]:
    """Carry out the due steps, and yield a short text for each.

    :param stop: asked between two steps
    :param now: the time of day
    :raises InvalidOption: wrong configuration
    :raises NotBegun: another process does it
    :raises TableError: a table could not be maintained; the others were
    :raises PipelineFailed: the metrics cannot be read
    """
    now = now or datetime.now(UTC)
    options = pipeline.table_options
    failed: TableError | None = None
    with locked(f"{pipeline.place('data')}-care", _IN_USE):
        for name, own in _tables(pipeline):
            try:
                for line in _care_of_data(own, options, now, stop):
                    yield f"{name}: {line}"
            except TableError as exc:
                failed = exc
        for what in ("rejected", "metrics", "archive"):
            if what == "archive" and not pipeline.archive:
                continue
            try:
                keep = getattr(options, f"keep_{what}")
                if keep is not None:
                    first = _full_hour(now - timedelta(seconds=keep))
                    for line in _drop_hours(pipeline.place(what), first, stop):
                        yield f"{what}: {line}"
                for line in _drop_hidden(pipeline.place(what), now):
                    yield f"{what}: {line}"
            except TableError as exc:
                failed = exc
    if failed is not None:
        raise failed


def _tables(pipeline: Pipeline) -> list[tuple[str, Pipeline]]:
    """The tables for rows, with their names. Topics that a pattern has found are known by their directories."""
    if not pipeline.is_by_topic:
        return [("data", pipeline)]
    # "date=" is of a table that all topics shared once.
    names = (name for name in directories(pipeline.place("data")) if not name.startswith((".", "_", "date=")))
    found = {unquote(name) for name in names}
    return [(f"data of {topic}", pipeline.for_topic(topic)) for topic in sorted(found | pipeline.topics.keys())]


def _care_of_data(pipeline: Pipeline, options: TableOptions, now: datetime, stop: Callable[[], bool]) -> Iterator[str]:
    keep_from = None if options.keep_data is None else _full_hour(now - timedelta(seconds=options.keep_data))
    table = table_of(pipeline)
    if table is not None:
        keep_versions = None if options.keep_versions is None else timedelta(seconds=options.keep_versions)
        compact_before = now - timedelta(seconds=options.compact_after)
        yield from table.maintain(Care(now, keep_from, keep_versions, compact_before, options.target_size, stop))
        return
    if keep_from is not None:
        yield from _drop_hours(pipeline.place("data"), keep_from, stop)
    yield from _drop_hidden(pipeline.place("data"), now)


def _drop_hidden(place: str, now: datetime) -> Iterator[str]:
    """Remove the files of killed tasks and drivers."""
    removed = clean(place, is_hidden, set, now)
    if removed:
        yield f"{len(removed)} files removed that were never part of the table"


def _full_hour(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _drop_hours(place: str, first: datetime, stop: Callable[[], bool]) -> Iterator[str]:
    old = [each for each in hours_of(place) if each.start < first]
    for hour in old:
        if stop():
            return
        drop_hour(place, hour)
    if old:
        yield f"{len(old)} hours before {first:%Y-%m-%d %H}:00 deleted"


# -- beside a run ---------------------------------------------------------------------------------------


#: Seconds that the end of a run waits for a step of it; the process may end in the middle of one.
_PATIENCE = 10.0


class Leisure:
    """The care of a pipeline's tables while it runs, as often as ``[table] maintain_every`` says.

    :raises InvalidOption: from the constructor, for a wrong value
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._every = pipeline.table_options.maintain_every
        #: The monotonic time at which it is due.
        self._due = time.monotonic() + self._every
        self._is_stopped = False
        #: The last one's end.
        self._result: Any = None

    def check(self) -> None:
        """Begin if it is time. Never switches."""
        if not self._every or time.monotonic() < self._due or not self._is_idle():
            return
        self._due = time.monotonic() + self._every
        # A native thread in a patched process, too: a greenlet would stop all others.
        self._result = gevent.get_hub().threadpool.spawn(self._work)

    def stop(self) -> None:
        """End it after its present step, if that does not take too long. May switch."""
        self._is_stopped = True
        if self._result is not None:
            self._result.wait(timeout=_PATIENCE)

    def _is_idle(self) -> bool:
        return self._result is None or self._result.ready()

    def _work(self) -> None:
        try:
            for line in maintain_tables(self._pipeline, stop=lambda: self._is_stopped):
                logger.info("%s: %s", self._pipeline.title, line)
        except Exception as exc:
            logger.warning("%s: the tables could not be maintained, and will be later: %s", self._pipeline.title, exc)


# -- hours of plain files -------------------------------------------------------------------------------


class Hour(NamedTuple):
    """A directory of a table."""

    start: datetime
    #: Relative to the table.
    path: str


def hours_of(table: str) -> list[Hour]:
    """The hours that a table has directories for, in order."""
    found = [
        Hour(start, f"{day}/{hour}")
        for day in directories(table)
        if day.startswith("date=")
        for hour in directories(f"{table}/{day}")
        if (start := hour_of(day, hour)) is not None
    ]
    return sorted(found)


def drop_hour(table: str, hour: Hour) -> None:
    """Delete an hour. Raises TableError."""
    system, root = file_system(table)
    try:
        system.delete_dir(f"{root}/{hour.path}")
        if isinstance(system, fs.LocalFileSystem):
            with suppress(OSError):  # it has other hours
                Path(root, hour.path).parent.rmdir()
    except OSError as exc:
        raise TableError(f"{table}/{hour.path} cannot be deleted: {exc}") from exc
