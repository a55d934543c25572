"""The hours of a table of files, and their deletion."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from pyarrow import fs

from gnsq_like.spark.tables.data_file import directories, file_system
from gnsq_like.spark.tables.errors import TableError


class Hour(NamedTuple):
    """A directory of a table."""

    start: datetime
    #: Relative to the table.
    path: str

    @property
    def end(self) -> datetime:
        """When the next hour begins."""
        return self.start + timedelta(hours=1)


def hours_of(table: str) -> list[Hour]:
    """The hours that a table has directories for, in order."""
    found = [
        Hour(start, f"{day}/{hour}")
        for day in directories(table)
        if day.startswith("date=")
        for hour in directories(f"{table}/{day}")
        if (start := _start(day, hour)) is not None
    ]
    return sorted(found)


def _start(day: str, hour: str) -> datetime | None:
    """When an hour began, by the names of its directories; None if they are others."""
    (is_day, _, date), (is_hour, _, number) = day.partition("="), hour.partition("=")
    if (is_day, is_hour) != ("date", "hour"):
        return None
    try:
        return datetime.fromisoformat(date).replace(tzinfo=UTC) + timedelta(hours=int(number))
    except ValueError:
        return None


def drop_hour(table: str, hour: Hour) -> None:
    """Delete an hour. Raises TableError."""
    system, root = file_system(table)
    try:
        system.delete_dir(f"{root}/{hour.path}")
        if isinstance(system, fs.LocalFileSystem):
            with suppress(OSError):  # it has other hours
                Path(root, hour.path).parent.rmdir()
    except OSError as exc:
        raise TableError(f"{table}/{hour.path} cannot be deleted: {exc}") from exc
