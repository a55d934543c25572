"""Care of a pipeline's tables: few large files instead of many small ones, and nothing that is older than wanted.

It may run beside the pipeline and beside readers. Files that a reader or an unfinished batch may need stay: a table of
Delta or Iceberg keeps what older versions have for ``keep_versions``; of plain Parquet files, only hours are compacted
that are complete by the metrics, and over since ``compact_after``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from gnsq_like.errors import InvalidOption, UsageError
from gnsq_like.spark.options import duration, option, parse_options, size
from gnsq_like.spark.pipeline.claim import care_claimed
from gnsq_like.spark.tables.errors import TableError

if TYPE_CHECKING:
    from gnsq_like.spark.pipeline.config import Pipeline
    from gnsq_like.spark.tables.folding import Folding

_HOUR, _DAY = 3600.0, 86400.0
#: The formats' defaults of compact_after and keep_versions, in seconds. A reader of Parquet files that has listed an
#: hour fails, or lacks rows, if that is compacted then. Each commit to an Iceberg table writes all of its snapshots.
_COMPACT_AFTER = {"parquet": _DAY, "delta": _HOUR, "iceberg": _HOUR}
_KEEP_VERSIONS = {"parquet": 0.0, "delta": 7 * _DAY, "iceberg": 6 * _HOUR}


def _at_least(least: float, words: str) -> Callable[[str], float]:
    def read(value: str) -> float:
        result = duration(value)
        if result < least:
            raise UsageError(f"it must be at least {words}")
        return result

    return read


@dataclass(frozen=True, slots=True)
class MaintainOptions:
    """The table [maintain]. Durations are in seconds; None: the format's default, or for ever."""

    #: How often a run does it; 0 for never.
    every: float = option("every", duration, 0.0)
    #: Bytes of a file.
    target_size: int = option("target_size", size(1 << 20), 128 << 20)
    #: How long an hour is over before it is compacted.
    compact_after: float | None = option("compact_after", duration, None)
    #: How long readers may use an older version of the table.
    keep_versions: float | None = option("keep_versions", duration, None)
    keep_data: float | None = option("keep_data", _at_least(_DAY, "a day"), None)
    keep_rejected: float | None = option("keep_rejected", _at_least(_DAY, "a day"), None)
    keep_metrics: float | None = option("keep_metrics", _at_least(_DAY, "a day"), None)
    keep_archive: float | None = option("keep_archive", _at_least(_DAY, "a day"), None)
    keep_windows: float | None = option("keep_windows", _at_least(_DAY, "a day"), None)

    @property
    def hours_kept(self) -> dict[str, float]:
        """How long the tables beside ``data`` keep their hours, where that is limited."""
        kept = {"rejected": self.keep_rejected, "metrics": self.keep_metrics, "archive": self.keep_archive}
        return {what: keep for what, keep in kept.items() if keep is not None}


def maintain_options(pipeline: Pipeline) -> MaintainOptions:
    """The pipeline's table [maintain], read; raises InvalidOption."""
    try:
        return parse_options(MaintainOptions, pipeline.maintain)
    except InvalidOption as exc:
        raise InvalidOption(f"maintain.{exc.option}", exc.value, exc.reason) from None


def maintain_tables(
    pipeline: Pipeline, *, stop: Callable[[], bool] = lambda: False, now: datetime | None = None
) -> Iterator[str]:
    """Do what is to be done, step by step, and return each in a few words.

    :param stop: asked between two steps
    :param now: the time of day
    :raises InvalidOption: wrong configuration
    :raises NotBegun: another process does it
    :raises TableError: a table could not be maintained; the others were
    :raises PipelineFailed: the metrics cannot be read
    """
    now = now or datetime.now(UTC)
    options = maintain_options(pipeline)
    failed: TableError | None = None
    with care_claimed(pipeline.place("data")):
        for name, own in _tables(pipeline):
            try:
                for line in _care_of_data(own, options, now, stop):
                    yield f"{name}: {line}"
                for window in own.windows:
                    for line in _care_of_windows(own.for_window(window), options, now, stop):
                        yield f"{window}{name.removeprefix('data')}: {line}"
            except TableError as exc:
                failed = exc
        for what, keep in options.hours_kept.items():
            if what == "archive" and not pipeline.archive:
                continue
            try:
                for line in _drop_hours(pipeline.place(what), _full_hour(now - timedelta(seconds=keep)), stop):
                    yield f"{what}: {line}"
            except TableError as exc:
                failed = exc
    if failed is not None:
        raise failed


