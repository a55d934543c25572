"""Durations as a status says them."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from gnsq_like.spark.watch.run_status import time_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0124, "12 ms"), (3.44, "3.4 s"), (100, "100 s"), (1860, "31 min"), (9000, "2.5 h"), (200_000, "2.3 d")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
