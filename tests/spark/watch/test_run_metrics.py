"""A run's metrics, as Prometheus reads them."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from prometheus_client.parser import text_string_to_metric_families

from gnsq_like.spark.watch.run_metrics import PROBLEMS, metrics_page
from tests.support.pipeline_tables import BEGAN, Run

#: In the order in which these tests have their values.
LABELS = ("topic", "channel", "nsqd", "problem", "le")


def values(run: Run) -> dict[str, dict[tuple[str, ...], float]]:
    """All samples, by name and labels besides that of the pipeline."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(metrics_page(run.status.current).decode()):
        for sample in family.samples:
            assert sample.labels.pop("pipeline") == "clicks <b>"
            labels = tuple(sample.labels[name] for name in LABELS if name in sample.labels)
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_a_run_that_has_seen_nothing() -> None:
    found = values(Run())
    assert found["nsq_pipeline_batches_total"] == {(): 0}
    assert found["nsq_pipeline_up"] == {(): 1}
    assert found["nsq_pipeline_problem"] == {(name,): 0 for name in PROBLEMS}
    assert "nsq_pipeline_lag_seconds" not in found


def test_what_a_run_has_seen() -> None:
    run = Run(depth=10)
    run.wrote(0, messages=100, rejected=7)
    run.wrote(1, messages=40, latency=0.4)
    run.wrote(2, messages=60, latency=4.0)
    run.look(25, {"a:4150": 30, "b:4150": None})
    found = values(run)
    assert found["nsq_pipeline_messages_total"] == {("clicks",): 200}
    assert found["nsq_pipeline_rejected_messages_total"] == {("clicks",): 7}
    assert found["nsq_pipeline_batches_total"] == {(): 3}
    assert found["nsq_pipeline_depth_messages"] == {("clicks", "table", "a:4150"): 30}
    assert found["nsq_pipeline_in_flight_messages"] == {("clicks", "table", "a:4150"): 1}
    assert found["nsq_pipeline_nsqd_up"] == {("clicks", "a:4150"): 1, ("clicks", "b:4150"): 0}
    assert found["nsq_pipeline_problem"][("depth",)] == 1
    assert found["nsq_pipeline_last_batch_timestamp_seconds"] == {(): BEGAN + 21}
    buckets = {labels[0]: value for labels, value in found["nsq_pipeline_latency_seconds_bucket"].items()}
    assert (buckets["0.25"], buckets["0.5"], buckets["2.5"], buckets["5.0"], buckets["+Inf"]) == (0, 40, 40, 100, 100)
    assert found["nsq_pipeline_latency_seconds_count"] == {(): 100}
    assert found["nsq_pipeline_latency_seconds_sum"][()] == pytest.approx(40 * 0.4 + 60 * 4, rel=0.03)
