"""A stdout whose failures can be told from those of other files."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StdoutFailed(OSError):
    """What is printed cannot be written: the disk is full, for example."""


class _Stdout(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as exc:
            raise StdoutFailed(exc.errno, exc.strerror) from exc


@contextmanager
def checked_stdout() -> Iterator[None]:
    """Within this, printing raises StdoutFailed where it raises OSError elsewhere; so does what is still buffered."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper):  # closed, or somebody's own
        yield
        return
    stdout.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Stdout(stdout.fileno(), "w", closefd=False)),
        encoding=stdout.encoding,
        errors=stdout.errors,
        line_buffering=stdout.line_buffering,
        write_through=stdout.write_through,
    )
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except StdoutFailed:
        discard_stdout(stdout.fileno())
        raise


def discard_stdout(descriptor: int = 1) -> None:
    """After a failure: what is buffered goes nowhere, because it would be written again at exit, and fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
