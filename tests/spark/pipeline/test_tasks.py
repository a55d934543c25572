"""Work in Spark's tasks: each task that has rows reports once, and what a task could not complete is dropped."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from gnsq_like.spark.pipeline.tasks import run_in_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: A worker that meets this row dies, the first time; a task that meets the other one fails every time.
DEADLY, WRONG = 3, 60


class Sum:
    """Adds up the rows of a task, whose attempt has a file in a directory until it is complete or dropped."""

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        assert schema.names == ["id"]
        self._directory = directory
        self._file = directory / f"attempt-{os.getpid()}"
        self._file.touch()
        self._sum = 0

    def add(self, batch: pa.RecordBatch) -> None:
        numbers: list[Any] = batch["id"].to_pylist()
        died = self._directory / "died"
        if DEADLY in numbers and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if WRONG in numbers:
            raise ValueError(f"no {WRONG}, please")
        self._sum += sum(numbers)

    def close(self) -> int:
        return self._sum

    def drop(self) -> None:
        self._file.unlink()


def numbers(spark: SparkSession, end: int) -> DataFrame:
    """The numbers from 0 up to this one, in the first of four tasks that have 25 numbers each."""
    return spark.range(0, 100, 1, 4).where(f"id < {end}")


def test_a_task_whose_worker_dies_is_tried_again_and_reports_once(spark: SparkSession, tmp_path: Path) -> None:
    reports = run_in_tasks(numbers(spark, 50), partial(Sum, tmp_path))
    assert sorted(reports) == [sum(range(25)), sum(range(25, 50))]
    # Nothing drops what a killed worker has begun.
    assert len(list(tmp_path.glob("attempt-*"))) == 1


def test_there_are_no_reports_of_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    assert run_in_tasks(numbers(spark, 0), partial(Sum, tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_an_error_comes_with_its_text_and_the_work_is_dropped(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "died").touch()
    with pytest.raises(Exception, match=f"no {WRONG}, please"):
        run_in_tasks(numbers(spark, 100), partial(Sum, tmp_path))
    assert list(tmp_path.glob("attempt-*")) == []
