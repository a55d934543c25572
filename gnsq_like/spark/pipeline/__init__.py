"""The data pipeline: a topic becomes a table, next to a table of rejected messages and metrics of every minute.

::

    from gnsq_like.spark.pipeline import Pipeline, load_pipeline, run_pipeline

    pipeline = load_pipeline("pipeline.toml")       # or Pipeline(location=..., source={...}, schema="...")
    summary = run_pipeline(pipeline, available_now=True)

``gnsq-like pipeline run`` does the same. Importing this package imports no pyspark.

Why every message is written exactly once: Spark repeats a batch if it was killed before it noted the batch's end. The
source then gives the same rows, with the same ``seen_at``. Tasks write files that belong to no table yet, and only
files that they report are added: to directories named after the query and the batch's number, in place of what these
had. The archive comes first, if there is one, then rows (``data``), rejected messages (``rejected``), and metrics. A
batch that was killed half-way is replaced as a whole; a complete one is replaced by the same content. A table of Delta
or Iceberg has a commit for each batch instead, with the batch's number, and takes it once. Only the dead-letter topic
cannot take anything back: it is at-least-once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_like._lazy import lazy_names

if TYPE_CHECKING:
    from gnsq_like.spark.pipeline.config import Pipeline, load_pipeline
    from gnsq_like.spark.pipeline.faults import NotBegun, PipelineFailed
    from gnsq_like.spark.pipeline.replaying import Replayed, replay
    from gnsq_like.spark.pipeline.run import Snapshot, run_pipeline

__all__ = [
    "NotBegun",
    "Pipeline",
    "PipelineFailed",
    "Replayed",
    "Snapshot",
    "load_pipeline",
    "replay",
    "run_pipeline",
]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "NotBegun": "gnsq_like.spark.pipeline.faults",
            "Pipeline": "gnsq_like.spark.pipeline.config",
            "PipelineFailed": "gnsq_like.spark.pipeline.faults",
            "Replayed": "gnsq_like.spark.pipeline.replaying",
            "Snapshot": "gnsq_like.spark.pipeline.run",
            "load_pipeline": "gnsq_like.spark.pipeline.config",
            "replay": "gnsq_like.spark.pipeline.replaying",
            "run_pipeline": "gnsq_like.spark.pipeline.run",
        },
    )
