"""``gnsq-like pipeline``: its output and exit status, as far as that needs no Spark; the rest is in ``test_whole``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gnsq_like import NsqdHTTPClient
from gnsq_like.cli.pipeline_demo import click_of, is_good, judge
from gnsq_like.cli.pipeline_screen import PipelineLayout, summary
from gnsq_like.cli.screen import LineView
from gnsq_like.spark.pipeline import Snapshot
from tests.support.daemons import running_nsqd

pytest.importorskip("pyspark")

#: Nothing listens there.
AWAY = "127.0.0.1:1"
CONFIG = """
location = "out"
[source]
topic = "clicks"
channel = "table"
nsqd_tcp_addresses = "127.0.0.1:1"
nsqd_http_addresses = "127.0.0.1:1"
"""


def gnsq_like(directory: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gnsq_like", "pipeline", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": "/usr/bin:/bin", **environ},
        cwd=directory,
    )


def test_wrong_configuration_is_status_2_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text("locaton = 'out'\n" + CONFIG)
    done = gnsq_like(tmp_path, "run", "--config", "pipeline.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: invalid option locaton='out': there is no such key; did you mean location?\n"
    done = gnsq_like(tmp_path, "maintain", "--config", "none.toml")
    assert (done.returncode, done.stderr) == (2, "Error: cannot read none.toml: No such file or directory\n")


def test_an_unreachable_daemon_is_status_2_before_spark_is_started(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(CONFIG)
    done = gnsq_like(tmp_path, "run", "--config", "pipeline.toml", "--available-now")
    assert done.returncode == 2
    assert "127.0.0.1:1" in done.stderr and "Connection refused" in done.stderr
    assert "Traceback" not in done.stderr and "left out" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('[transform]\nfunction = "nowhere:f"', "transform.function='nowhere:f': it cannot be imported"),
        (f'[dead_letters]\ntopic = "dead"\nnsqd_tcp_addresses = "{AWAY}"', f"no nsqd takes dead letters: .*{AWAY}"),
        (f'[spark]\nspark.master = "spark://{AWAY}"', f"Spark does not start on spark://{AWAY}: .*Connection refused"),
    ],
)
def test_what_cannot_begin_says_so_before_java_is_started(tmp_path: Path, given: str, said: str) -> None:
    with running_nsqd("process") as nsqd:
        NsqdHTTPClient(nsqd.http_address).create_topic("clicks")
        config = CONFIG.replace('tcp_addresses = "127.0.0.1:1"', f'tcp_addresses = "{nsqd.tcp_address}"')
        config = config.replace('http_addresses = "127.0.0.1:1"', f'http_addresses = "{nsqd.http_address}"')
        (tmp_path / "pipeline.toml").write_text(config + given)
        # A Java that must not be started.
        done = gnsq_like(tmp_path, "run", "--config", "pipeline.toml", JAVA_HOME=str(tmp_path))
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert re.match(f"Error: .*{said}", line), line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("replay", "--from", "noon", "--to", "2026-01-02", "--into", "x"), "--from noon: it must be a time such as"),
        (("replay", "--from", "2026-01-01", "--to", "2026-01-02", "--into", "x"), "the pipeline has no archive"),
        (("replay", "--from", "2026-01-03", "--to", "2026-01-02"), "the pipeline has no archive"),
        (
            ("replay", "--rejected", "--from", "2026-01-01", "--to", "2026-01-02", "--into", "x"),
            "transform.function='nowhere:f': it cannot be imported: ModuleNotFoundError",
        ),
    ],
)
def test_what_cannot_be_done_once_more_is_status_2_before_java_is_started(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "pipeline.toml").write_text(CONFIG + '[transform]\nfunction = "nowhere:f"\n')
    done = gnsq_like(tmp_path, *arguments, "--config", "pipeline.toml", JAVA_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_function_is_found_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(CONFIG + '[transform]\nfunction = "shop:clean"\n')
    (tmp_path / "shop.py").write_text("def clean(messages): return messages\n")
    done = gnsq_like(tmp_path, "run", "--config", "pipeline.toml", PYTHONSAFEPATH="1")
    assert done.returncode == 2
    assert "Connection refused" in done.stderr  # of nsqd, which comes after it


def test_maintain_reports_in_a_line_what_it_has_done(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(CONFIG + '[table]\nkeep_rejected = "1d"\n')
    (tmp_path / "out" / "rejected" / "date=2020-01-01" / "hour=7").mkdir(parents=True)
    for said in ("rejected: 1 hours before ", ""):
        done = gnsq_like(tmp_path, "maintain", "--config", "pipeline.toml")
        assert (done.returncode, done.stderr, done.stdout.startswith(said)) == (0, "", True)
    assert done.stdout == ""
    (tmp_path / "pipeline.toml").write_text(CONFIG + '[table]\nmaintain_evry = "1d"\n')
    done = gnsq_like(tmp_path, "maintain", "--config", "pipeline.toml")
    assert (done.returncode, "there is no such option; did you mean maintain_every?" in done.stderr) == (2, True)


def test_check_names_all_that_is_wrong_and_writes_nothing(tmp_path: Path) -> None:
    config = tmp_path / "pipeline.toml"
    config.write_text(CONFIG + '[parse]\nschema = "n INT"\n[dead_letters]\ntopic = "dead"\n')
    before = sorted(tmp_path.iterdir())
    java = {"JAVA_HOME": str(tmp_path / "none"), "PATH": "/nowhere"}
    done = gnsq_like(tmp_path, "check", "pipeline.toml", "--offline", **java)
    assert (done.returncode, done.stderr) == (2, "Error: 1 check of 7 failed\n"), done.stdout + done.stderr
    rows = [re.split(r"  +", line) for line in done.stdout.splitlines()]
    assert rows[-1][0] == "Spark" and "Java" in rows[-1][2]
    done = gnsq_like(tmp_path, "check", "pipeline.toml", **java)
    assert (done.returncode, done.stderr) == (2, "Error: 2 checks of 9 failed\n"), done.stdout
    assert re.search(r"^daemons +127.0.0.1:1 .*Connection refused", done.stdout, re.MULTILINE)
    assert re.search(r"^dead letters +dead +no nsqd takes dead letters", done.stdout, re.MULTILINE)
    config.write_text(CONFIG + '[transform]\nfunction = "nowhere:f"\n')
    done = gnsq_like(tmp_path, "check", "pipeline.toml", "--offline", **java)
    assert (done.returncode, "it cannot be imported" in done.stdout) == (2, True)
    assert done.stdout.splitlines()[-1].endswith("not checked: something else is wrong")
    config.write_text("locaton = 'out'")
    done = gnsq_like(tmp_path, "check", "pipeline.toml", "--offline")
    assert (done.returncode, "there is no such key; did you mean location?" in done.stdout) == (2, True)
    assert sorted(tmp_path.iterdir()) == before


def test_a_demo_leaves_what_is_there_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    done = gnsq_like(tmp_path, "demo", "--location", str(tmp_path))
    assert done.returncode == 2
    assert "it is not empty" in done.stderr


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    view = LineView(PipelineLayout())
    snapshot = Snapshot(seconds=3.04, batches=2, messages=1200, rejected=3, rate=400.4, lag=0.25, depth=None)
    for _ in range(3):
        view.update(snapshot)
    said = capsys.readouterr().out
    assert said == "   3.0 s: messages 1,200; rejected 3; msgs/s 400; lag 0.2 s; waiting –; batches 2\n"
    assert summary(snapshot) == "1,197 messages written and 3 rejected in 2 batches and 3.0 s, 400 a second."


@pytest.mark.parametrize(
    ("found", "said", "status"),
    [
        ([0, 1, 2], "0 lost, 0 there twice.", 0),
        ([0, 2], "1 lost, 0 there twice.", 1),
        ([0, 1, 1, 2], "0 lost, 1 there twice.", 1),
        ([0, 1, 2, 7], "0 lost, 0 there twice, 1 in the wrong place.", 1),
    ],
)
def test_the_demo_counts_what_the_table_holds(found: list[int], said: str, status: int) -> None:
    verdict = judge(3, (("data", number) for number in found), Snapshot(), [])
    assert (verdict.lines[1], verdict.exit_status) == (said, status)


def test_the_demo_s_clicks_are_good_or_not_as_they_should() -> None:
    import json
    import random

    for number in range(7000):
        body = click_of(number, random.Random(number))
        try:
            good = "user" in json.loads(body)
        except ValueError:
            good = False
        assert good == is_good(number)
        assert not good or 190 <= len(body) <= 210


def test_repair_says_what_it_does_and_asks(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(CONFIG)
    command = ["repair", "--config", "pipeline.toml"]
    done = gnsq_like(tmp_path, *command)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Nothing is damaged.\n", "")
    offsets = tmp_path / "out" / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("")
    done = gnsq_like(tmp_path, *command)
    assert (done.returncode, (offsets / "0").exists()) == (1, True)
    assert done.stderr.endswith("not confirmed; --yes does it without asking\n")
    assert f"{offsets}/0 is damaged: it is removed, and the batch planned again" in done.stdout
    done = gnsq_like(tmp_path, *command, "--yes")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "2 problems repaired.")
    assert gnsq_like(tmp_path, *command).stdout == "Nothing is damaged.\n"
    commits = tmp_path / "out" / "checkpoint" / "commits"
    commits.mkdir()
    for path in (offsets / "0", commits / "0"):
        path.write_text("v1")
    done = gnsq_like(tmp_path, *command, "--yes")
    assert (done.returncode, "Error: 1 problem cannot be repaired" in done.stderr) == (1, True)
