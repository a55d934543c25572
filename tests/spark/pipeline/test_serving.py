"""The live page between runs: what it knows from the tables, from the last run's note, and from the nsqds."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from gnsq_like import NsqdHTTPClient
from gnsq_like.spark.pipeline import Pipeline, PipelineFailed
from gnsq_like.spark.pipeline.serving import Looking
from gnsq_like.spark.pipeline.watched import last_run, watched
from gnsq_like.spark.watch.live_page import live_app
from tests.support import raw
from tests.support.daemons import Running, running_nsqd
from tests.support.pipeline_tables import START, batch, written

#: Half a minute after batch 1.
NOW = START.timestamp() + 40


@pytest.fixture
def nsqd() -> Iterator[Running]:
    with running_nsqd() as running:
        client = NsqdHTTPClient(running.http_address)
        client.create_topic("clicks")
        client.create_channel("clicks", "c")
        yield running


def at(nsqd: Running, pipeline: Pipeline) -> Pipeline:
    source = {
        "topic": "clicks",
        "channel": "c",
        "nsqd_tcp_addresses": nsqd.tcp_address,
        "nsqd_http_addresses": nsqd.http_address,
    }
    return replace(pipeline, source=source, watch={"lag": "20s", "nothing_for": "1h"})


def checkpoint(pipeline: Pipeline, planned: int, done: int) -> None:
    """Write Spark's logs as far as they are read."""
    for log, count in (("offsets", planned), ("commits", done)):
        directory = Path(pipeline.place("checkpoint").removeprefix("file://"), log)
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (directory / str(number)).touch()


def page_of(looking: Looking, now: float) -> str:
    app: Any = live_app(lambda: looking.status.current, is_local=True, clock=lambda: now).test_client()
    return " ".join(re.sub(r"<[^>]+>", " ", app.get("/").text).split())


