"""Removal of data files that belong to no table: those of killed tasks, of drivers killed before the commit, and those
that a table has dropped.

A file may be there before the commit that adds it. So only files are removed that are older than a day, and the files
are listed before the table's log is read: what is committed in between is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from contextlib import suppress
from datetime import datetime, timedelta

from pyarrow import fs

from gnsq_like.spark.tables.data_file import file_system

#: A batch that takes longer from its first file to its commit fails (``committed_table.check_files``).
UNTRACKED_AGE = timedelta(days=1)


def clean(table: str, is_ours: Callable[[str], bool], tracked: Callable[[], Set[str]], now: datetime) -> list[str]:
    """Remove the files of a table that it does not know; returns their relative paths.

    :param is_ours: whether a relative path can be that of a file of the table
    :param tracked: returns the relative paths that a reader may need
    """
    system, root = file_system(table)
    found = system.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
    old = {
        each.path.removeprefix(f"{root}/")
        for each in found
        if each.type == fs.FileType.File and each.mtime is not None and each.mtime < now - UNTRACKED_AGE
    }
    candidates = sorted(filter(is_ours, old))
    if not candidates:
        return []
    known = tracked()
    removed = [path for path in candidates if path not in known]
    for path in removed:
        with suppress(FileNotFoundError):
            system.delete_file(f"{root}/{path}")
    return removed
