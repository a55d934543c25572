"""The data pipeline: a topic becomes a table, with what does not fit kept aside, and metrics of every minute.

::

    from gnsq_like.spark.pipeline import Pipeline, load_pipeline, run_pipeline

    pipeline = load_pipeline("pipeline.toml")       # or Pipeline(location=..., source={...}, schema="...")
    summary = run_pipeline(pipeline, available_now=True)

``gnsq-like pipeline run`` does the same. Importing this package imports no pyspark.

How a batch becomes exact. Spark runs a batch again when it was killed before the batch's end was noted; the source
then gives the same rows, with the same ``seen_at``. So everything that a batch writes lies in a place of its own,
named by the query and the batch's number, and is written over: rows (``data``), what was rejected (``rejected``) and
the metrics, in this order. What was killed half-way is replaced as a whole; what was complete is replaced by the
same. Only the dead-letter topic cannot take anything back: it is at-least-once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsq_like.spark.pipeline.config import Pipeline, load_pipeline
    from gnsq_like.spark.pipeline.faults import NotBegun, PipelineFailed
    from gnsq_like.spark.pipeline.report import write_report
    from gnsq_like.spark.pipeline.run import Snapshot, run_pipeline

__all__ = ["NotBegun", "Pipeline", "PipelineFailed", "Snapshot", "load_pipeline", "run_pipeline", "write_report"]

_HOMES = {
    "NotBegun": "faults",
    "Pipeline": "config",
    "PipelineFailed": "faults",
    "Snapshot": "run",
    "load_pipeline": "config",
    "run_pipeline": "run",
    "write_report": "report",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
