"""Lines of a file that another process appends to: its last line may be there in part, whatever writes it."""

from __future__ import annotations

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """The lines that have ended so far, without their ends."""
    complete, _, _ = path.read_text().rpartition("\n")
    return complete.splitlines()
