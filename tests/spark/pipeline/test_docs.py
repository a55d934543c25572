"""docs/pipeline.rst is true: keys and defaults, names of tables and columns, examples, commands."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.pages import DOCS, blocks, page, section

pytest.importorskip("pyspark")

from gnsq_like.cli.pipeline import pipeline as command
from gnsq_like.spark.format_options import duration
from gnsq_like.spark.pipeline import Pipeline, load_pipeline
from gnsq_like.spark.pipeline.batches import LEAST_TO_JUDGE
from gnsq_like.spark.pipeline.metrics import COLUMNS, GROWTH, MOST_ATTEMPTS
from gnsq_like.spark.pipeline.transform import KEPT

PAGE = page("pipeline.rst")
PLACES = {"data", "rejected", "metrics", "checkpoint"}


def test_the_keys_and_their_defaults() -> None:
    lines = [line for line in section(PAGE, "The file").splitlines() if re.match(r"``[^`]+``  ", line)]
    rows = {line[:26].strip(): line[28:39].strip() for line in lines}
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
            assert duration(written) == default
        elif name not in {"name", "location"}:
            assert written == default, name
    assert defaults["location"] is MISSING


def test_the_columns_of_the_tables() -> None:
    written, metrics = section(PAGE, "Output"), section(PAGE, "Metrics")
    for column in [*KEPT, "body", "reason"]:
        assert f"``{column}``" in written, column
    for column in COLUMNS:
        if not column.startswith("latency_"):
            assert f"``{column}``" in metrics or column == "batch_number", column
    assert {f"``{name.removeprefix('latency_')}``" in metrics for name in COLUMNS if "latency_" in name} == {True}


def test_the_figures() -> None:
    assert f"a batch of at least {LEAST_TO_JUDGE} messages" in " ".join(PAGE.split())
    assert f"each {GROWTH - 1:.0%} wide".replace("%", " %") in PAGE
    assert f"{MOST_ATTEMPTS} standing for {MOST_ATTEMPTS} or more" in PAGE


FILES = [block for block in blocks(PAGE, "toml") if "[source]" in block]


@pytest.mark.parametrize("text", [*FILES, (DOCS.parent / "examples" / "spark_clicks" / "pipeline.toml").read_text()])
def test_the_files_are_pipelines(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    loaded = load_pipeline(path)
    assert loaded.topics or loaded.sink_options is not None
    for each in [loaded.for_topic(topic) for topic in loaded.topics] or [loaded]:
        assert each.schema


def test_the_python_compiles_and_the_commands_exist() -> None:
    assert len(blocks(PAGE)) == 2
    for block in blocks(PAGE):
        compile(block, "docs/pipeline.rst", "exec")
    called = re.findall(r"(?:gnsq-like|job\.py) pipeline (\w+)([^#\n]*)", PAGE)
    assert {name for name, _ in called} == {
        "run",
        "maintain",
        "check",
        "demo",
        "replay",
        "repair",
    }
    for name, arguments in called:
        told = CliRunner().invoke(command, [name, "--help"]).output
        for option in re.findall(r"--[a-z-]+", arguments):
            assert option in told, (name, option)


def test_the_statuses_are_the_command_s() -> None:
    told = " ".join(CliRunner().invoke(command, ["run", "--help"]).output.split())
    written = " ".join(section(PAGE, "Troubleshooting").split())
    for status in ("0 all", "1 it failed under way", "2 it could not begin", "130"):
        assert status in told and status in written, status
