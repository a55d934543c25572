"""The whole command in processes of its own: killed, on other masters, on a full disk; and the demo."""

from __future__ import annotations

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
    check,
    fill,
    read,
    run_killed,
    running,
    running_pipeline,
    write_config,
)
from tests.support.daemons import Kind, running_nsqd, wait_for
from tests.support.files import files_below
from tests.support.processes import java_of, paths_of_pythons, threads_of
from tests.support.spark_sessions import ROOT

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark_long, pytest.mark.timeout(900), pytest.mark.usefixtures("java")]


def run(*command: str, cwd: Path, timeout: float = 400, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a session of its own, all of whose processes end."""
    with running(*command, cwd=cwd, stderr=subprocess.PIPE, **environ) as process:
        output, errors = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@pytest.mark.parametrize(
    ("kind", "format", "kills"),
    [
        ("process", "parquet", 2),
        pytest.param("real", "parquet", 2, marks=pytest.mark.real_nsqd),
        ("process", "delta", 2),
        ("process", "iceberg", 1),
    ],
)
def test_killed_beside_compaction_and_a_reader_everything_is_there_once(
    tmp_path: Path, kind: Kind, format: str, kills: int
) -> None:
    """No reader sees a part of a batch. ``trial`` kills more often, and more kinds of processes."""
    with running_nsqd(kind) as nsqd:
        fill([nsqd], 20_000)
        config = write_config([nsqd], tmp_path, 2_000, format)
        with Beside(config, format) as beside:
            said = run_killed(config, kills, random.Random(), 300)
        assert len(said) == kills + 1
        check(read([nsqd], tmp_path, format), 20_000)
    assert beside.errors == []
    assert beside.reads


SUBMIT = """
from gnsq_like.cli import main

main()
"""


def test_spark_submit(tmp_path: Path) -> None:
    """``test_deployments`` has the command on a cluster."""
    import pyspark

    with running_nsqd("process") as nsqd:
        fill([nsqd], 20_000)
        config = write_config([nsqd], tmp_path, 10_000)
        job = tmp_path / "job.py"
        job.write_text(SUBMIT)
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        command = [str(submit), "--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=3"]
        arguments = ["pipeline", "run", "--config", str(config), "--available-now"]
        done = run(*command, str(job), *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "19,980 messages written and 20 rejected" in done.stdout
        check(read([nsqd], tmp_path), 20_000)


def can_mount() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "-rm", "true"], check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="no unshare that lets a file system be mounted")
@pytest.mark.parametrize(("what", "format", "size"), [("data", "delta", "64k"), ("stage", "parquet", "256k")])
def test_a_full_disk_ends_it_with_a_sentence_and_loses_nothing(
    tmp_path: Path, what: str, format: str, size: str
) -> None:
    """What Java says of it is in ``test_faults``; these two are written by Python."""
    # The first run has a namespace of its own with a small file system here, which ends with it; the second has none.
    small = tmp_path / "out" / what
    small.mkdir(parents=True)
    with running_nsqd("process") as nsqd:
        fill([nsqd], 20_000)
        config = write_config([nsqd], tmp_path, 20_000, format)
        arguments = ["pipeline", "run", "--config", str(config), "--available-now", "--quiet"]
        mounted = f'mount -t tmpfs -o size={size} none "{small}" && exec "$0" -m gnsq_like "$@"'
        done = run("unshare", "-rm", "sh", "-c", mounted, sys.executable, *arguments, cwd=tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert re.search(r"Error: a disk is full: make room where the pipeline writes.*Nothing is lost", done.stderr), (
            done.stderr
        )
        if what == "stage":
            # It belongs to the checkpoint, and the content of the small file system is gone.
            return
        done = run(sys.executable, "-m", "gnsq_like", *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        check(read([nsqd], tmp_path, format), 20_000)


def test_a_signal_ends_it_in_good_order(tmp_path: Path) -> None:
    with running_nsqd("process") as nsqd:
        fill([nsqd], 5_000)
        config = write_config([nsqd], tmp_path, 1_000)
        with running_pipeline(config) as process:
            metrics = tmp_path / "out" / "metrics"
            wait_for(lambda: files_below(metrics, ".parquet"), "the first batch", 400)
            paths = paths_of_pythons(java_of(process.pid))
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate()
        assert process.returncode == 130
        assert "Ended by SIGTERM." in output and "Traceback" not in output
        # Spark's Pythons import pyspark from its package, where it is compiled.
        assert paths and not [each for each in paths if each.endswith("pyspark.zip") and os.path.exists(each)]
        assert run_killed(config, 0, random.Random(), 600)  # what hangs is named by the limit of the test
        check(read([nsqd], tmp_path), 5_000)


@pytest.mark.parametrize("threads", [1, 30])
def test_a_signal_before_anything_is_read_ends_it_too(tmp_path: Path, threads: int) -> None:
    with running_nsqd("process") as nsqd:
        fill([nsqd], 1_000)
        config = write_config([nsqd], tmp_path, 1_000)
        with running_pipeline(config) as process:
            out = tmp_path / "out"
            wait_for(out.exists, "the beginning", 400)
            # Spark starts its threads one after the other, the last ones with the query.
            wait_for(
                lambda: (out / "checkpoint").exists() or threads_of(java_of(process.pid)) >= threads,
                f"Java with {threads} threads",
                400,
            )
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate()
        assert process.returncode == 130, output
        assert "Ended by SIGINT." in output and "Traceback" not in output


def test_when_java_is_killed_a_sentence_says_so_and_nothing_is_lost(tmp_path: Path) -> None:
    with running_nsqd("process") as nsqd:
        fill([nsqd], 5_000)
        config = write_config([nsqd], tmp_path, 1_000)
        with running_pipeline(config) as process:
            metrics = tmp_path / "out" / "metrics"
            wait_for(lambda: files_below(metrics, ".parquet"), "the first batch", 400)
            second = run(sys.executable, "-m", "gnsq_like", "pipeline", "run", "--config", str(config), cwd=tmp_path)
            os.kill(java_of(process.pid), signal.SIGKILL)
            output, _ = process.communicate()
        assert (second.returncode, "another run uses the checkpoint" in second.stderr) == (2, True), second.stderr
        assert process.returncode == 1, output
        assert "Error: Spark's Java ended in the middle of the run" in output and "Traceback" not in output
        assert run_killed(config, 0, random.Random(), 600)  # what hangs is named by the limit of the test
        check(read([nsqd], tmp_path), 5_000)


def test_nothing_there_is_no_failure_and_what_cannot_begin_is_said_at_once(tmp_path: Path) -> None:
    with running_nsqd("process") as nsqd:
        config = write_config([nsqd], tmp_path, 1_000)
        command = [sys.executable, "-m", "gnsq_like", "pipeline", "run", "--config", str(config), "--available-now"]
        done = run(*command, "--report", "report.html", cwd=tmp_path)
        assert (done.returncode, "No report: nothing was ever written." in done.stdout) == (0, True), done.stderr
        # Java itself prints notes about its options.
        assert [
            line for line in done.stderr.splitlines() if not line.startswith(("NOTE: Picked up", "WARNING: Using"))
        ] == []
        for option, value, said in (
            ("--report", "nowhere/report.html", "the report cannot be written: nowhere/report.html"),
            ("--master", "foo", "invalid option master='foo': it must be one such as local[4]"),
        ):
            done = run(*command, option, value, cwd=tmp_path)
            assert (done.returncode, done.stderr.startswith(f"Error: {said}")) == (2, True), done.stderr


def test_check_has_spark_look_at_the_sql(tmp_path: Path) -> None:
    with running_nsqd("process") as nsqd:
        config = write_config([nsqd], tmp_path, 1_000)
        config.write_text(config.read_text() + '[transform]\nsql = "SELECT max(number) AS n FROM messages"\n')
        done = run(sys.executable, "-m", "gnsq_like", "pipeline", "check", str(config), cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(r"^Spark .* transform\.sql=.* it aggregates", done.stdout, re.MULTILINE)
    assert re.search(r"^daemons .* 1 nsqds, 0 messages wait$", done.stdout, re.MULTILINE)
    assert not (tmp_path / "out").exists()


def test_the_demo_and_its_report(tmp_path: Path) -> None:
    where = tmp_path / "demo"
    command = [sys.executable, "-m", "gnsq_like", "pipeline", "demo", "--messages", "20000", "--seconds", "6"]
    done = run(*command, "--location", str(where), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 lost, 0 there twice." in done.stdout
    report = (where / "report.html").read_text()
    assert "20,000" in report and report.count("<svg") == 3
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
