"""Work on the rows of a DataFrame that Spark's tasks do in Python, and its reports.

In each task, an Arrow table function makes an object and gives it the batches; the function's only row is that object's
report. If a task fails, Spark gives its rows to another; only reports of successful tasks are collected.

Why not a data source: Spark plans and commits its writes in Python processes beside the driver, and does not retry if
one dies. Why not ``mapInArrow``: that needs pandas.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.functions import arrow_udtf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Report = TypeVar("_Report", covariant=True)


class Work(Protocol[_Report]):
    """The work of one task."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take some rows."""

    def close(self) -> _Report:
        """Complete the work, and report it."""

    def drop(self) -> None:
        """Drop incomplete work; called at the end in any case."""


def run_in_tasks(rows: DataFrame, make: Callable[[pa.Schema], Work[_Report]]) -> list[_Report]:
    """Run work in each task that has rows, and return the reports.

    :param make: begins the work of a task, in the task
    """

    class Task:
        def __init__(self) -> None:
            self._work: Work[_Report] | None = None

        def eval(self, batch: pa.RecordBatch) -> None:
            if self._work is None:
                self._work = make(batch.schema)
            self._work.add(batch)

        def terminate(self) -> list[pa.Table]:
            # Spark fails if there is a row from a task that had none.
            return [pa.table({"report": [pickle.dumps(self._work.close())]})] if self._work is not None else []

        def cleanup(self) -> None:
            if self._work is not None:
                self._work.drop()

    function: Any = arrow_udtf(Task, returnType="report BINARY")
    return [pickle.loads(each.report) for each in function(rows.asTable()).collect()]
