"""The whole command, killed with SIGKILL again and again, and the content of its tables in the end.

``python -m tests.support.pipeline_killing MESSAGES KILLS DIRECTORY [FORMAT] [real]`` does it by hand, with figures.
Tables of Delta and Iceberg are maintained and read all the while (``Beside``).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from gnsq_like import NsqdHTTPClient
from gnsq_like.spark.pipeline import load_pipeline
from gnsq_like.spark.pipeline.maintenance import maintain_tables
from tests.support.committed_tables import KINDS, Kind, read_columns
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.progress import wait_for_changes
from tests.support.spark_sessions import ROOT, environment

#: Each click whose number is a multiple of this lacks a field.
BROKEN_EVERY = 1000
CLICK_BYTES = 200
#: Clicks in one MPUB.
_CHUNK = 10_000
#: A batch makes and removes more files than this.
_CHANGES = 80
#: Seconds between two looks at a table, and two turns of its care: both take a core while they last.
_PAUSE = 1.0


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
    #: How often each (batch, minute) is in the metrics.
    keys: Counter[Any]
    letters: int
    #: What the sums by window add up to: how many rows, and their numbers.
    window_rows: int
    window_numbers: int


def click(number: int) -> bytes:
    """Make a click of 200 bytes; some lack their user."""
    user = "" if number % BROKEN_EVERY == 0 else '"user": "someone", '
    head = f'{{"number": {number}, {user}"page": "/", "filler": "'
    return (head + "." * (CLICK_BYTES - len(head) - 2) + '"}').encode()


def fill(nsqd: Running, count: int) -> None:
    """Publish the clicks 0 to ``count`` - 1."""
    client = NsqdHTTPClient(nsqd.http_address)
    client.create_topic("clicks")
    client.create_channel("clicks", "table")
    for start in range(0, count, _CHUNK):
        client.multi_publish("clicks", [click(number) for number in range(start, min(start + _CHUNK, count))])


def write_config(nsqd: Running, directory: Path, most: int, format: str = "parquet") -> Path:
    """Configure a pipeline for these clicks; nsqd soon delivers the messages of a killed run again."""
    path = directory / "pipeline.toml"
    path.write_text(
        f"""
location = "out"
format = "{format}"
[source]
topic = "clicks"
channel = "table"
nsqdTcpAddresses = "{nsqd.tcp_address}"
nsqdHttpAddresses = "{nsqd.http_address}"
maxMessagesPerTrigger = {most}
msgTimeoutMs = 4000
fetchMaxWaitMs = 1000
availableNowWaitInFlight = true
[parse]
schema = "number BIGINT NOT NULL, user STRING NOT NULL, page STRING"
[windows.pages]
length = "1m"
by = ["page"]
columns = {{ clicks = "count(*)", numbers = "sum(number)" }}
[dead_letters]
topic = "clicks.dead"
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


def kill(process: subprocess.Popen[str]) -> None:
    """Kill the session of a running command."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def running_pipeline(config: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run a pipeline's command, with no home of Spark but what it chooses itself."""
    command = [sys.executable, "-m", "gnsq_like", "pipeline", "run", "--config", str(config), *arguments]
    return running("env", "-u", "SPARK_HOME", *command, cwd=config.parent)


def run_killed(config: Path, kills: int, rng: random.Random, timeout: float) -> list[str]:
    """Kill some runs of a pipeline, then run it to its end; returns a line for each. AssertionError if it fails."""
    said = [_kill_one(config, rng, timeout) for _ in range(kills)]
    with running_pipeline(config, "--available-now") as process:
        output, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, output[-5000:]
    return [*said, output.strip().splitlines()[-1]]


def _kill_one(config: Path, rng: random.Random, timeout: float) -> str:
    checkpoint = config.parent / "out" / "checkpoint"
    with running_pipeline(config, "--available-now") as process:
        before = _batches(checkpoint)
        wanted = before + rng.randrange(1, 4)

        def ended() -> bool:
            return process.poll() is not None

        wait_for(lambda: _batches(checkpoint) >= wanted or ended(), f"{wanted} batches", timeout)
        wait_for_changes(config.parent / "out", rng.randrange(_CHANGES), ended, timeout)
        was_running = not ended()
        kill(process)
    return f"killed after {_batches(checkpoint) - before} batches, running: {was_running}"


def _batches(checkpoint: Path) -> int:
    """The number of planned batches."""
    offsets = checkpoint / "offsets"
    return sum(path.name.isdigit() for path in offsets.iterdir()) if offsets.exists() else 0


