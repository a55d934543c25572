"""Errors as users of Spark see them: one sentence, without Spark's internals around it.

An exception in a data source reaches the user as text: the traceback of a worker process, with the error at its end.
Our own errors say what is wrong and what to do, so the traceback is noise. Spark leaves it out if SPARK_HIDE_TRACEBACK
is set when it formats the error. A process that raised serves no further call, so setting it there affects nothing
else. Errors that are not ours keep their traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gnsq_like.errors import NSQError

#: The modules that Spark's Python needs beside gnsq_like, and their packages on PyPI.
_NEEDED = {"snappy": "python-snappy"} | {name: name for name in ("gevent", "requests", "pyarrow", "msgspec")}


class NotInstalled(NSQError):
    """The Python that Spark started lacks a package that gnsq_like needs."""


@contextmanager
def without_traceback() -> Iterator[None]:
    """Have Spark show an NSQError that leaves this block (or function, as a decorator) without its traceback."""
    try:
        yield
    except NSQError:
        _hide_traceback()
        raise
    except ModuleNotFoundError as exc:
        if exc.name not in _NEEDED:
            raise
        _hide_traceback()
        raise NotInstalled(
            f"{sys.executable}, the Python that Spark runs, lacks {_NEEDED[exc.name]}: install gnsq-like[spark] for "
            f"it, or choose another Python with PYSPARK_PYTHON, or send an environment along with --archives"
        ) from exc


def _hide_traceback() -> None:
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"