def _tables(pipeline: Pipeline) -> list[tuple[str, Pipeline]]:
    """The tables for rows, with their names. Topics that a pattern has found are known by their directories."""
    if not pipeline.is_by_topic:
        return [("data", pipeline)]
    from gnsq_like.spark.tables.data_file import directories

    # "date=" is of a table that all topics shared once.
    names = (name for name in directories(pipeline.place("data")) if not name.startswith((".", "_", "date=")))
    found = {unquote(name) for name in names}
    return [(f"data of {topic}", pipeline.for_topic(topic)) for topic in sorted(found | pipeline.topics.keys())]


def _care_of_data(
    pipeline: Pipeline, options: MaintainOptions, now: datetime, stop: Callable[[], bool]
) -> Iterator[str]:
    keep_from = None if options.keep_data is None else _full_hour(now - timedelta(seconds=options.keep_data))
    before = now - timedelta(seconds=_or(options.compact_after, _COMPACT_AFTER[pipeline.format]))
    if pipeline.format == "parquet":
        if keep_from is not None:
            yield from _drop_hours(pipeline.place("data"), keep_from, stop)
        compact = partial(_compact_parquet, target=options.target_size, stop=stop)
        yield from _rewrite_parquet(pipeline, "compacted", before, compact)
    else:
        yield from _care_of_committed(pipeline, options, now, stop, before, keep_from)


def _care_of_windows(
    pipeline: Pipeline, options: MaintainOptions, now: datetime, stop: Callable[[], bool]
) -> Iterator[str]:
    """Fold what is over of a table of windows (``tables.folding``), and delete what is old."""
    from gnsq_like.spark.pipeline.destinations import table_of
    from gnsq_like.spark.tables.folding import folding_of

    keep_from = None if options.keep_windows is None else _full_hour(now - timedelta(seconds=options.keep_windows))
    before = now - timedelta(seconds=_or(options.compact_after, _COMPACT_AFTER[pipeline.format]))
    folding = folding_of(pipeline.place("data"))
    if folding is None:
        return
    if pipeline.format == "parquet":
        if keep_from is not None:
            yield from _drop_hours(pipeline.place("data"), keep_from, stop)
        yield from _rewrite_parquet(pipeline, "folded", before, partial(_fold_parquet, folding=folding, stop=stop))
        return
    table = table_of(pipeline)
    if pipeline.format == "delta":
        from gnsq_like.spark.tables import delta, delta_care

        assert isinstance(table, delta.DeltaLakeTable)
        yield from delta_care.fold(table, folding, before, stop)
    else:
        from gnsq_like.spark.tables import iceberg, iceberg_care

        assert isinstance(table, iceberg.IcebergTable)
        yield from iceberg_care.fold(table, folding, before, stop)
    # A file is a sign that an hour is folded, so they are not compacted.
    never = datetime.min.replace(tzinfo=UTC)
    yield from _care_of_committed(pipeline, options, now, stop, never, keep_from)


