"""Care of a pipeline's tables, and a reader of them, beside all runs of a pipeline that is killed.

All rows of a batch have the same ``seen_at``: so a reader that has seen a part of a batch sees more of it later.

Of plain files, only hours are compacted that are over, and readers of the present hour may see parts of a batch. So
batches that are done are moved into an hour of yesterday, as if they had arrived then, and that hour is compacted and
read. A reader reads again if the hour was replaced meanwhile, which the documentation asks for.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from gnsq_like.spark.pipeline import load_pipeline
from gnsq_like.spark.pipeline.maintenance import maintain_tables
from tests.support.committed_tables import kind_of, read_columns

#: Seconds between two looks at a table, and two turns of its care: both take a core while they last.
_PAUSE = 1.0
_READ = ("seen_at", "nsqd_address", "topic", "id")


class Beside:
    """Maintains a pipeline's tables, and reads them, in threads, within the block."""

    def __init__(self, config: Path, format: str) -> None:
        pipeline = load_pipeline(config)
        self._pipeline = replace(pipeline, maintain={"compact_after": "0", "keep_versions": "1h"})
        self._kind = kind_of(format)
        self._out = config.parent / "out"
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in (self._maintain, self._look)]
        #: Held while batches of plain files are moved: a listing meanwhile would miss some.
        self._moving = threading.Lock()
        self.reads = 0
        #: Reads of plain files that were repeated, because the hour was replaced meanwhile.
        self.repeated = 0
        self.maintained: Counter[str] = Counter()
        self.errors: list[str] = []
        self._seen: dict[Any, int] = {}

    def __enter__(self) -> Beside:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for each in self._threads:
            each.join()

    def _run(self, step: Callable[[], None]) -> None:
        """Take a step after each batch."""
        done: set[str] = set()
        commits = self._out / "checkpoint" / "commits"
        while not self._is_over.wait(_PAUSE):
            before = set(os.listdir(commits)) if commits.exists() else set()
            if before == done:
                continue
            try:
                step()
            except Exception as exc:
                self.errors.append(repr(exc))
            done = before

    def _maintain(self) -> None:
        now = datetime.now(UTC)
        if self._kind is None:
            with self._moving:
                self._move(now)
        else:
            now += timedelta(hours=2)  # as if the present hour were over
        for line in maintain_tables(self._pipeline, now=now):
            self.maintained.update({" ".join(word for word in line.split() if word.isalpha()): 1})

    def _yesterday(self, now: datetime) -> str:
        return f"date={now - timedelta(days=1):%Y-%m-%d}/hour=0"

    def _move(self, now: datetime) -> None:
        """Move the batches that are done, which no run repeats."""
        done = {int(name) for name in os.listdir(self._out / "checkpoint" / "commits") if name.isdigit()}
        for batch in self._directories("date=*/hour=*/batch=*"):
            hour, name = batch.parent, batch.name.removeprefix("batch=")
            if name.startswith("compacted-") or int(name.rpartition("-")[2]) not in done:
                continue
            to = hour.parent.parent / self._yesterday(now)
            if hour != to:
                to.mkdir(parents=True, exist_ok=True)
                batch.rename(to / batch.name)

    def _directories(self, pattern: str) -> list[Path]:
        """Those of the table, or of each topic's. Without ``**``: Spark makes and removes some in those of a batch."""
        data = self._out / "data"
        return [*data.glob(pattern), *data.glob(f"*/{pattern}")]

    def _look(self) -> None:
        found = self._read_files() if self._kind is None else read_columns(self._kind, self._out, *_READ)
        # Each topic may have a table of its own.
        batches = Counter(zip(found["seen_at"].to_pylist(), found["topic"].to_pylist(), strict=True))
        for batch, count in self._seen.items():
            if batches[batch] != count:
                self.errors.append(f"{batches[batch]} rows of {batch}, and {count} before")
        if found.group_by(["nsqd_address", "topic", "id"]).aggregate([]).num_rows != found.num_rows:
            self.errors.append("rows are there twice")
        self._seen = dict(batches)
        self.reads += bool(batches)

    def _read_files(self) -> pa.Table:
        """The hour of yesterday, of all tables."""
        while True:
            hours = self._directories(self._yesterday(datetime.now(UTC)))
            before = _compactions(hours)
            try:
                found = self._read_hours(hours)
            except (FileNotFoundError, pa.ArrowInvalid):  # an hour that seems to have no files has no columns
                if _compactions(hours) == before:
                    raise
            else:
                if _compactions(hours) == before:
                    return found
            self.repeated += 1

    def _read_hours(self, hours: Sequence[Path]) -> pa.Table:
        from pyarrow import dataset

        empty = pa.table({name: [] for name in _READ})
        with self._moving:
            listed = [dataset.dataset(each, format="parquet") for each in hours]
        return pa.concat_tables(each.to_table(columns=list(_READ)) for each in listed) if listed else empty


def _compactions(hours: Sequence[Path]) -> set[Path]:
    """Other names, if one of the hours was replaced."""
    return {each for hour in hours for each in hour.glob("batch=compacted-*")}
