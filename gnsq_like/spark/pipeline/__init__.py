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

from typing import TYPE_CHECKING

from gnsq_like._lazy import lazy_names

if TYPE_CHECKING:
    from gnsq_like.spark.pipeline.config import Pipeline, load_pipeline
    from gnsq_like.spark.pipeline.faults import NotBegun, PipelineFailed
    from gnsq_like.spark.pipeline.report import write_report
    from gnsq_like.spark.pipeline.run import Snapshot, run_pipeline

__all__ = ["NotBegun", "Pipeline", "PipelineFailed", "Snapshot", "load_pipeline", "run_pipeline", "write_report"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "NotBegun": "gnsq_like.spark.pipeline.faults",
        "Pipeline": "gnsq_like.spark.pipeline.config",
        "PipelineFailed": "gnsq_like.spark.pipeline.faults",
        "Snapshot": "gnsq_like.spark.pipeline.run",
        "load_pipeline": "gnsq_like.spark.pipeline.config",
        "run_pipeline": "gnsq_like.spark.pipeline.run",
        "write_report": "gnsq_like.spark.pipeline.report",
    },
)
