"""One run at a time on a checkpoint: a lock that ends with the process that holds it, however that ends.

Spark notices a second run on a checkpoint only when both have planned a batch, and what it then says sounds like a
loss. On a file system of the machine the system can tell before anything is read. Elsewhere there is no lock that a
killed process gives back, and Spark's own check is all there is.
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
    """Hold a checkpoint for the length of the block; nothing where it is no ``file://``.

    :raises NotBegun: another run holds it, or its directory cannot be made
    """
    if not checkpoint.startswith("file://"):
        yield
        return
    directory = Path(checkpoint.removeprefix("file://"))
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
            raise NotBegun(
                f"another run uses the checkpoint {directory}: two runs cannot share one; wait for its end"
            ) from None
        except OSError:
            pass  # a file system that knows no locks
        yield
    finally:
        os.close(held)
