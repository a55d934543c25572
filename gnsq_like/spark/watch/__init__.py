"""Watching a run of a pipeline: its status, limits, metrics, and a page (docs/pipeline.rst)."""
