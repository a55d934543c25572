"""The points that a batch passes, for tests that stop or kill a process exactly there.

The product does not know them. They lie at its edges: a stage, connections and calls that report what passes through
them are put in place of the plain ones.

- driver: latestOffset, partitions, and after the batch commit-start, commit-middle, commit-end;
- executor: before-publish, after-publish, after-FIN (for each segment), after-END, before-yield, after-yield.

Not in ``POINTS`` is look-up, where an executor has read the batches and is about to read the ids of earlier ones: when
it begins, and later for segments that may have copies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from signal import SIGKILL
from typing import Any

import gevent
import pyarrow as pa

from gnsq_like import Connection
from gnsq_like.spark.format_options import SourceOptions
from gnsq_like.spark.source.driver import Driver
from gnsq_like.spark.source.executor import read_part
from gnsq_like.spark.staging.offsets import Offset, Part, Share
from gnsq_like.spark.staging.records import RawMessage, decode_record
from gnsq_like.spark.staging.staging_log import StagingLog, base_of
from gnsq_like.spark.staging.store import OpenStore, PosixStore, Store, open_store

POINTS = (
    "latestOffset",
    "partitions",
    "before-publish",
    "after-publish",
    "after-FIN",
    "after-END",
    "before-yield",
    "after-yield",
    "commit-start",
    "commit-middle",
    "commit-end",
)

#: Called with the name of each point that is reached.
Reached = Callable[[str], None]

_RECORD = re.compile(r".*/batch-\d+/[^/]+/\d+/\d+")


class WatchedStore:
    """A store that reports the points at which something of a batch is created or removed."""

    def __init__(self, store: Store, reached: Reached) -> None:
        self._store = store
        self._reached = reached

    def make(self, prefix: str) -> None:
        self._store.make(prefix)

    def create(self, name: str, data: bytes | memoryview) -> bool:
        if not _RECORD.fullmatch(name):
            return self._store.create(name, data)
        end = decode_record(memoryview(data), name).end is not None
        if not end:
            self._reached("before-publish")
        created = self._store.create(name, data)
        if created:
            self._reached("after-END" if end else "after-publish")
        return created

    def read(self, name: str) -> memoryview:
        return self._store.read(name)

    def exists(self, name: str) -> bool:
        return self._store.exists(name)

    def list(self, prefix: str) -> list[str]:
        if "/ids/" in prefix:
            self._reached("look-up")
        return self._store.list(prefix)

    def retire(self, prefix: str) -> None:
        if "/batch-" in prefix:
            self._reached("commit-middle")  # the watermark is there
        self._store.retire(prefix)


def watched_store(reached: Reached) -> OpenStore:
    """For ``open_store``: opens stores that report."""

    def opened(location: str, storage: Mapping[str, str]) -> Store:
        return WatchedStore(open_store(location, storage), reached)

    return opened


def watched_connection(reached: Reached) -> type[Connection]:
    """For ``connection``: connections that report when the FINs of a segment are written."""

    class WatchedConnection(Connection):
        def finish_many(self, message_ids: Sequence[bytes], **rdy: int | None) -> bool:
            queued = super().finish_many(message_ids, **rdy)
            gevent.sleep(0)  # the hub writes what is queued
            reached("after-FIN")
            return queued

    return WatchedConnection


class WatchedDriver(Driver):
    """A driver that reports when a call begins or ends."""

    def __init__(self, options: SourceOptions, reached: Reached) -> None:
        super().__init__(options, watched_store(reached))
        self._reached = reached

    def latest(self, start: Mapping[str, Any], *, limited: bool = True) -> Mapping[str, Any]:
        end = super().latest(start, limited=limited)
        if end != start:
            self._reached("latestOffset")
        return end

    def parts(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Part]:
        parts = super().parts(start, end)
        if parts:
            self._reached("partitions")
        return parts

    def commit(self, end: Mapping[str, Any]) -> None:
        self._reached("commit-start")
        super().commit(end)
        self._reached("commit-end")


def watched_part(part: Part, options: SourceOptions, reached: Reached) -> Iterator[pa.RecordBatch]:
    """``read_part``, which reports."""
    store, connection = watched_store(reached), watched_connection(reached)
    for rows in read_part(part, options, open_store=store, connection=connection):
        reached("before-yield")
        yield rows
        reached("after-yield")


class KillAt:
    """Kills when a point is reached for the nth time: "after-FIN:2"; "" and unknown ones are never reached.

    :param kill: how; this process, if not given
    """

    def __init__(self, at: str, kill: Callable[[], None] = lambda: os.kill(os.getpid(), SIGKILL)) -> None:
        self._point, _, count = at.partition(":")
        self._left = int(count or 1)
        self._kill = kill

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if not self._left:
                self._kill()


def kill_session(session: int) -> None:
    """SIGKILL for all processes of a session, this one last."""
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and int(path.name) != os.getpid() and os.getsid(int(path.name)) == session:
                os.kill(int(path.name), SIGKILL)
        except ProcessLookupError:
            continue
    if os.getsid(0) == session:
        os.kill(os.getpid(), SIGKILL)


# -- messages and a log of staged messages, for tests of the stage ---------------------------------

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
