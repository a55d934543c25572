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
                f"another run uses the checkpoint {directory}: two runs cannot share one; wait until it ends"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(held)
