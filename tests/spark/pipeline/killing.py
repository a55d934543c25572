"""The whole command, killed with SIGKILL again and again, and the content of its tables in the end.

``python -m tests.spark.pipeline.trial`` does it at scale, by hand, with figures. Nothing here has a limit of its own:
how long a run takes depends on the machine's load, and one that hangs is found by the limit of the test.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.committed_tables import kind_of, read_columns
from tests.support.daemons import Running, wait_for
from tests.support.files import files_below, wait_for_changes
from tests.support.patient import NsqdHTTPClient
from tests.support.processes import java_of, workers_of
from tests.support.spark_sessions import ROOT, environment

#: Each click whose number is a multiple of this lacks a field.
BROKEN_EVERY = 1000
CLICK_BYTES = 200
#: The topics of most tests.
TOPICS = ("clicks",)
DEAD_LETTERS = "clicks.dead"
#: Clicks in one MPUB.
_CHUNK = 10_000
#: A batch makes and removes more files than this.
_CHANGES = 80


class Victim(Enum):
    """What is killed."""

    #: All processes: the machine, as it were.
    ALL = "all"
    #: The driver's Python alone, and the next run begins while Java still lives.
    DRIVER = "driver"
    JAVA = "java"
    #: All Python workers: the run must go on. Everything is killed later.
    WORKERS = "workers"


class Moment(Enum):
    """When it is killed, in a batch."""

    #: After so many files have come or gone.
    ANY = "any"
    #: As soon as there is a new file of data, which is not committed yet.
    WRITTEN = "written"


class Outcome(NamedTuple):
    """The content of the tables."""

    #: How often each number is in the table, and among the rejected.
    data: Counter[int]
    rejected: Counter[int]
    #: How many different messages the table has.
    identities: int
    #: Sums of the metrics.
    messages: int
    metrics_rejected: int
    metrics_attempts: int
    metrics_latencies: int
    #: How often each (batch, topic, minute) is in the metrics.
    keys: Counter[Any]
    letters: int


def click(number: int) -> bytes:
    """Make a click of 200 bytes; some lack their user."""
    user = "" if number % BROKEN_EVERY == 0 else '"user": "someone", '
    head = f'{{"number": {number}, {user}"page": "/", "filler": "'
    return (head + "." * (CLICK_BYTES - len(head) - 2) + '"}').encode()


def fill(nsqds: Sequence[Running], count: int, topics: Sequence[str] = TOPICS) -> None:
    """Publish the clicks 0 to ``count`` - 1: each topic of each nsqd gets a share."""
    places = [(NsqdHTTPClient(nsqd.http_address), topic) for topic in topics for nsqd in nsqds]
    for client, topic in places:
        client.create_topic(topic)
        client.create_channel(topic, "table")
    for turn, start in enumerate(range(0, count, _CHUNK)):
        client, topic = places[turn % len(places)]
        client.multi_publish(topic, [click(number) for number in range(start, min(start + _CHUNK, count))])


def write_config(
    nsqds: Sequence[Running],
    directory: Path,
    most: int,
    format: str = "parquet",
    topics: Sequence[str] = TOPICS,
    *,
    by_topic: bool = False,
    more: str = "",
) -> Path:
    """Configure a pipeline for these clicks; nsqd soon delivers the messages of a killed run again.

    :param more: TOML in front of the tables, or a table
    """
    path = directory / "pipeline.toml"
    path.write_text(
        f"""
location = "out"
name = "clicks"
format = "{format}"
table_by_topic = {str(by_topic).lower()}
{more}
[source]
{"topic" if len(topics) == 1 else "topics"} = "{", ".join(topics)}"
channel = "table"
nsqd_tcp_addresses = {json.dumps([nsqd.tcp_address for nsqd in nsqds])}
nsqd_http_addresses = {json.dumps([nsqd.http_address for nsqd in nsqds])}
max_messages = {most}
msg_timeout = "4s"
wait_in_flight = true
[parse]
schema = "number BIGINT NOT NULL, user STRING NOT NULL, page STRING"
[dead_letters]
topic = "{DEAD_LETTERS}"
[spark]
spark.ui.enabled = false
spark.driver.bindAddress = "127.0.0.1"
spark.driver.host = "127.0.0.1"
"""
    )
    return path


@contextmanager
def running(
    *command: str, cwd: Path, stderr: int = subprocess.STDOUT, **environ: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a command in a session of its own, so that all its processes can be killed as one; the block's end does."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **environment(), "PYTHONPATH": str(ROOT), **environ},
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            kill(process)
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()


def kill(process: subprocess.Popen[str]) -> None:
    """Kill the session of a running command."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def running_pipeline(config: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run a pipeline's command."""
    command = [sys.executable, "-m", "gnsq_like", "pipeline", "run", "--config", str(config), *arguments]
    return running(*command, cwd=config.parent)


