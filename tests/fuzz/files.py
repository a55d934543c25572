"""Targets for nsqd's files: those of a disk queue, and nsqd.dat."""

from __future__ import annotations

import atexit
import functools
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from gnsq_like.server.broker.metadata import BadMetadata, decode
from gnsq_like.server.storage.disk_queue import DiskQueue
from gnsq_like.server.storage.records import Record
from tests.fuzz.streams import SCRATCH, head

_RECORDS: list[Record] = [(number, 1, b"%016x" % number, b"body" * number) for number in range(3)]


def disk_queue(data: bytes) -> None:
    """Whatever the files hold, a queue opens, is read to its end, and keeps what is put into it."""
    [meta_size, cut, flags], data = head(data, 3)
    meta, data = data[:meta_size], data[meta_size:]
    middle = len(data) * cut // 255
    directory = _directory()
    for path in directory.iterdir():
        path.unlink()  # only if the input before has failed
    if not flags & 1:
        (directory / "t.diskqueue.meta.dat").write_bytes(meta)
    numbers = [0, 1] if not flags & 2 else [5, 7]
    for number, part in zip(numbers, (data[:middle], data[middle:]), strict=True):
        if part:
            (directory / f"t.diskqueue.{number:06d}.dat").write_bytes(part)
    queue = _opened(directory, is_known=not flags & 4)
    most = len(data)
    assert len(_all(queue, most)) <= most
    queue.put(_RECORDS)
    queue.close()
    queue = _opened(directory)
    assert _all(queue, most) == _RECORDS
    queue.close()
    queue = _opened(directory)
    assert queue.depth == 0
    queue.discard()
    assert not os.listdir(directory)


@functools.cache
def _directory() -> Path:
    """One for all inputs, because making one takes longer than many an input."""
    made = tempfile.TemporaryDirectory(prefix="gnsq_like-fuzz-", dir=SCRATCH)
    atexit.register(made.cleanup)
    return Path(made.name)


def _opened(directory: Path, *, is_known: bool = True) -> DiskQueue:
    queue = DiskQueue(str(directory), "t", max_bytes_per_file=100, sync_every=2)
    queue.open(os.listdir(directory), is_known)
    assert queue.depth >= 0
    return queue


def _all(queue: DiskQueue, most: int) -> list[Record]:
    """All of its messages; each call takes some, or finds that there are none."""
    found: list[Record] = []
    while queue.depth:
        taken = queue.take(10, 1000)
        found += taken
        assert taken or not queue.depth
        assert len(found) <= most + len(_RECORDS)
    return found


def metadata(data: bytes) -> None:
    """nsqd.dat: topics, or BadMetadata."""
    with suppress(BadMetadata):
        decode(data)
