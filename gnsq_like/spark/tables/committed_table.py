"""Adds a batch to a table exactly once, despite repeats, kills, and second runs.

A table remembers the last batch of each **application**: a query that writes to it. Spark repeats at most the last
batch of a query, so the numbers that are committed only grow.

1. Tasks write new files. A process that is killed now leaves orphans, and the batch is written again.
2. ``commit`` reads the table's state. If that has the batch already, these files are orphans, too.
3. Otherwise it adds the files together with the number. The commit fails if the table has changed since it was read;
   then it begins anew. So of two drivers with the same batch, one commits it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

from gnsq_like.spark.tables.data_file import BatchOutOfOrder, DataFile, TableError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_T = TypeVar("_T")

#: How often a commit is tried that others overtake, and the seconds between the first two; the pauses double.
_TRIES, _PAUSE = 10, 0.02


@dataclass(frozen=True, slots=True)
class Care:
    """The steps to maintain a table at some time."""

    now: datetime
    #: Earlier hours are deleted; a full hour. None for no such limit.
    keep_from: datetime | None
    #: How long readers may use an older version of the table; None for the format's default.
    keep_versions: timedelta | None
    #: Hours that end later are not compacted, and the bytes of a compacted file.
    compact_before: datetime
    target_size: int
    #: Asked between two steps.
    stop: Callable[[], bool]


class CommittedTable(Protocol):
    """A table of one format at one place."""

    #: Where its files are.
    url: str

    def columns(self) -> StructType | None:
        """Its columns; None if there is no table yet. Raises TableError."""

    def prepare(self, columns: StructType) -> None:
        """Create the table, or add the columns and fields that it lacks. Raises TableError."""

    def commit(self, application: str, number: int, files: Sequence[DataFile]) -> bool:
        """Add a batch; False if the table has it already. Raises TableError, also if it has a later batch.

        :param application: the query and the table
        :param number: the batch's number in the query
        """

    def maintain(self, care: Care) -> Iterator[str]:
        """Carry out the due steps, and yield a short text for each. Raises TableError."""


def is_committed(url: str, last: int | None, number: int) -> bool:
    """Whether the batch is the last one that the table has; raises BatchOutOfOrder if it has later ones."""
    if last is None or last < number:
        return False
    if last > number:
        raise BatchOutOfOrder(
            f"{url} has batch {last} of this query, and batch {number} was to be written: another run uses the "
            f"checkpoint, or an older copy of the checkpoint was put back"
        )
    return True


def keep_trying(attempt: Callable[[], _T], conflicts: tuple[type[Exception], ...], url: str) -> _T:
    """Try a commit until no other one overtakes it; returns its result. Raises TableError."""
    for number in range(_TRIES):
        try:
            return attempt()
        except conflicts as exc:
            last = exc
            time.sleep(_PAUSE * 2**number * random.random())
    raise TableError(f"{url} cannot be changed: others change it all the time: {last}")