def run_to_its_end(config: Path) -> str:
    """Run a pipeline until it has written everything; returns its last line. AssertionError if it fails."""
    with running_pipeline(config, "--available-now") as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output[-5000:]
    return output.strip().splitlines()[-1]


def kill_one(
    config: Path,
    rng: random.Random,
    victim: Victim = Victim.ALL,
    moment: Moment = Moment.ANY,
) -> str:
    """Run a pipeline, and kill it in one of its first batches; returns a line about it."""
    out = config.parent / "out"
    with running_pipeline(config, "--available-now") as process:
        before = _batches(out, "offsets")

        def ended() -> bool:
            return process.poll() is not None

        def wait_for_batches(more: int) -> None:
            wanted = _batches(out, "offsets") + more
            wait_for(lambda: _batches(out, "offsets") >= wanted or ended(), f"{wanted} batches", math.inf)

        wait_for_batches(rng.randrange(1, 4))
        if moment is Moment.WRITTEN:
            known = set(files_below(out / "data", ".parquet"))
            wait_for(lambda: ended() or set(files_below(out / "data", ".parquet")) - known, "a new file", math.inf)
        else:
            wait_for_changes(out, rng.randrange(_CHANGES), ended)
        said = (
            f"{victim.value} killed in batch {_batches(out, 'offsets') - before} of the run, running: {not ended()}, "
        )
        if victim is Victim.DRIVER and not ended():
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        elif victim is Victim.JAVA and not ended():
            _kill_if_there(java_of(process.pid))
            process.wait()
        elif victim is Victim.WORKERS and not ended():
            workers = workers_of(java_of(process.pid))
            for pid in workers:
                _kill_if_there(pid)
            wait_for_batches(2)
            assert not ended() or process.returncode == 0, process.communicate()[0][-5000:]
            said += f"{len(workers)} workers, batches after it: 2 or the end, "
        said += f"batch {'begun' if _batches(out, 'commits') < _batches(out, 'offsets') else 'done'}"
        if not ended():
            kill(process)
    return said


def _kill_if_there(pid: int) -> None:
    assert pid  # 0 would be this process's own group
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _batches(out: Path, log: str) -> int:
    """The number of batches that were planned ("offsets"), or done ("commits")."""
    names = out / "checkpoint" / log
    return sum(path.name.isdigit() for path in names.iterdir()) if names.exists() else 0


def read(nsqds: Sequence[Running], directory: Path, format: str = "parquet") -> Outcome:
    """Read the tables, without Spark."""
    from pyarrow import dataset

    def table(name: str, columns: list[str]) -> list[dict[str, Any]]:
        found = dataset.dataset(directory / "out" / name, format="parquet", partitioning="hive")
        rows: list[dict[str, Any]] = found.to_table(columns=columns).to_pylist()
        return rows

    columns = ["body", "id", "nsqd_address", "topic"]
    kind = kind_of(format)
    data = read_columns(kind, directory / "out", *columns).to_pylist() if kind else table("data", columns)
    metrics = table("metrics", ["messages", "rejected", "attempts", "latencies", "minute", "batch", "topic"])
    rejected = table("rejected", ["body"])
    return Outcome(
        data=Counter(row["body"]["number"] for row in data),
        rejected=Counter(json.loads(row["body"])["number"] for row in rejected),
        identities=len({(row["nsqd_address"], row["topic"], row["id"]) for row in data}),
        messages=sum(row["messages"] for row in metrics),
        metrics_rejected=sum(row["rejected"] for row in metrics),
        metrics_attempts=sum(count for row in metrics for _, count in row["attempts"]),
        metrics_latencies=sum(count for row in metrics for _, count in row["latencies"]),
        keys=Counter((row["batch"], row["topic"], row["minute"]) for row in metrics),
        letters=sum(
            topic["message_count"]
            for nsqd in nsqds
            for topic in NsqdHTTPClient(nsqd.http_address).stats(DEAD_LETTERS)["topics"]
        ),
    )


def check(outcome: Outcome, count: int) -> None:
    """Check that the tables have every message once, and that the metrics agree."""
    broken = range(0, count, BROKEN_EVERY)
    assert outcome.rejected == Counter(broken)
    assert outcome.data == Counter(set(range(count)) - set(broken))
    assert outcome.identities == count - len(broken)
    assert (outcome.messages, outcome.metrics_rejected) == (count, len(broken))
    assert (outcome.metrics_attempts, outcome.metrics_latencies) == (count, count)
    assert set(outcome.keys.values()) == {1}
    # At least once each.
    assert outcome.letters >= len(broken)
