"""docs/pipeline.rst says what is so: keys and defaults, names of tables and columns, examples, commands."""

from __future__ import annotations

import re
import textwrap
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark")

from gnsq_like.cli.pipeline import pipeline as command
from gnsq_like.spark.options import duration
from gnsq_like.spark.pipeline import Pipeline, load_pipeline
from gnsq_like.spark.pipeline.batches import KEPT, LEAST_TO_JUDGE
from gnsq_like.spark.pipeline.metrics import COLUMNS, GROWTH, MOST_ATTEMPTS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "pipeline.rst").read_text()
PLACES = {"data", "rejected", "metrics", "checkpoint"}


def section(title: str) -> str:
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^[^\n]+\n---)", PAGE + "\nx\n---", re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^\.\. code-block:: {language}\n\n((?:    .*\n|\n)+)", PAGE, re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def test_the_keys_and_their_defaults() -> None:
    lines = [line for line in section("The file").splitlines() if re.match(r"``[^`]+``  ", line)]
    rows = {line[:24].strip(): line[25:37].strip() for line in lines}
    named = {key: default for key, default in rows.items() if re.fullmatch(r"``\w+``|``\[parse\] \w+``", key)}
    given = {re.sub(r"``(\[parse\] )?|``", "", key): default for key, default in named.items()}
    tables = {re.sub(r"``\[(\w+)\]``", r"\1", key) for key in rows if key not in named}
    assert set(given) | tables | PLACES == {each.name for each in fields(Pipeline)}
    defaults = {each.name: each.default for each in fields(Pipeline)}
    for name, written in given.items():
        default = defaults[name]
        if isinstance(default, bool):
            assert written == str(default).lower()
        elif isinstance(default, float):
            assert (float(written) if name == "stop_above" else duration(written)) == default
        elif name not in {"name", "location"}:
            assert written == default, name
    assert defaults["location"] is MISSING


def test_the_columns_of_the_tables() -> None:
    written = section("What is written")
    for column in [*KEPT, "body", "reason"]:
        assert f"``{column}``" in written, column
    for column in COLUMNS:
        if not column.startswith("latency_"):
            assert f"``{column}``" in section("Metrics") or column == "batch_number", column
    assert {f"``{name.removeprefix('latency_')}``" in section("Metrics") for name in COLUMNS if "latency_" in name} == {
        True
    }


def test_the_figures() -> None:
    assert f"a batch of at least {LEAST_TO_JUDGE} messages" in " ".join(PAGE.split())
    assert f"each {GROWTH - 1:.0%} wide".replace("%", " %") in PAGE
    assert f"{MOST_ATTEMPTS} standing for {MOST_ATTEMPTS} or more" in PAGE


@pytest.mark.parametrize("path", [None, ROOT / "examples" / "spark_clicks" / "pipeline.toml"])
def test_the_files_are_pipelines(tmp_path: Path, path: Path | None) -> None:
    if path is None:
        [example] = blocks("toml")
        path = tmp_path / "pipeline.toml"
        path.write_text(example)
    loaded = load_pipeline(path)
    assert loaded.sink_options is not None
    assert loaded.schema


def test_the_python_compiles_and_the_commands_exist() -> None:
    assert len(blocks("python")) == 2
    for block in blocks("python"):
        compile(block, "docs/pipeline.rst", "exec")
    called = re.findall(r"(?:gnsq-like|job\.py) pipeline (\w+)([^#\n]*)", PAGE)
    assert {name for name, _ in called} == {"run", "report", "demo"}
    for name, arguments in called:
        told = CliRunner().invoke(command, [name, "--help"]).output
        for option in re.findall(r"--[a-z-]+", arguments):
            assert option in told, (name, option)


def test_the_statuses_are_the_command_s() -> None:
    told = " ".join(CliRunner().invoke(command, ["run", "--help"]).output.split())
    written = " ".join(section("When something is wrong").split())
    for status in ("0 all", "1 it failed under way", "2 it could not begin", "130"):
        assert status in told and status in written, status
