"""The table [limits] of a pipeline's file."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.pipeline import load_pipeline
from gnsq_like.spark.pipeline.config import LimitOptions

CONFIG = """
location = "out"
[source]
topic = "clicks"
channel = "table"
lookupd_http_addresses = ["127.0.0.1:4161"]
[limits]
"""


def load(directory: Path, text: str) -> LimitOptions:
    path = directory / "pipeline.toml"
    path.write_text(CONFIG + text)
    return load_pipeline(path).limit_options


def test_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "") == LimitOptions()


def test_all_of_it(tmp_path: Path) -> None:
    text = """
        stop_above = 1
        lag = "5m"
        depth = 1000000
        rejected = 0.05
        nothing_for = 3600
        window = "10m"
    """
    assert load(tmp_path, text) == LimitOptions(
        stop_above=1.0,
        lag=300.0,
        depth=1000000,
        rejected=0.05,
        nothing_for=3600.0,
        window=600.0,
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("lag = 0", "limits.lag"),
        ("lag = 'soon'", "limits.lag"),
        ("depth = -1", "limits.depth"),
        ("rejected = 1.1", "limits.rejected"),
        ("stop_above = 2", "limits.stop_above"),
        ("rejected = '5 %'", "limits.rejected"),
        ("laag = '5m'", "limits.laag"),
    ],
)
def test_wrong_values_are_refused_by_name(tmp_path: Path, text: str, name: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        load(tmp_path, text)
    assert caught.value.option == name
