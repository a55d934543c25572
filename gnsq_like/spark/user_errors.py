"""Errors for the user of Spark: the sentence, without Spark's insides around it.

What a data source raises reaches the user as text: the traceback of a worker process, ending with the error. For
our own errors, which say what is wrong and what to do, all but the end is noise. Spark leaves the traceback out
where SPARK_HIDE_TRACEBACK is set when it formats one; the process that raised serves no further call, so
setting it there changes nothing else. Errors that are not ours keep their traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gnsq_like.errors import NSQError

#: What Spark's Python must have beside gnsq_like, and what it is called on PyPI.
_NEEDED = {"gevent": "gevent", "requests": "requests", "snappy": "python-snappy", "pyarrow": "pyarrow"}


class NotInstalled(NSQError):
    """The Python that Spark started lacks what gnsq_like needs."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """An NSQError that leaves this block (or, as a decorator, this function) is shown without its traceback."""
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