def note(pipeline: Pipeline, **changed: Any) -> None:
    path = Path(pipeline.place("metrics").removeprefix("file://"), "_last_run.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def test_between_runs_the_last_one_is_shown_and_what_waits_now(nsqd: Running, tmp_path: Path) -> None:
    pipeline = at(nsqd, written(tmp_path, batch(0, rejected=10), batch(1)))
    checkpoint(pipeline, 2, 2)
    with watched(pipeline) as watch:
        watch.wrote(batch(1))
        watch.end()
    looking = Looking(pipeline, NOW)
    looking.look(NOW)
    status = looking.status.current
    assert (status["state"], status["status"], status["lag"], status["depth"]) == ("waiting", "ok", 0, 0)
    assert status["last_batch"]["number"] == 1
    assert status["rejected_share"] == 0.05
    # Earlier batches are known and not counted, as Prometheus would take them for a sudden rush.
    assert (status["messages"], status["rate"]) == (0, 0)
    page = page_of(looking, NOW)
    assert "between runs" in page and re.search(r"Last run ended \d\d:\d\d:\d\d 100 messages; lag ", page)
    # What is published after it waits for the next one.
    NsqdHTTPClient(nsqd.http_address).multi_publish("clicks", [b"{}"] * 3)
    for second in (60, 62):
        looking.look(NOW + second)
    status = looking.status.current
    assert status["depth"] == 3
    assert status["lag"] == pytest.approx(62 + 0)  # since nothing waited
    assert [problem["name"] for problem in status["problems"]] == ["lag"]
    looking.look(NOW + 3700)
    looking.look(NOW + 3702)
    assert {problem["name"] for problem in looking.status.current["problems"]} == {"lag", "nothing_came"}


def test_a_run_is_seen_as_it_writes(nsqd: Running, tmp_path: Path) -> None:
    pipeline = at(nsqd, written(tmp_path, batch(0)))
    with watched(pipeline) as watch:
        checkpoint(pipeline, 2, 1)
        looking = Looking(pipeline, NOW)
        looking.look(NOW)
        status = looking.status.current
        # A batch is under way, so the table is behind.
        assert (status["state"], status["lag"]) == ("running", pytest.approx(40.5))
        assert "Last run began" in page_of(looking, NOW)
        written(tmp_path, batch(1, messages=7))
        checkpoint(pipeline, 2, 2)
        looking.look(NOW + 2)
        looking.look(NOW + 4)
        status = looking.status.current
        assert (status["messages"], status["batches"], status["lag"]) == (7, 1, 0)
        watch.end()
    looking.look(NOW + 6)
    assert (looking.status.current["state"], looking.status.current["messages"]) == ("waiting", 7)


def test_a_run_that_failed_or_was_killed_is_a_problem_until_the_next(nsqd: Running, tmp_path: Path) -> None:
    pipeline = at(nsqd, written(tmp_path, batch(0)))
    with pytest.raises(PipelineFailed), watched(pipeline):
        raise PipelineFailed("a disk is full")
    looking = Looking(pipeline, NOW)

    def problems() -> list[str]:
        for _ in range(2):
            looking.look(NOW)
        return [problem["text"] for problem in looking.status.current["problems"]]

    assert problems() == ["the last run failed: a disk is full"]
    assert "Last run failed" in page_of(looking, NOW)
    # A process that has ended has no id.
    process = subprocess.Popen(["true"])
    process.wait()
    note(pipeline, state="running", failure="", pid=process.pid)
    assert problems() == ["the last run failed: it was killed"]
    # It may run on another machine.
    note(pipeline, host="elsewhere")
    assert problems() == []
    assert looking.status.current["state"] == "running"


def test_without_a_run_and_without_an_nsqd_it_is_shown_too(tmp_path: Path) -> None:
    source = {
        "topic": "clicks",
        "channel": "c",
        "nsqd_tcp_addresses": "127.0.0.1:1",
        "nsqd_http_addresses": "127.0.0.1:1",
    }
    pipeline = Pipeline(location=str(tmp_path / "out"), source=source)
    looking = Looking(pipeline, NOW)
    for _ in range(2):
        looking.look(NOW)
    status = looking.status.current
    assert (status["state"], status["lag"], status["last_run"]) == ("waiting", None, None)
    assert [problem["name"] for problem in status["problems"]] == ["no_nsqd"]
    assert "between runs" not in page_of(looking, NOW) and "waiting" in page_of(looking, NOW)
    assert not (tmp_path / "out").exists()


def test_tables_that_cannot_be_read_are_a_problem(nsqd: Running, tmp_path: Path) -> None:
    pipeline = at(nsqd, written(tmp_path, batch(0)))
    [file] = Path(pipeline.place("metrics").removeprefix("file://")).rglob("*.parquet")
    content = file.read_bytes()
    file.write_bytes(b"nothing")
    looking = Looking(pipeline, NOW)
    for _ in range(2):
        looking.look(NOW)
    assert [problem["name"] for problem in looking.status.current["problems"]] == ["unreadable"]
    file.write_bytes(content)
    for _ in range(2):
        looking.look(NOW)
    assert looking.status.current["problems"] == []
    assert looking.status.current["last_batch"]["number"] == 0


def test_nothing_is_created_in_the_nsqd(nsqd: Running, tmp_path: Path) -> None:
    client = NsqdHTTPClient(nsqd.http_address)
    client.delete_channel("clicks", "c")
    looking = Looking(at(nsqd, written(tmp_path, batch(0))), NOW)
    looking.look(NOW)
    assert client.stats("clicks")["topics"][0]["channels"] == []


def test_a_run_that_cannot_note_its_state_runs(tmp_path: Path) -> None:
    pipeline = written(tmp_path, batch(0))
    (tmp_path / "file").touch()
    pipeline = replace(pipeline, metrics=str(tmp_path / "file" / "metrics"))
    with watched(pipeline) as watch:
        watch.end()
    with pytest.raises(PipelineFailed, match="cannot be read"):
        last_run(pipeline)
    assert last_run(replace(pipeline, metrics="s3a://bucket/metrics")) is None


@pytest.mark.commands
def test_the_command(tmp_path: Path) -> None:
    config = tmp_path / "pipeline.toml"
    config.write_text(
        'location = "out"\n[source]\ntopic = "clicks"\nchannel = "c"\nlookupd_http_addresses = "127.0.0.1:1"\n'
    )
    command = [sys.executable, "-m", "gnsq_like", "pipeline", "serve", "--config", str(config), "--http-address"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        taken = subprocess.run([*command, address], capture_output=True, text=True, check=False, env=environ)
    assert (taken.returncode, "cannot serve the pipeline's status" in taken.stderr) == (2, True), taken.stderr
    with subprocess.Popen(
        [*command, "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        address = said.rstrip("/\n").rpartition("/")[2]
        assert said.startswith("Watch clicks at http://127.0.0.1:")
        assert raw.get(address, "/ping").status == 200
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (130, "Ended by SIGTERM.\n")
