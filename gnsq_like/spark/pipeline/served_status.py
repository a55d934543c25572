"""The status of a run, and the server for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from gnsq_like.errors import NSQError
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import NotBegun, PipelineFailed
from gnsq_like.spark.pipeline.maintenance import hours_of
from gnsq_like.spark.tables.data_file import file_system
from gnsq_like.spark.watch.live_server import CannotServe, LiveServer
from gnsq_like.spark.watch.run_status import RunStatus


@contextmanager
def watched(pipeline: Pipeline) -> Iterator[tuple[RunStatus, str]]:
    """The status of a run during the block, and the address where it is served; "" for nowhere.

    :raises NotBegun: it cannot be served
    """
    status = RunStatus(pipeline.title, pipeline.limit_options, pipeline.source_options.named)
    if pipeline.limit_options.nothing_for is not None:
        before = newest_batch(pipeline.place("metrics"))
        status.came_before(None if before is None else before.timestamp())
    with ExitStack() as stack:
        address = ""
        if pipeline.http_address:
            try:
                server = LiveServer(lambda: status.current, pipeline.http_address)
            except CannotServe as exc:
                raise NotBegun(str(exc)) from exc
            stack.callback(server.close)
            address = server.address
        try:
            yield status, address
        except NSQError as exc:
            status.end(str(exc))
            raise


def newest_batch(metrics: str) -> datetime | None:
    """When the last batch began, by the table of metrics; None if there is none. Raises PipelineFailed."""
    system, root = file_system(metrics)
    try:
        for hour in reversed(hours_of(metrics)):
            found = dataset.dataset(f"{root}/{hour.path}", filesystem=system, format="parquet", partitioning=None)
            if found.files:
                newest: datetime = pc.max(found.to_table(columns=["seen_at"])["seen_at"]).as_py()
                return newest
    except (OSError, pa.ArrowException) as exc:
        raise PipelineFailed(f"{metrics} cannot be read: {exc}") from exc
    return None
