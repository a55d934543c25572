"""Where a batch's files are; how Spark writes and removes them is in ``test_pipeline``."""

from __future__ import annotations

from datetime import UTC, datetime

from gnsq_like.spark.pipeline.paths import batch_name, batch_path


def test_a_batch_has_one_batch_path_its_own() -> None:
    name = batch_name("53a2b255-eb00-4656-a79d-f657d99a6537", 42)
    assert name == "53a2b255eb00-000042"
    late = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
    assert batch_path("/data", late, name) == "/data/date=2026-11-21/hour=1/batch=53a2b255eb00-000042"
