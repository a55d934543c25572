"""The hours of a table of files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from gnsq_like.spark.pipeline.maintenance import Hour, drop_hour, hours_of

START = datetime(2026, 11, 21, 13, tzinfo=UTC)
HOUR = Hour(START, "date=2026-11-21/hour=13")


def test_an_hour_is_dropped(tmp_path: Path) -> None:
    later = Hour(START + timedelta(hours=1), "date=2026-11-21/hour=14")
    for hour in (HOUR, later):
        (tmp_path / hour.path / "batch=0123-000000").mkdir(parents=True)
    (tmp_path / "_schema").mkdir()
    (tmp_path / "date=x" / "hour=13").mkdir(parents=True)
    drop_hour(f"file://{tmp_path}", HOUR)
    assert hours_of(f"file://{tmp_path}") == [later]
    drop_hour(f"file://{tmp_path}", later)
    assert not (tmp_path / "date=2026-11-21").exists() and (tmp_path / "_schema").exists()
