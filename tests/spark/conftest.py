"""One Spark session for all tests; those that need it are skipped, with the reason, where there is no Java."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from gnsq_like.spark import register
from gnsq_like.spark.java import JavaNotFound
from tests.support.spark_sessions import environment, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_runtest_makereport() -> None:
    """PySpark's loggers of query contexts hand on to the root logger again.

    Left as PySpark makes them, they get pytest's own handlers at the next test and give those a formatter for JSON:
    from then on every ``caplog`` of this process is in JSON, and its records have no ``message``.
    """
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logger = logging.root.manager.loggerDict.get(name)
        if isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(scope="session")
def java() -> None:
    """Skips where Spark could not run; for tests that start it themselves."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install gnsq-like[spark]")
    try:
        environment()
    except JavaNotFound as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    """A session on two cores that knows the format "nsq"."""
    with session("local[2]") as spark:
        register(spark)
        yield spark
