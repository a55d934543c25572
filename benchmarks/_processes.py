"""What processes use, as Linux tells it in /proc."""

from __future__ import annotations

import os
from pathlib import Path


def resident(pid: int) -> float:
    """MB of memory that a process has resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_of(pid: int) -> float | None:
    """Seconds of CPU time that a process has used; None if it has ended."""
    try:
        # The name, in brackets, may have spaces.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
