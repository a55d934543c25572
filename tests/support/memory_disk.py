"""Files in memory, for properties that write hundreds of times what the disk would have to sync each time."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

_MEMORY = Path("/dev/shm")


def memory_directory() -> "TemporaryDirectory[str]":
    """A temporary directory, in memory where the system has a file system for that."""
    return TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)
