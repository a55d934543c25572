"""The files below a directory, in which others may be made and removed while one looks."""

from __future__ import annotations

import os
from pathlib import Path


def files_below(directory: Path, end: str) -> list[Path]:
    """Those whose names end so; directories that go meanwhile are left out, which ``Path.rglob`` fails for."""
    return [Path(place, name) for place, _, names in os.walk(directory) for name in names if name.endswith(end)]
