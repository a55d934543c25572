"""One Spark session for all tests; tests that need it are skipped if there is no Java."""

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


#: Seconds after which a test with Spark counts as hung. The first one in a process waits for Java, and until that has
#: compiled Spark; on a busy machine, that alone can take as long as other tests may.
PATIENCE = 300


@pytest.hookimpl(tryfirst=True)  # before tests are left out for their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(PATIENCE))


def pytest_runtest_makereport() -> None:
    """Let PySpark's loggers of query contexts propagate to the root logger again.

    PySpark switches that off. Then pytest adds its own handlers to them at the next test, and PySpark gives these a
    formatter for JSON: from then on every ``caplog`` of this process is in JSON, and its records have no ``message``.
    """
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logger = logging.root.manager.loggerDict.get(name)
        if isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(scope="session")
def java() -> None:
    """Skips the test if Spark cannot run; for tests that start it themselves."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install gnsq-like[spark]")
    try:
        environment()
    except JavaNotFound as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    """A session on two cores that knows the format "nsq", and tries a failed task again, as clusters do."""
    with session("local[2,4]") as spark:
        register(spark)
        yield spark
