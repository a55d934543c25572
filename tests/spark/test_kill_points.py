"""kill -9 at every point that a batch passes, and one restart: nothing lost, nothing doubled (docs/internals S2).

The query runs on Spark's engine without Spark (``spark_engine``), in a process that kills itself; all points run at
once, each with a topic of its own. ``test_stream`` does the same with Spark.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.daemons import Running, running_nsqd
from tests.support.spark_engine import Engine, once, publish, run_killed, source_options
from tests.support.spark_points import POINTS

KINDS = ["process", pytest.param("real", marks=pytest.mark.real_nsqd)]
MESSAGES = 900

#: Each point when it is first reached, and some when they are reached again.
KILLS = [*POINTS, "latestOffset:2", "partitions:2", "before-publish:3", "after-publish:2", "after-FIN:3", "after-END:2"]


class Outcome(NamedTuple):
    status: int
    bodies: Counter[str]
    left: int


@pytest.fixture(scope="module", params=KINDS)
def nsqd(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running_nsqd(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def outcomes(nsqd: Running, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The outcome of each query, which is killed once and started again."""

    base = tmp_path_factory.mktemp("kills")  # not in the threads: the factory is for one at a time

    def kill_and_restart(kill: str) -> Outcome:
        topic = kill.replace(":", "_")
        directory = base / topic
        directory.mkdir()
        options = source_options([nsqd], directory, topic, max_messages=400)
        http = publish(nsqd, topic, range(MESSAGES))
        status = run_killed(directory, options, kill)
        run_killed(directory, options, "never")
        channel = http.stats(topic)["topics"][0]["channels"][0]
        left = channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
        return Outcome(status, Engine(Path(directory), options).bodies(), left)

    with ThreadPoolExecutor(9) as pool:
        return dict(zip(KILLS, pool.map(kill_and_restart, KILLS), strict=True))


@pytest.mark.parametrize("kill", KILLS)
def test_nothing_is_lost_or_doubled(outcomes: dict[str, Outcome], kill: str) -> None:
    outcome = outcomes[kill]
    assert outcome.status == -signal.SIGKILL
    assert outcome.bodies == once(MESSAGES)
    assert outcome.left == 0
