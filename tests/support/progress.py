"""How far another process is, by the files that it makes: a moment to kill it that does not depend on the machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.support.daemons import wait_for


def wait_for_changes(directory: Path, count: int, ended: Callable[[], bool], timeout: float) -> None:
    """Wait until so many names have appeared or vanished below a directory, or the process has ended.

    :param ended: whether the process has ended
    """
    names: set[str] = _names(directory)
    seen = 0

    def changed() -> bool:
        nonlocal names, seen
        now = _names(directory)
        seen += len(now ^ names)
        names = now
        return seen >= count or ended()

    wait_for(changed, f"{count} changes below {directory}", timeout)


def _names(directory: Path) -> set[str]:
    return {os.path.join(root, name) for root, _, files in os.walk(directory) for name in files}