class Beside:
    """Maintains a table of Delta or Iceberg, and reads it, in threads beside all runs.

    All rows of a batch have the same ``seen_at``: so a reader that has seen a part of a batch sees more of it later.
    """

    def __init__(self, config: Path, kind: Kind) -> None:
        self._pipeline = replace(load_pipeline(config), maintain={"compact_after": "0", "keep_versions": "1h"})
        self._kind = kind
        self._directory = config.parent / "out"
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in (self._maintain, self._look)]
        self._log = self._directory / "data" / ("_delta_log" if kind == "delta" else "metadata")
        self.reads = 0
        self.maintained: Counter[str] = Counter()
        self.errors: list[str] = []
        self._seen: dict[Any, int] = {}

    def __enter__(self) -> Beside:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for each in self._threads:
            each.join()

    def _run(self, step: Callable[[], None]) -> None:
        """Take a step after each change of the table."""
        done: set[str] = set()
        while not self._is_over.wait(_PAUSE):
            before = set(os.listdir(self._log)) if self._log.exists() else set()
            if before == done:
                continue
            try:
                step()
            except Exception as exc:
                self.errors.append(repr(exc))
            done = before

    def _maintain(self) -> None:
        # As if the present hour were over.
        now = datetime.now(UTC) + timedelta(hours=2)
        for line in maintain_tables(self._pipeline, now=now):
            self.maintained.update({" ".join(word for word in line.split() if word.isalpha()): 1})

    def _look(self) -> None:
        found = read_columns(self._kind, self._directory, "seen_at", "id")
        batches = Counter(found["seen_at"].to_pylist())
        for seen_at, count in self._seen.items():
            if batches[seen_at] != count:
                self.errors.append(f"{batches[seen_at]} rows of {seen_at}, and {count} before")
        if len(set(found["id"].to_pylist())) != len(found):
            self.errors.append("rows are there twice")
        self._seen = dict(batches)
        self.reads += bool(batches)


def read(nsqd: Running, directory: Path, format: str = "parquet") -> Outcome:
    """Read the tables, without Spark."""
    from pyarrow import dataset

    def table(name: str, columns: list[str]) -> list[dict[str, Any]]:
        found = dataset.dataset(directory / "out" / name, format="parquet", partitioning="hive")
        rows: list[dict[str, Any]] = found.to_table(columns=columns).to_pylist()
        return rows

    columns = ["body", "id", "nsqd_address", "topic"]
    kind = next((each for each in KINDS if each == format), None)
    data = read_columns(kind, directory / "out", *columns).to_pylist() if kind else table("data", columns)
    metrics = table("metrics", ["messages", "rejected", "attempts", "latencies", "minute", "batch"])
    rejected = table("rejected", ["body"])
    sums = ["clicks", "numbers"]
    windows = (
        read_columns(kind, directory / "out", *sums, window="pages").to_pylist()
        if kind
        else table("data-windows/pages", sums)
    )
    client = NsqdHTTPClient(nsqd.http_address)
    return Outcome(
        data=Counter(row["body"]["number"] for row in data),
        rejected=Counter(json.loads(row["body"])["number"] for row in rejected),
        identities=len({(row["nsqd_address"], row["topic"], row["id"]) for row in data}),
        messages=sum(row["messages"] for row in metrics),
        metrics_rejected=sum(row["rejected"] for row in metrics),
        metrics_attempts=sum(count for row in metrics for _, count in row["attempts"]),
        metrics_latencies=sum(count for row in metrics for _, count in row["latencies"]),
        keys=Counter((row["batch"], row["minute"]) for row in metrics),
        letters=client.stats("clicks.dead")["topics"][0]["message_count"],
        window_rows=sum(row["clicks"] for row in windows),
        window_numbers=sum(row["numbers"] for row in windows),
    )


def check(outcome: Outcome, count: int) -> None:
    """Check that the tables have every message once, and that the metrics agree."""
    broken = range(0, count, BROKEN_EVERY)
    assert outcome.rejected == Counter(broken)
    assert outcome.data == Counter(set(range(count)) - set(broken))
    assert outcome.identities == count - len(broken)
    assert (outcome.window_rows, outcome.window_numbers) == (outcome.data.total(), sum(outcome.data.elements()))
    assert (outcome.messages, outcome.metrics_rejected) == (count, len(broken))
    assert (outcome.metrics_attempts, outcome.metrics_latencies) == (count, count)
    assert set(outcome.keys.values()) == {1}
    # At least once each.
    assert outcome.letters >= len(broken)


def main() -> None:
    """Fill an nsqd, kill runs, and print figures."""
    count, kills, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    directory.mkdir(parents=True)
    kind = next((each for each in KINDS if each in sys.argv), None)
    with running_nsqd("real" if "real" in sys.argv else "process") as nsqd:
        fill(nsqd, count)
        config = write_config(nsqd, directory, max(1000, count // 20), kind or "parquet")
        began = time.monotonic()
        with Beside(config, kind) if kind else nullcontext() as beside:
            for line in run_killed(config, kills, random.Random(), 1800):
                print(line, flush=True)
        print(f"{time.monotonic() - began:.1f} s in all")
        if beside is not None:
            print(f"{beside.reads} reads, maintained: {dict(beside.maintained)}, errors: {beside.errors}")
            assert not beside.errors
        outcome = read(nsqd, directory, kind or "parquet")
        print(f"table {outcome.data.total()}, different {len(outcome.data)}, identities {outcome.identities}")
        print(f"rejected {outcome.rejected.total()}, dead letters {outcome.letters}, metrics {outcome.messages}")
        check(outcome, count)
        print("every message is there once")


if __name__ == "__main__":
    main()
