"""The whole command in processes of its own: killed, on other masters, on a full disk; and the demo."""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.spark.pipeline.beside import Beside
from tests.spark.pipeline.killing import (
    BROKEN_EVERY,
    Moment,
    Victim,
    check,
    fill,
    kill,
    kill_one,
    read,
    run_to_its_end,
    running,
    running_pipeline,
    write_config,
)
from tests.support.daemons import Kind, running_nsqd, wait_for
from tests.support.files import files_below
from tests.support.processes import java_of, paths_of_pythons, threads_of
from tests.support.s3 import serving_s3
from tests.support.spark_sessions import ROOT

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark_long, pytest.mark.timeout(900), pytest.mark.usefixtures("java")]


def run(*command: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a session of its own, all of whose processes end."""
    with running(*command, cwd=cwd, stderr=subprocess.PIPE, **environ) as process:
        output, errors = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def submit(config: Path, *command: str) -> str:
    """Run a pipeline to its end by spark-submit; returns its output."""
    import pyspark

    job = config.with_name("job.py")
    job.write_text("from gnsq_like.cli import main\n\nmain()\n")
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    arguments = ["pipeline", "run", "--config", str(config), "--available-now"]
    done = run(submit, "--master", "local[2]", *command, str(job), *arguments, cwd=config.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_for_a_batch(config: Path, known: int) -> None:
    """Wait for the metrics of a batch beyond those that there were."""
    metrics = config.parent / "out" / "metrics"
    wait_for(lambda: len(files_below(metrics, ".parquet")) > known, "a batch", math.inf)


def known_batches(config: Path) -> int:
    return len(files_below(config.parent / "out" / "metrics", ".parquet"))


def kill_java(config: Path) -> None:
    """Kill the Java of a run; a second run that comes meanwhile is refused."""
    known = known_batches(config)
    command = [sys.executable, "-m", "gnsq_like", "pipeline", "run", "--config", str(config)]
    # It chooses a home of Spark itself, from whose package Spark's Pythons import pyspark: there it is compiled.
    with running("env", "-u", "SPARK_HOME", *command, cwd=config.parent) as process:
        wait_for_a_batch(config, known)
        paths = paths_of_pythons(java_of(process.pid))
        assert paths and not [each for each in paths if each.endswith("pyspark.zip") and os.path.exists(each)]
        second = run(*command, cwd=config.parent)
        os.kill(java_of(process.pid), signal.SIGKILL)
        output, _ = process.communicate()
    assert (second.returncode, "another run uses the checkpoint" in second.stderr) == (2, True), second.stderr
    assert process.returncode == 1, output
    assert "Error: Spark's Java ended in the middle of the run" in output and "Traceback" not in output


def end_by_signal(config: Path) -> None:
    known = known_batches(config)
    with running_pipeline(config) as process:
        wait_for_a_batch(config, known)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate()
    assert process.returncode == 130, output
    assert "Ended by SIGTERM." in output and "Traceback" not in output


@pytest.mark.parametrize("kind", ["process", pytest.param("real", marks=pytest.mark.real_nsqd)])
def test_whatever_ends_the_runs_everything_is_there_once(tmp_path: Path, kind: Kind) -> None:
    """Java is killed, a signal comes; spark-submit runs what is left. Below, everything is killed.

    Beside it, the tables are maintained, and no reader sees a part of a batch. ``trial`` kills more often.
    """
    with running_nsqd(kind) as nsqd:
        fill([nsqd], 16_000)
        config = write_config([nsqd], tmp_path, 2_000)
        with Beside(config, "parquet") as beside:
            kill_java(config)
            end_by_signal(config)
            assert " messages written and " in submit(config, "--conf", "spark.sql.shuffle.partitions=3")
        check(read([nsqd], tmp_path), 16_000)
    assert beside.errors == []
    assert beside.reads


def test_killed_workers_and_a_killed_run_into_iceberg_beside_a_reader(tmp_path: Path) -> None:
    """A run goes on when its Python workers are killed while a file is written; then everything is killed.

    Files are written behind Spark's plan here, and by the source's tasks elsewhere. Without Spark, and more often, and
    Delta's too, ``test_committed_table`` kills.
    """
    with running_nsqd("process") as nsqd:
        fill([nsqd], 10_000)
        config = write_config([nsqd], tmp_path, 2_000, "iceberg", more="[transform]\nwhere = 'body.number >= 0'")
        with Beside(config, "iceberg") as beside:
            kill_one(config, random.Random(), Victim.WORKERS, Moment.WRITTEN)
            run_to_its_end(config)
        check(read([nsqd], tmp_path, "iceberg"), 10_000)
    assert beside.errors == []
    assert beside.reads


def test_a_killed_run_on_an_object_store_has_each_message_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage and tables are there; the checkpoint is not, and Spark has no jars for it."""
    fsspec = pytest.importorskip("fsspec")
    from pyarrow import dataset, fs

    with serving_s3() as s3, running_nsqd("process") as nsqd:
        for name, value in s3.items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("bucket")
        fill([nsqd], 6_000)
        places = "\n".join(f'{name} = "s3://bucket/{name}"' for name in ("data", "metrics", "archive"))
        config = write_config([nsqd], tmp_path, 1_000, more=places)
        given = config.read_text().replace("[source]", '[source]\nstaging_location = "s3://bucket/stage"')
        config.write_text(given)
        commits = tmp_path / "out" / "checkpoint" / "commits"
        with running_pipeline(config, "--available-now") as process:
            wait_for(lambda: commits.exists() and len(list(commits.iterdir())) >= 2, "two batches", math.inf)
            kill(process)
        run_to_its_end(config)
        system, root = fs.FileSystem.from_uri("s3://bucket/data")
        found = dataset.dataset(root, filesystem=system, format="parquet", partitioning="hive").to_table()
    numbers = Counter(body["number"] for body in found["body"].to_pylist())
    assert numbers == Counter(number for number in range(6_000) if number % BROKEN_EVERY)


def can_mount() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "-rm", "true"], check=False).returncode == 0