def _care_of_committed(
    pipeline: Pipeline,
    options: MaintainOptions,
    now: datetime,
    stop: Callable[[], bool],
    before: datetime,
    keep_from: datetime | None,
) -> Iterator[str]:
    from gnsq_like.spark.pipeline.destinations import table_of

    keep_versions = timedelta(seconds=_or(options.keep_versions, _KEEP_VERSIONS[pipeline.format]))
    table = table_of(pipeline)
    if pipeline.format == "delta":
        from gnsq_like.spark.tables import delta, delta_care

        assert isinstance(table, delta.DeltaLakeTable)
        yield from delta_care.care(
            table,
            now,
            target=options.target_size,
            compact_before=before,
            keep_from=keep_from,
            keep_versions=keep_versions,
            stop=stop,
        )
    else:
        from gnsq_like.spark.tables import iceberg, iceberg_care

        assert isinstance(table, iceberg.IcebergTable)
        yield from iceberg_care.care(table, now, keep_from=keep_from, keep_versions=keep_versions, stop=stop)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _full_hour(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _rewrite_parquet(
    pipeline: Pipeline, done: str, before: datetime, rewrite: Callable[[str, Path, datetime], Iterator[str]]
) -> Iterator[str]:
    """Rewrite the hours of plain files that have ended by then and are complete.

    :param done: what ``rewrite`` does with them, as "compacted"
    :param rewrite: called with the table's place, its directory, and the end of what may be rewritten
    """
    place = pipeline.place("data")
    complete = _complete_before(pipeline)
    if complete is None:
        return
    if not place.startswith("file://"):
        yield f"not {done}: plain Parquet files can only be {done} on a file system of the machine"
        return
    yield from rewrite(place, Path(place.removeprefix("file://")), min(before, complete))


def _compact_parquet(
    place: str, table: Path, before: datetime, *, target: int, stop: Callable[[], bool]
) -> Iterator[str]:
    from gnsq_like.spark.tables.hours import Stopped, compact_hour, hours_of

    for hour in hours_of(place):
        if stop() or hour.end > before:
            return
        try:
            done = compact_hour(table, hour, target, stop)
        except Stopped:
            return
        if done is not None:
            yield f"{hour.start:%Y-%m-%d %H}:00: {done.before} files compacted into {done.after}"


def _fold_parquet(
    place: str, table: Path, before: datetime, *, folding: Folding, stop: Callable[[], bool]
) -> Iterator[str]:
    from gnsq_like.spark.tables.folding import units_of
    from gnsq_like.spark.tables.hours import count_files, fold_files, hours_of

    files = [hour.start for hour in hours_of(place) for _ in range(count_files(table, hour))]
    for unit in units_of(files, before):
        if stop():
            return
        done = fold_files(table, unit.path, folding.fold)
        yield f"{unit}: {done.before} rows folded into {done.after}"


def _complete_before(pipeline: Pipeline) -> datetime | None:
    """Until when hours are complete: no unfinished batch is of an earlier one. None if there are no batches yet.

    Batches are written one after the other, and their metrics last. The driver's clock may go back by as much as
    ``dedupe_within`` before a run ends.
    """
    from gnsq_like.spark.pipeline.report import newest_batch

    newest = newest_batch(pipeline)
    if newest is None:
        return None
    complete = newest - timedelta(seconds=max(pipeline.dedupe_within, _HOUR))
    redelivered = _unfinished_redelivery(pipeline.redelivered)
    return complete if redelivered is None else min(complete, _full_hour(redelivered))


def _unfinished_redelivery(notes: str) -> datetime | None:
    """When the messages arrived that an unfinished redelivery was writing; None if no redelivery is unfinished."""
    from pyarrow import fs

    from gnsq_like.spark.tables.data_file import file_system

    system, root = file_system(notes)
    try:
        found = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
        names = {each.base_name for each in found}
        for name in sorted(names, reverse=True):
            if name.endswith(".json") and f"{name.removesuffix('.json')}.done" not in names:
                with system.open_input_stream(f"{root}/{name}") as stream:
                    return datetime.fromisoformat(json.loads(stream.read())["seen_at"])
    except (OSError, ValueError) as exc:
        raise TableError(f"{notes} cannot be read: {exc}") from exc
    return None


def _drop_hours(place: str, first: datetime, stop: Callable[[], bool]) -> Iterator[str]:
    from gnsq_like.spark.tables.hours import drop_hour, hours_of

    old = [each for each in hours_of(place) if each.start < first]
    for hour in old:
        if stop():
            return
        drop_hour(place, hour)
    if old:
        yield f"{len(old)} hours before {first:%Y-%m-%d %H}:00 deleted"
