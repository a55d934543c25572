"""Transformations between the parsed bodies and the table, as the configuration has them, and functions in Python.

The messages of a batch depend on the moment at which it began. So a transformation treats each message as if it were
alone. ``select`` and ``where`` are expressions of one row, applied to the stream by Spark (``selecting``). A function
gets Arrow's record batches, in the tasks that write the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gnsq_like.errors import InvalidOption, did_you_mean
from gnsq_like.spark.pipeline.faults import PipelineFailed

if TYPE_CHECKING:
    import pyarrow as pa

#: The keys of [transform].
KEYS = ("select", "where", "function")
#: The columns of the table beside the body.
KEPT = ("id", "timestamp", "attempts", "topic", "channel", "nsqd_address", "seen_at")
BODY = "body"

#: A function in Python: of the rows that fit, with the columns of the table.
Function = Callable[["pa.RecordBatch"], "pa.RecordBatch"]


def check_keys(given: Mapping[str, object], known: Sequence[str], prefix: str) -> None:
    """Raise InvalidOption for a key that a table of the configuration does not have.

    :param prefix: that of its keys, such as "parse."
    """
    for key, value in given.items():
        if key not in known:
            hint = did_you_mean(key, known) or f"; there are {', '.join(known)}"
            raise InvalidOption(f"{prefix}{key}", value, f"there is no such key{hint}")


def check_given(given: Mapping[str, Any], name: str) -> None:
    """Raise InvalidOption unless these are the keys of a transformation. Does not need Spark.

    :param name: that of the table in the configuration
    """
    check_keys(given, KEYS, f"{name}.")
    for key, value in given.items():
        texts = value if key == "select" and isinstance(value, list) and value else [value]
        if not all(isinstance(each, str) and each.strip() for each in texts):
            what = 'a list of expressions such as ["body.page AS page"]' if key == "select" else "text"
            raise InvalidOption(f"{name}.{key}", value, f"it must be {what}")
    function = given.get("function")
    if function is not None and not re.fullmatch(r"[\w.]+:\w+", function):
        raise InvalidOption(f"{name}.function", function, 'it must be "module:name"')


def load_function(given: Mapping[str, Any], name: str) -> Function | None:
    """Import the function, if there is one. Raises InvalidOption."""
    target = given.get("function")
    if target is None:
        return None
    module, _, attribute = target.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except Exception as exc:  # whatever the user's module raises
        reason = f"it cannot be imported: {type(exc).__name__}: {exc}".partition("\n")[0]
        raise InvalidOption(f"{name}.function", target, reason) from exc
    if not callable(found):
        raise InvalidOption(f"{name}.function", target, f"it is no function, but {type(found).__name__}")
    function: Function = found
    return function


def packed(function: Function | None) -> bytes:
    """A function for tasks, with the code of its module: their Python need not be able to import that."""
    if function is None:
        return b""
    from pyspark import cloudpickle

    untyped: Any = cloudpickle
    module = import_module(function.__module__)
    untyped.register_pickle_by_value(module)
    try:
        found: bytes = untyped.dumps(function)
        return found
    finally:
        untyped.unregister_pickle_by_value(module)


def applied(function: Function, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that a function returns; raises PipelineFailed if it fails, or returns anything else."""
    import pyarrow as pa

    try:
        made = function(rows)
    except Exception as exc:
        raise PipelineFailed(f"transform.function failed: {type(exc).__name__}: {exc}".partition("\n")[0]) from exc
    if not isinstance(made, pa.RecordBatch) or made.schema.names != rows.schema.names:
        found = ", ".join(made.schema.names) if isinstance(made, pa.RecordBatch) else type(made).__name__
        raise PipelineFailed(
            f"transform.function must return a RecordBatch with the columns that it was given, "
            f"{', '.join(rows.schema.names)}, of which body may have another type; it returned {found}"
        )
    return made


def made_column(number: int) -> str:
    """The column of the bodies of a target, by its number in ``targets_of``."""
    return f"made_{number}"
