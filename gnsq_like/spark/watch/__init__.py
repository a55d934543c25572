"""Watching a run of a pipeline: its status, thresholds, webhooks, metrics, and a page (docs/pipeline.rst)."""
