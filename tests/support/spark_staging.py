"""Messages and a log of staged messages, for tests of the stage."""

from __future__ import annotations

from pathlib import Path

from gnsq_like.spark.staging.offsets import Offset, Part, Share
from gnsq_like.spark.staging.segments import RawMessage
from gnsq_like.spark.staging.staging_log import StagingLog, base_of
from gnsq_like.spark.staging.store import PosixStore

ADDRESS = "[::1]:4150"


def message(number: int, attempts: int = 1) -> RawMessage:
    """A message whose id and body follow from its number."""
    return (number, attempts, b"%016x" % number, b"body %d" % number)


def log_in(directory: Path, batches: int = 1) -> tuple[StagingLog, list[Part]]:
    """Make a log with so many planned batches, of one part each; returns these parts."""
    log = StagingLog(PosixStore(directory), base_of("topic#ephemeral", "channel"), directory.name)
    log.create()
    parts = []
    for batch in range(1, batches + 1):
        offset = Offset(log.id, batch, {ADDRESS: Share(100)})
        log.write_plan(offset)
        parts += offset.parts()
    log.make_parts(parts)
    return log, parts
