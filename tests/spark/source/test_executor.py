"""The rows of a part, and the thread that receives them: the task raises its errors, and nothing of it remains."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from gnsq_like.spark.format_options import SourceOptions
from gnsq_like.spark.source.executor import read_part
from gnsq_like.spark.staging.offsets import Part
from gnsq_like.spark.staging.store import OpenStore, StagingError, open_store
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.spark_engine import PATIENT, Engine, publish, source_options
from tests.support.spark_points import watched_store


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Running]:
    with running_nsqd("process") as running:
        yield running


def planned(nsqd: Running, directory: Path, topic: str) -> tuple[SourceOptions, Part]:
    """Plan the first batch of a query: one part, of 500 messages."""
    publish(nsqd, topic, range(500))
    engine = Engine(directory, source_options([nsqd], directory, topic, **PATIENT))
    start = engine.driver.initial()
    [part] = engine.driver.parts(start, engine.driver.latest(start))
    return engine.options, part


def bodies(part: Part, options: SourceOptions, open_store: OpenStore = open_store) -> list[bytes]:
    batches = read_part(part, options, open_store=open_store)
    return [body for batch in batches for body in batch.column("body").to_pylist()]


def check_nothing_is_left(nsqd: Running, topic: str) -> None:
    assert "gnsq_like receiver" not in {thread.name for thread in threading.enumerate()}
    http = NsqdHTTPClient(nsqd.http_address)
    wait_for(lambda: not http.stats(topic)["topics"][0]["channels"][0]["client_count"], "the connection is gone")


def test_all_rows_then_nothing_is_left(nsqd: Running, tmp_path: Path) -> None:
    options, part = planned(nsqd, tmp_path, "all")
    first = bodies(part, options)
    assert sorted(first, key=int) == [b"%d" % number for number in range(500)]
    check_nothing_is_left(nsqd, "all")
    opened = len(os.listdir("/proc/self/fd"))
    assert all(bodies(part, options) == first for _ in range(5))
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= opened, "as few open files as before")


def test_rows_that_are_not_read_to_the_end_are_staged(nsqd: Running, tmp_path: Path) -> None:
    options, part = planned(nsqd, tmp_path, "early")
    reading = read_part(part, options)
    first = next(reading).column("body").to_pylist()
    reading.close()  # type: ignore[attr-defined]
    check_nothing_is_left(nsqd, "early")
    again = bodies(part, options)
    assert again[: len(first)] == first
    assert len(set(again)) == 500


def test_an_error_of_the_thread_is_the_task_s(nsqd: Running, tmp_path: Path) -> None:
    def fail(point: str) -> None:
        if point == "after-publish":
            raise RuntimeError("it fails here")

    options, part = planned(nsqd, tmp_path, "failing")
    with pytest.raises(RuntimeError, match="it fails here"):
        bodies(part, options, watched_store(fail))
    check_nothing_is_left(nsqd, "failing")


def test_a_stage_that_is_another_one_here_is_said_to_be(nsqd: Running, tmp_path: Path) -> None:
    options, part = planned(nsqd, tmp_path, "elsewhere")
    shutil.move(tmp_path / "stage", tmp_path / "elsewhere")
    with pytest.raises(StagingError, match="must be a place that the driver and all executors share"):
        bodies(part, options)
    check_nothing_is_left(nsqd, "elsewhere")
