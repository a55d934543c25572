"""What nsqd delivers once more after it was killed, or because a task held it too long: each message once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from gnsq_like import NsqdHTTPClient
from gnsq_like.spark.format_options import SourceOptions
from gnsq_like.spark.staging.offsets import Part
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.spark_engine import Engine, once, publish, source_options
from tests.support.spark_points import KillAt, Reached, watched_part

COUNT = 4000
#: Where nsqd is killed, one time after the other.
POINTS = ["after-FIN:2", "after-publish:3", "before-publish:4", "after-END:1", "after-FIN:6"]


def is_new_second(http: NsqdHTTPClient) -> bool:
    """Whether an nsqd that is started now has another start_time."""
    return time.time() >= (http.info().start_time or 0) + 1


def read_mute(part: Part, options: SourceOptions, reached: Reached) -> Iterator[Any]:
    """Read a part whose nsqd does not say when it was started; the driver has its figures."""
    return watched_part(replace(part, http="http://127.0.0.1:9"), options, reached)


def engine_of(nsqd: Running, directory: Path, options: dict[str, Any], reached: Reached, *, is_mute: bool) -> Engine:
    engine = Engine(directory, options, reached)
    if is_mute:
        engine._read_part = partial(read_mute, reached=reached)
    return engine


@pytest.mark.real_nsqd
@pytest.mark.parametrize("is_mute", [False, True])
@pytest.mark.parametrize("mem_queue_size", [0, 500, 10_000])
def test_an_nsqd_that_is_killed_again_and_again(tmp_path: Path, mem_queue_size: int, is_mute: bool) -> None:
    with running_nsqd("real", mem_queue_size=mem_queue_size) as nsqd:
        http = publish(nsqd, "killed", range(COUNT))
        options = source_options([nsqd], tmp_path, "killed", max_messages=1500, wait_in_flight="false")
        copies = 0
        for point in POINTS:
            wait_for(partial(is_new_second, http), "another second")
            engine = engine_of(nsqd, tmp_path, options, KillAt(point, nsqd.kill), is_mute=is_mute)
            engine.run()
            nsqd.kill()
            nsqd.start()
            left = int(http.stats("killed")["topics"][0]["channels"][0]["depth"])
            copies = max(copies, left + sum(engine.bodies().values()) - COUNT)
        engine = engine_of(nsqd, tmp_path, options, KillAt(""), is_mute=is_mute)
        engine.run()
        assert http.stats("killed")["topics"][0]["channels"][0]["depth"] == 0
    bodies = engine.bodies()
    assert max(bodies.values()) == 1
    if mem_queue_size == 0:
        # What nsqd had on disk, it read again.
        assert copies > 0
        assert sum(bodies.values()) >= COUNT - len(POINTS) * 200  # a killed nsqd loses what is in flight


@pytest.mark.real_nsqd
@pytest.mark.parametrize("mem_queue_size", [0, 10_000])
def test_an_nsqd_that_is_stopped_again_and_again(tmp_path: Path, mem_queue_size: int) -> None:
    """It keeps its queue, and delivers what was in flight with attempts 2: to the next batch, or another task."""
    with running_nsqd("real", mem_queue_size=mem_queue_size) as nsqd:
        http = publish(nsqd, "stopped", range(COUNT))
        options = source_options([nsqd], tmp_path, "stopped", max_messages=1500, min_partitions=2)

        def restart() -> None:
            nsqd.stop()
            nsqd.start()

        for point in POINTS:
            wait_for(partial(is_new_second, http), "another second")
            engine = engine_of(nsqd, tmp_path, options, KillAt(point, restart), is_mute=False)
            engine.run()
        engine.run()
    assert engine.bodies() == once(COUNT)


@pytest.mark.parametrize("kind", ["process", pytest.param("real", marks=pytest.mark.real_nsqd)])
def test_a_task_that_holds_messages_until_their_time_is_over(kind: Any, tmp_path: Path) -> None:
    """In the stage already; nsqd delivers them again with attempts 2, to later batches."""
    with running_nsqd(kind) as nsqd:
        http = publish(nsqd, "held", range(1000))
        options = source_options([nsqd], tmp_path, "held", msg_timeout=1, max_messages=300)
        left = iter(["after-publish:2", "after-publish:4", "after-publish:7"])

        def timed_out() -> int:
            return int(http.stats("held")["topics"][0]["channels"][0]["timeout_count"])

        def hold() -> None:
            before = timed_out()
            wait_for(lambda: timed_out() > before, "their timeout")

        for point in left:
            Engine(tmp_path, options, KillAt(point, hold)).run(1)
        engine = Engine(tmp_path, options)
        engine.run()
        assert engine.bodies() == once(1000)
        assert max(Counter(row[2] for row in engine.rows())) == 1 or timed_out() > 0
