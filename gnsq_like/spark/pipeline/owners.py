"""The owners of tables and checkpoints, and the tables of a pipeline.

::

    <table>/_pipeline/<id>              the pipeline that writes to the table: the id of its query
    <checkpoint>/tables/<table's place>     a table that this checkpoint's batches are in

Spark keeps the id in the checkpoint. So a second pipeline with the same table, which would write every message a second
time, is refused before it writes anything; and a table that is gone is missed, although its messages never come again.
Readers of tables pass over names that begin with "_". Both notes are made right before the first write.

One run at a time has a checkpoint, and one process maintains the tables: a lock says so, which ends with the process
that holds it, even if that is killed. Spark notices a second run on a checkpoint only when both have planned a batch,
and its error then sounds like data loss. Only file systems of the machine have such locks; elsewhere, Spark's own check
must do.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import quote

from gnsq_like.spark.pipeline.faults import NotBegun
from gnsq_like.spark.tables.data_file import TableError, file_system, list_names, read_text, write_text

_OWNER = "_pipeline"


class Owner:
    """The pipeline of a checkpoint, as the owner of its tables.

    :param adopt: whether to take tables that are another pipeline's, and to make those anew that are gone
    """

    def __init__(self, checkpoint: str, *, adopt: bool = False) -> None:
        self._checkpoint = checkpoint
        self._adopt = adopt
        #: The tables that are noted as ours.
        self._taken: set[str] = set()

    def check(self, place: str, *, exists: bool) -> None:
        """Raise NotBegun if a table is not ours, or gone. Writes nothing.

        :param exists: whether there is a table
        """
        if self._adopt or place in self._taken:
            return
        owners = list_names(f"{place}/{_OWNER}")
        if exists and owners:
            is_ours = self._query_id() in owners
        else:  # gone, or of an earlier version, without an owner
            is_ours = bool(list_names(f"{self._checkpoint}/commits"))
            self._check_not_gone(place, has_batches=is_ours)
        if exists and not is_ours:
            raise NotBegun(
                f"the table {place} is that of another pipeline, with another checkpoint than {self._checkpoint}: with "
                f"both, its messages would be there twice. Give data another place; or, if the other pipeline has "
                f"ended for good, or this one has lost its checkpoint, take the table over: run once with --adopt "
                f"(adopt=True)"
            )

    def _check_not_gone(self, place: str, *, has_batches: bool) -> None:
        # Without a batch that is done, all messages come again.
        if has_batches and quote(place, safe="") in list_names(f"{self._checkpoint}/tables"):
            raise NotBegun(
                f"the table {place}, which the checkpoint {self._checkpoint} has batches in, is gone, and their "
                f"messages will not come again. Put it back, or have a new one made for the later messages: run once "
                f"with --adopt (adopt=True)"
            )

    def take(self, place: str, query_id: str) -> None:
        """Note that a table is ours, before each batch; raises TableError if it has been deleted or taken since."""
        found = list_names(f"{place}/{_OWNER}")
        if place not in self._taken:
            if self._adopt:
                for other in set(found) - {query_id}:
                    system, path = file_system(f"{place}/{_OWNER}/{other}")
                    system.delete_file(path)
            if query_id not in found:
                write_text(f"{place}/{_OWNER}/{query_id}", "")
            name = quote(place, safe="")
            if name not in list_names(f"{self._checkpoint}/tables"):
                write_text(f"{self._checkpoint}/tables/{name}", "")
            found = list_names(f"{place}/{_OWNER}")
            self._taken.add(place)
        if found != [query_id]:
            why = "another pipeline writes to it" if found else "it was deleted"
            raise TableError(f"the table {place} is this pipeline's no longer: {why} while the pipeline ran")

    def _query_id(self) -> str | None:
        if "metadata" not in list_names(self._checkpoint):
            return None
        found: str = json.loads(read_text(f"{self._checkpoint}/metadata"))["id"]
        return found


# -- one run at a time ----------------------------------------------------------------------------------


def claimed(checkpoint: str) -> AbstractContextManager[None]:
    """Hold a checkpoint during the block (:func:`locked`)."""
    return locked(checkpoint, "another run uses the checkpoint {}: two runs cannot share one; wait until it ends")


@contextmanager
def locked(url: str, busy: str) -> Iterator[None]:
    """Hold the lock beside a directory during the block, if it is a ``file://`` URL.

    :param busy: the error's text, with a place for the directory
    :raises NotBegun: another process holds it, or the directory around it cannot be made
    """
    if not url.startswith("file://"):
        yield
        return
    directory = Path(url.removeprefix("file://"))
    path = directory.with_name(f"{directory.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as exc:
        raise NotBegun(f"cannot write to {path.parent}: {exc.strerror or exc}") from exc
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotBegun(busy.format(directory)) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(held)
