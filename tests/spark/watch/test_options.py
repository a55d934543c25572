"""The table [watch] of a pipeline's file."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.pipeline import load_pipeline
from gnsq_like.spark.pipeline.config import WatchOptions

CONFIG = """
location = "out"
[source]
topic = "clicks"
channel = "table"
lookupd_http_addresses = ["127.0.0.1:4161"]
[watch]
"""


def load(directory: Path, text: str) -> WatchOptions:
    path = directory / "pipeline.toml"
    path.write_text(CONFIG + text)
    return load_pipeline(path).watch_options


def test_nothing_is_watched_by_default(tmp_path: Path) -> None:
    assert load(tmp_path, "") == WatchOptions()


def test_all_of_it(tmp_path: Path) -> None:
    text = """
        http_address = "127.0.0.1:9160"
        lag = "5m"
        depth = 1000000
        rejected = 0.05
        nothing_for = 3600
        window = "10m"
        webhook = ["http://a/hook", "https://b"]
    """
    assert load(tmp_path, text) == WatchOptions(
        http_address="127.0.0.1:9160",
        lag=300.0,
        depth=1000000,
        rejected=0.05,
        nothing_for=3600.0,
        window=600.0,
        webhook=("http://a/hook", "https://b"),
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("lag = 0", "watch.lag"),
        ("lag = 'soon'", "watch.lag"),
        ("depth = -1", "watch.depth"),
        ("rejected = 1", "watch.rejected"),
        ("rejected = '5 %'", "watch.rejected"),
        ("webhook = 'ftp://a'", "watch.webhook"),
        ("http_address = 'nowhere'", "watch.http_address"),
        ("http_adress = '127.0.0.1:1'", "watch.http_adress"),
    ],
)
def test_wrong_values_are_refused_by_name(tmp_path: Path, text: str, name: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        load(tmp_path, text)
    assert caught.value.option == name
