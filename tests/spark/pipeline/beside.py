"""Care of a pipeline's tables, and a reader of them, beside all runs of a pipeline that is killed.

All rows of a batch have the same ``seen_at``: so a reader that has seen a part of a batch sees more of it later.

Readers of plain files may see a part of the batch that is being written, so only batches that are done are read.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
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
        if format != "parquet":
            pipeline = replace(pipeline, table={"compact_after": "0", "keep_versions": "1h"})
        self._pipeline = pipeline
        self._kind = kind_of(format)
        self._out = config.parent / "out"
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in (self._maintain, self._look)]
        self.reads = 0
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
        now = datetime.now(UTC) + timedelta(hours=2)  # as if the present hour were over
        for line in maintain_tables(self._pipeline, now=now):
            self.maintained.update({" ".join(word for word in line.split() if word.isalpha()): 1})

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
        """The batches that are done, of all tables."""
        from pyarrow import dataset

        done = {int(name) for name in os.listdir(self._out / "checkpoint" / "commits") if name.isdigit()}
        data, pattern = self._out / "data", "date=*/hour=*/batch=*"
        batches = [*data.glob(pattern), *data.glob(f"*/{pattern}")]
        listed = [each for each in batches if int(each.name.rpartition("-")[2]) in done]
        read = [dataset.dataset(each, format="parquet").to_table(columns=list(_READ)) for each in listed]
        return pa.concat_tables(read) if read else pa.table({name: [] for name in _READ})