def run_on_a_full_disk(config: Path, small: Path, size: str) -> None:
    """Run a pipeline with a small file system in a place of its own, which nobody else sees and which ends with it."""
    small.mkdir(parents=True)
    mounted = f'mount -t tmpfs -o size={size} none "{small}" && exec "$0" -m gnsq_like "$@"'
    arguments = ["pipeline", "run", "--config", str(config), "--available-now", "--quiet"]
    done = run("unshare", "-rm", "sh", "-c", mounted, sys.executable, *arguments, cwd=config.parent)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    full = r"a disk is full: make room where the pipeline writes|the disk of \S+ is full: make room there"
    assert re.search(rf"Error: ({full}).*Nothing is lost", done.stderr), done.stderr


@pytest.mark.skipif(not can_mount(), reason="no unshare that lets a file system be mounted")
def test_a_full_disk_under_the_stage_ends_a_run_with_a_sentence(tmp_path: Path) -> None:
    """What Java says of a full disk is in ``test_faults``; here and below, Python writes."""
    with running_nsqd("process") as nsqd:
        fill([nsqd], 10_000)
        run_on_a_full_disk(write_config([nsqd], tmp_path, 10_000), tmp_path / "out" / "stage", "256k")


@pytest.mark.skipif(not can_mount(), reason="no unshare that lets a file system be mounted")
def test_a_full_disk_loses_nothing_of_delta(tmp_path: Path) -> None:
    with running_nsqd("process") as nsqd:
        fill([nsqd], 10_000)
        config = write_config([nsqd], tmp_path, 2_000, "delta")
        run_on_a_full_disk(config, tmp_path / "out" / "data", "32k")
        with Beside(config, "delta") as beside:
            run_to_its_end(config)
        check(read([nsqd], tmp_path, "delta"), 10_000)
    assert beside.errors == []
    assert beside.reads


@pytest.mark.parametrize("threads", [1, 30])
def test_a_signal_before_anything_is_read_ends_it_too(tmp_path: Path, threads: int) -> None:
    with running_nsqd("process") as nsqd:
        fill([nsqd], 1_000)
        config = write_config([nsqd], tmp_path, 1_000)
        with running_pipeline(config) as process:
            out = tmp_path / "out"
            wait_for(out.exists, "the beginning", math.inf)
            # Spark starts its threads one after the other, the last ones with the query.
            wait_for(
                lambda: (out / "checkpoint").exists() or threads_of(java_of(process.pid)) >= threads,
                f"Java with {threads} threads",
                math.inf,
            )
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate()
        assert process.returncode == 130, output
        assert "Ended by SIGINT." in output and "Traceback" not in output


def test_nothing_there_is_no_failure_and_what_cannot_begin_is_said_at_once(tmp_path: Path) -> None:
    with running_nsqd("process") as nsqd:
        config = write_config([nsqd], tmp_path, 1_000)
        command = [sys.executable, "-m", "gnsq_like", "pipeline", "run", "--config", str(config), "--available-now"]
        # pyspark has an opinion of this pandas, and we use none.
        (tmp_path / "pandas").mkdir()
        (tmp_path / "pandas" / "__init__.py").write_text('__version__ = "3.0.0"\nDataFrame = Series = object\n')
        done = run(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        # Java itself prints notes about its options.
        assert [
            line for line in done.stderr.splitlines() if not line.startswith(("NOTE: Picked up", "WARNING: Using"))
        ] == ["clicks: no nsqd has the topic clicks: is its name right?"]
        done = run(*command, "--master", "foo", cwd=tmp_path)
        said = "Error: invalid option master='foo': it must be one such as local[4]"
        assert (done.returncode, done.stderr.startswith(said)) == (2, True), done.stderr


def test_check_has_spark_look_at_the_sql(tmp_path: Path) -> None:
    with running_nsqd("process") as nsqd:
        config = write_config([nsqd], tmp_path, 1_000)
        config.write_text(config.read_text() + '[transform]\nselect = ["max(body.number) AS n"]\n')
        done = run(sys.executable, "-m", "gnsq_like", "pipeline", "check", str(config), cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(r"^Spark .* transform\.select=.* add up in a query of the table", done.stdout, re.MULTILINE)
    assert re.search(r"^daemons .* 1 nsqds, 0 messages wait; no nsqd has the topic", done.stdout, re.MULTILINE)
    assert not (tmp_path / "out").exists()


def test_the_demo(tmp_path: Path) -> None:
    where = tmp_path / "demo"
    command = [sys.executable, "-m", "gnsq_like", "pipeline", "demo", "--messages", "20000", "--seconds", "6"]
    done = run(*command, "--location", str(where), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 lost, 0 there twice." in done.stdout
    attempts: Counter[int] = Counter()
    from pyarrow import dataset

    rows: list[dict[str, Any]] = dataset.dataset(where / "metrics", partitioning="hive").to_table().to_pylist()
    for row in rows:
        attempts.update(dict(row["attempts"]))
    assert attempts[2] >= 300
    assert max(row["latency_max"] for row in rows) >= 5


def test_the_example(tmp_path: Path) -> None:
    done = run(sys.executable, str(ROOT / "examples" / "spark_clicks" / "clicks.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\|\s*/\S*\s*\|\s*\d+\|", done.stdout, re.MULTILINE)
    assert "every click once" in done.stdout
