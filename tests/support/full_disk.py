"""A full disk: /dev/full, or a limit on the size of this process's files."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

#: For tests that put a symbolic link to /dev/full in the place of a file.
full_disk = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Writes beyond ``size`` bytes of a file fail, pytest's own too, so it goes only around the call."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
