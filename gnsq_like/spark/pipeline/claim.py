"""One run at a time on a checkpoint: a lock that ends with the process that holds it, even if that is killed.

Spark notices a second run on a checkpoint only when both have planned a batch, and its error then sounds like data
loss. On a file system of the machine, a lock shows it before anything is read. Elsewhere there are no locks that end
with a killed process, and Spark's own check must do.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnsq_like.spark.pipeline.faults import NotBegun


@contextmanager
def claimed(checkpoint: str) -> Iterator[None]:
    """Hold a checkpoint during the block, if it is a ``file://`` URL.

    :raises NotBegun: another run holds it, or its directory cannot be made
    """
    said = "another run uses the checkpoint {}: two runs cannot share one; wait until it ends"
    with _held(checkpoint, said):
        yield


@contextmanager
def care_claimed(table: str) -> Iterator[None]:
    """Be the only one to maintain a pipeline's tables during the block, if its own table is a ``file://`` URL.

    :raises NotBegun: somebody else does it, or the directory around the table cannot be made
    """
    with _held(f"{table}-care", "the tables are being maintained already, by the holder of {}.lock"):
        yield


@contextmanager
def _held(url: str, said: str) -> Iterator[None]:
    """Hold the lock beside a directory; if another process holds it, raise NotBegun with this text."""
    if not url.startswith("file://"):
        yield
        return
    directory = Path(url.removeprefix("file://"))
    path = directory.with_name(f"{directory.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as exc:
        raise NotBegun(f"cannot write to {path.parent}: {exc.strerror or exc}") from exc
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotBegun(said.format(directory)) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(held)
