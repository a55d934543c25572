"""Pages for programs that watch a cluster: /metrics for Prometheus, and /healthz.

Both show results of the admin's own polls, so any number of programs causes at most one more round of requests.

All counts have the label ``node``: an nsqd that is restarted counts from 0, which ``rate`` understands, and one that
does not answer has no counts until it does; sums of all nodes would fall in both cases.

=======================================  =======  =====================================================================
nsq_topic_messages_total                 counter  by topic and node, as all of nsq_topic
nsq_topic_depth_messages                 gauge    by storage, too: memory, disk; waiting in the topic itself
nsq_topic_paused                         gauge
nsq_topic_e2e_latency_seconds            summary  by quantile, too, if nsqd measures it
nsq_channel_messages_total               counter  by topic, channel and node, as all of nsq_channel
nsq_channel_depth_messages               gauge    by storage, too: memory, disk
nsq_channel_paused                       gauge
nsq_channel_e2e_latency_seconds          summary  by quantile, too, if nsqd measures it
nsq_channel_in_flight_messages           gauge
nsq_channel_deferred_messages            gauge
nsq_channel_requeued_messages_total      counter
nsq_channel_timed_out_messages_total     counter
nsq_channel_clients                      gauge
nsq_channel_taken_messages_total         counter  by place of the client, too: zone, region, elsewhere; after 1.3.0
nsq_nsqd_up                              gauge    by node, as all of nsq_nsqd: 1 while it answers
nsq_nsqd_healthy                         gauge    0 while it reports an error
nsq_nsqd_start_time_seconds              gauge    as Unix time
nsq_nsqd_info                            gauge    by hostname, version, region and zone, too: 1
nsq_nsqlookupd_up                        gauge    by nsqlookupd: 1 while it answers
nsq_admin_alert                          gauge    by alert, topic, channel and node: 1 while it lasts
nsq_admin_poll_timestamp_seconds         gauge    when the daemons were asked, as Unix time
=======================================  =======  =====================================================================
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from flask import Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from gnsq_like.admin.history.alerts import Alert, of_daemons
from gnsq_like.admin.history.trend import is_peek
from gnsq_like.admin.upstream.overview import Overview
from gnsq_like.admin.web.site import Site
from gnsq_like.admin.web.words import cut
from gnsq_like.cluster.figures import ChannelFigures, TopicFigures

_Figures = TopicFigures | ChannelFigures


class _Quantiles(Metric):
    """A summary without sum and count, which nsqd does not have. In no other type may a label be named quantile."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        super().__init__(name, documentation, "summary")
        self._labels = labels

    def add_metric(self, labels: Sequence[str], value: float) -> None:
        """Add a sample."""
        self.add_sample(self.name, dict(zip(self._labels, labels, strict=True)), value)


_Kind = CounterMetricFamily | GaugeMetricFamily | _Quantiles


@dataclass(frozen=True)
class _Figure:
    """A metric of topics or channels."""

    name: str
    text: str
    kind: type[_Kind]
    #: The numbers of a topic or channel, each with the value of the further label if there is one.
    numbers: Callable[[Any], Iterable[tuple[Any, ...]]]
    label: str = ""


def _number(name: str, text: str, attribute: str, kind: type[_Kind] = GaugeMetricFamily) -> _Figure:
    get = attrgetter(attribute)
    return _Figure(name, text, kind, lambda figures: [(get(figures),)])


def _depths(figures: _Figures) -> Iterable[tuple[str, int]]:
    return ("memory", figures.memory_depth), ("disk", figures.backend_depth)


def _latencies(figures: _Figures) -> Iterable[tuple[str, float]]:
    if not figures.latency.count:
        return ()
    return [(f"{each['quantile']:g}", each["value"] / 1e9) for each in figures.latency.percentiles]


def _taken(channel: ChannelFigures) -> Iterable[tuple[str, int]]:
    if not channel.taken:
        return ()
    counts = channel.zone_local_msg_count, channel.region_local_msg_count, channel.global_msg_count
    return zip(("zone", "region", "elsewhere"), counts, strict=True)


_OF_BOTH = (
    _number("messages", "Messages that it has had.", "message_count", CounterMetricFamily),
    _Figure("depth_messages", "Messages that wait.", GaugeMetricFamily, _depths, "storage"),
    _number("paused", "1 while it is paused.", "paused"),
    _Figure("e2e_latency_seconds", "From publishing to finishing.", _Quantiles, _latencies, "quantile"),
)
_OF_CHANNELS = (
    *_OF_BOTH,
    _number("in_flight_messages", "Messages sent to clients, not answered.", "in_flight_count"),
    _number("deferred_messages", "Messages that wait for their time.", "deferred_count"),
    _number("requeued_messages", "Messages that clients requeued.", "requeue_count", CounterMetricFamily),
    _number(
        "timed_out_messages", "Messages that clients did not answer in time.", "timeout_count", CounterMetricFamily
    ),
    _number("clients", "Clients that are subscribed.", "client_count"),
    _Figure(
        "taken_messages", "Messages taken from memory, by where the client is.", CounterMetricFamily, _taken, "place"
    ),
)


