"""The status of a run as metrics for Prometheus; all have the label ``pipeline``.

=========================================  =========  =============================================================
nsq_pipeline_messages_total                counter    by topic: all since the start of the run
nsq_pipeline_rejected_messages_total       counter    by topic
nsq_pipeline_body_bytes_total              counter
nsq_pipeline_batches_total                 counter
nsq_pipeline_latency_seconds               histogram  from publish to arrival, without those before the first batch
nsq_pipeline_lag_seconds                   gauge      how far the table is behind
nsq_pipeline_depth_messages                gauge      by topic, channel and nsqd: messages that wait
nsq_pipeline_in_flight_messages            gauge      by topic, channel and nsqd
nsq_pipeline_nsqd_up                       gauge      by topic and nsqd: 1 while it answers
nsq_pipeline_last_batch_timestamp_seconds  gauge      when the last batch was written, as Unix time
nsq_pipeline_start_time_seconds            gauge      when the run began, as Unix time
nsq_pipeline_problem                       gauge      by problem: 1 while it lasts
nsq_pipeline_up                            gauge      1 while the run runs, 0 while Spark starts and after the end
=========================================  =========  =============================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gnsq_like.spark.pipeline.metrics import CLASSES

_BY_TOPIC = {
    "messages": ("messages", "Messages since the start of the run."),
    "rejected": ("rejected_messages", "Messages that do not fit."),
}
_COUNTERS = {
    "bytes": ("body_bytes", "Bytes of bodies."),
    "batches": ("batches", "Batches that were written."),
}
#: Upper bounds of the histogram, in seconds.
_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
#: Problems that the metric has from the beginning, so that an increase from 0 is seen.
PROBLEMS = ("lag", "depth", "rejected", "nothing_came", "no_nsqd", "failed")


def metrics_page(status: Mapping[str, Any]) -> bytes:
    """A status in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(StatusCollector(status))
    return generate_latest(registry)


class StatusCollector:
    """The metrics of one status."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """The metrics, for prometheus-client."""
        status, pipeline = self._status, [self._status["pipeline"]]
        for key, (name, text) in _BY_TOPIC.items():
            counter = CounterMetricFamily(f"nsq_pipeline_{name}", text, labels=["pipeline", "topic"])
            for topic in status["topics"]:
                counter.add_metric([*pipeline, topic["topic"]], topic[key])
            yield counter
        for key, (name, text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"nsq_pipeline_{name}", text, labels=["pipeline"])
            counter.add_metric(pipeline, status[key])
            yield counter
        yield _histogram(pipeline, status["latencies"])
        last = status["last_batch"]
        for name, text, value in (
            ("lag_seconds", "How far the table is behind.", status["lag"]),
            ("last_batch_timestamp_seconds", "When the last batch was written.", last and last["written_at"]),
            ("start_time_seconds", "When the run began.", status["started_at"]),
            ("up", "1 while the run runs.", int(status["state"] == "running")),
        ):
            gauge = GaugeMetricFamily(f"nsq_pipeline_{name}", text, labels=["pipeline"])
            if value is not None:
                gauge.add_metric(pipeline, value)
            yield gauge
        yield from self._nsqds(pipeline)
        problem = GaugeMetricFamily("nsq_pipeline_problem", "1 while it lasts.", labels=["pipeline", "problem"])
        wrong = {each["name"] for each in status["problems"]}
        for name in PROBLEMS:
            problem.add_metric([*pipeline, name], int(name in wrong))
        yield problem

    def _nsqds(self, pipeline: list[str]) -> Iterator[Metric]:
        labels = ["pipeline", "topic", "channel", "nsqd"]
        found = [(topic, nsqd) for topic in self._status["topics"] for nsqd in topic["nsqds"]]
        for key, name, text in (
            ("depth", "depth_messages", "Messages that wait in an nsqd."),
            ("in_flight", "in_flight_messages", "Messages in flight of an nsqd."),
        ):
            gauge = GaugeMetricFamily(f"nsq_pipeline_{name}", text, labels=labels)
            for topic, nsqd in found:
                if nsqd[key] is not None:
                    gauge.add_metric([*pipeline, topic["topic"], topic["channel"], nsqd["address"]], nsqd[key])
            yield gauge
        up = GaugeMetricFamily("nsq_pipeline_nsqd_up", "1 while an nsqd answers.", labels=["pipeline", "topic", "nsqd"])
        for topic, nsqd in found:
            up.add_metric([*pipeline, topic["topic"], nsqd["address"]], int(nsqd["away_since"] is None))
        yield up


def _histogram(pipeline: Iterable[str], latencies: Mapping[int, int]) -> HistogramMetricFamily:
    text = "From publish to arrival, without messages from before the first batch was done."
    family = HistogramMetricFamily("nsq_pipeline_latency_seconds", text, labels=["pipeline"])
    middles = sorted((CLASSES.middle(index), count) for index, count in latencies.items())
    buckets = [(str(bound), sum(count for middle, count in middles if middle <= bound)) for bound in _BOUNDS]
    buckets.append(("+Inf", sum(count for _, count in middles)))
    family.add_metric(list(pipeline), buckets, sum(middle * count for middle, count in middles))
    return family
