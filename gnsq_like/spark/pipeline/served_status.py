"""A run as it is watched: its status, and where that is served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gnsq_like.errors import NSQError
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import NotBegun
from gnsq_like.spark.pipeline.metrics_table import newest_batch
from gnsq_like.spark.watch.live_server import CannotServe, LiveServer
from gnsq_like.spark.watch.run_status import RunStatus


@contextmanager
def watched(pipeline: Pipeline) -> Iterator[tuple[RunStatus, str]]:
    """The status of a run during the block, and the address where it is served; "" for nowhere.

    :raises NotBegun: it cannot be served
    """
    status = RunStatus(pipeline.title, pipeline.limit_options, pipeline.source_options.named)
    if pipeline.limit_options.nothing_for is not None:
        before = newest_batch(pipeline)
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