class ClusterCollector:
    """The metrics of one overview, for prometheus-client.

    :param alerts: the present alerts
    """

    def __init__(self, overview: Overview, alerts: Iterable[Alert]) -> None:
        self._overview = overview
        self._alerts = alerts

    def collect(self) -> Iterator[Metric]:
        """The metrics, for prometheus-client."""
        reported = self._overview.reported.items()
        topics = [((topic.topic_name, node), topic) for node, topics in reported for topic in topics]
        for figure in _OF_BOTH:
            yield _family("nsq_topic", ("topic", "node"), figure, topics)
        channels = [
            ((name, channel.channel_name, node), channel)
            for (name, node), topic in topics
            for channel in topic.channels
            if not is_peek(channel.channel_name)
        ]
        for figure in _OF_CHANNELS:
            yield _family("nsq_channel", ("topic", "channel", "node"), figure, channels)
        yield from self._daemons()
        alert = GaugeMetricFamily("nsq_admin_alert", "1 while it lasts.", labels=["alert", "topic", "channel", "node"])
        for each in self._alerts:
            alert.add_metric([each.name, each.topic, each.channel, each.node], 1)
        yield alert
        yield GaugeMetricFamily(
            "nsq_admin_poll_timestamp_seconds", "When the daemons were asked, as Unix time.", self._overview.at
        )

    def _daemons(self) -> Iterator[Metric]:
        overview = self._overview
        # An nsqd may have been given by two names.
        nodes = {total.node.address: total for total in overview.nodes}
        up = GaugeMetricFamily("nsq_nsqd_up", "1 while the nsqd answers.", labels=["node"])
        healthy = GaugeMetricFamily("nsq_nsqd_healthy", "0 while the nsqd reports an error.", labels=["node"])
        start = GaugeMetricFamily("nsq_nsqd_start_time_seconds", "When the nsqd started.", labels=["node"])
        info = GaugeMetricFamily(
            "nsq_nsqd_info", "1, with what the nsqd is.", labels=["node", "hostname", "version", "region", "zone"]
        )
        for address, total in nodes.items():
            node = total.node
            up.add_metric([address], address in overview.reported)
            if address in overview.reported:
                healthy.add_metric([address], total.health in ("OK", ""))
                start.add_metric([address], total.start_time)
                texts = node.hostname, node.version, node.topology_region, node.topology_zone
                info.add_metric([address, *map(cut, texts)], 1)
        yield from (up, healthy, start, info)
        lookupds = GaugeMetricFamily("nsq_nsqlookupd_up", "1 while the nsqlookupd answers.", labels=["nsqlookupd"])
        for address, problem in overview.lookupds.items():
            lookupds.add_metric([address], not problem)
        yield lookupds


def _family(
    prefix: str, labels: tuple[str, ...], figure: _Figure, found: Iterable[tuple[tuple[str, ...], _Figures]]
) -> Metric:
    names = [*labels, figure.label] if figure.label else labels
    family = figure.kind(f"{prefix}_{figure.name}", figure.text, labels=names)
    for values, figures in found:
        for *further, number in figure.numbers(figures):
            family.add_metric([*values, *further], number)
    return family


class Monitoring:
    """The pages for programs of a site."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def metrics(self) -> Response:
        """The request's cluster in Prometheus's text format. May switch, or block."""
        core, shared, overview = self._site.core, self._site.cluster.shared, self._site.look()
        collector = ClusterCollector(overview, self._site.alerts)
        # One for each overview: that of a large cluster takes seconds of CPU time.
        body = core.run(
            lambda: shared.get(("metrics",), lambda: core.compute(_text, collector), time.monotonic() - overview.taken)
        )
        return Response(body, content_type="text/plain; version=0.0.4; charset=utf-8")

    def health(self) -> tuple[Response, int]:
        """Whether all daemons of the request's cluster answer, and which do not. May switch, or block."""
        overview = self._site.look()
        problems = [alert.as_json() for alert in of_daemons(overview)]
        found = {"status": "failing" if problems else "ok", "problems": problems, "updated_at": int(overview.at)}
        return Response(json.dumps(found), content_type="application/json"), 503 if problems else 200


def _text(collector: ClusterCollector) -> bytes:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)
