"""What a run has written, and what waits in nsqd: for its snapshots, and for Prometheus, with the label ``pipeline``.

=========================================  =======  ===============================================================
nsq_pipeline_messages_total                counter  by topic: all since the start of the run
nsq_pipeline_rejected_messages_total       counter  by topic
nsq_pipeline_body_bytes_total              counter
nsq_pipeline_batches_total                 counter
nsq_pipeline_lag_seconds                   gauge    how far the table is behind
nsq_pipeline_depth_messages                gauge    by topic, channel and nsqd: messages that wait
nsq_pipeline_in_flight_messages            gauge    by topic, channel and nsqd
nsq_pipeline_nsqd_up                       gauge    by nsqd: 1 while it answers
nsq_pipeline_last_batch_timestamp_seconds  gauge    when the last batch was written, as Unix time
=========================================  =======  ===============================================================

**Lag** is the age of the newest message in the table as long as others wait. It is 0 whenever nothing waits: after an
hour without messages, the first new one does not make the table an hour late.

The run's thread changes the figures, and replaces each as a whole, because Prometheus is answered by another thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from gnsq_like.addresses import parse_address
from gnsq_like.spark.pipeline.faults import NotBegun
from gnsq_like.spark.pipeline.metrics import MinuteMetrics
from gnsq_like.spark.source.plan import Depth, Queue

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

#: Seconds over which the rate is measured.
_RATE_SPAN = 60.0


class Written(NamedTuple):
    """What was written."""

    #: All messages, and how many of them were rejected.
    messages: int = 0
    rejected: int = 0
    #: Bytes of bodies.
    bytes: int = 0


def _sum(several: Iterable[Written]) -> Written:
    return Written(*map(sum, zip(Written(), *several, strict=True)))


class RunStatus:
    """The figures of a run.

    :param title: the pipeline's name
    :param clock: returns the time of day
    """

    def __init__(self, title: str, clock: Callable[[], float] = time.time) -> None:
        self._title = title
        self._clock = clock
        self.batches = 0
        self._topics: Mapping[str, Written] = {}
        #: When the newest message in the table was published, or else the run began; later, when nothing waited.
        self._newest = clock()
        self._written_at: float | None = None
        #: The last look at the nsqds, and those that did not answer.
        self._depths: Mapping[Queue, Depth] = {}
        self._away: Collection[str] = ()
        #: Times with the messages until then.
        self._past: deque[tuple[float, int]] = deque([(self._newest, 0)])

    def wrote(self, rows: Sequence[MinuteMetrics]) -> None:
        """A batch was written."""
        topics = dict(self._topics)
        for row in rows:
            before = topics.get(row.topic, Written())
            topics[row.topic] = _sum([before, Written(row.messages, row.rejected, row.bytes)])
        self._topics = topics
        self.batches += 1
        self._written_at = rows[0].written_at.timestamp()
        self._newest = max(self._newest, rows[0].seen_at.timestamp() - rows[0].lag)

    def look(self, depths: Mapping[Queue, Depth], away: Collection[str]) -> None:
        """How much waits now.

        :param away: nsqds that do not answer
        """
        self._depths, self._away = depths, away
        if self.depth == 0:
            self._newest = self._clock()

    @property
    def written(self) -> Written:
        """What the run has written."""
        return _sum(self._topics.values())

    @property
    def depth(self) -> int | None:
        """How many messages wait; None if no nsqd answers."""
        return sum(each.messages for each in self._depths.values()) if self._depths else None

    @property
    def lag(self) -> float | None:
        """Seconds by which the table is behind; None if no nsqd answers."""
        depth = self.depth
        return None if depth is None else max(0.0, self._clock() - self._newest) if depth else 0.0

    def rate(self) -> float:
        """Messages a second in the last minute. For the run's thread."""
        now, total = self._clock(), self.written.messages
        if self._past[-1][0] < now:
            self._past.append((now, total))
        while len(self._past) > 2 and self._past[1][0] <= now - _RATE_SPAN:
            self._past.popleft()
        then, before = self._past[0]
        return (total - before) / (now - then) if now > then else 0.0

    def collect(self) -> Iterator[Metric]:
        """The metrics, for prometheus-client."""
        from prometheus_client.metrics_core import CounterMetricFamily as Counter
        from prometheus_client.metrics_core import GaugeMetricFamily as Gauge

        def family(kind: Any, name: str, text: str, labels: Sequence[str], samples: Mapping[Any, float | None]) -> Any:
            made = kind(f"nsq_pipeline_{name}", text, labels=["pipeline", *labels])
            for values, value in samples.items():
                if value is not None:
                    made.add_metric([self._title, *values], value)
            return made

        topics = {(topic,): each for topic, each in self._topics.items()}
        messages, rejected = ({of: getattr(each, name) for of, each in topics.items()} for name in Written._fields[:2])
        yield family(Counter, "messages", "Messages since the start of the run.", ["topic"], messages)
        yield family(Counter, "rejected_messages", "Messages that do not fit.", ["topic"], rejected)
        yield family(Counter, "body_bytes", "Bytes of bodies.", [], {(): self.written.bytes})
        yield family(Counter, "batches", "Batches that were written.", [], {(): self.batches})
        yield family(Gauge, "lag_seconds", "How far the table is behind.", [], {(): self.lag})
        nsqds = {(*queue.of, queue.address): depth for queue, depth in self._depths.items()}
        depths, in_flight = (
            {of: getattr(each, name) for of, each in nsqds.items()} for name in ("messages", "in_flight")
        )
        labels = ["topic", "channel", "nsqd"]
        yield family(Gauge, "depth_messages", "Messages that wait in an nsqd.", labels, depths)
        yield family(Gauge, "in_flight_messages", "Messages in flight of an nsqd.", labels, in_flight)
        up = {(address,): 1 for *_, address in nsqds} | {(address,): 0 for address in self._away}
        yield family(Gauge, "nsqd_up", "1 while an nsqd answers.", ["nsqd"], up)
        last = {(): self._written_at}
        yield family(Gauge, "last_batch_timestamp_seconds", "When the last batch was written.", [], last)


@contextmanager
def served(status: RunStatus, address: str) -> Iterator[str]:
    """Serve a run's metrics during the block, for Prometheus.

    :param address: where to listen, as "host:port"; "" for nowhere
    :returns: where it listens
    :raises NotBegun: the address cannot be used, or prometheus-client is not installed
    """
    if not address:
        yield ""
        return
    wanted = parse_address(address, to_listen=True)
    try:
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(status)
        server, thread = start_http_server(wanted.port, wanted.host or "0.0.0.0", registry)
    except ModuleNotFoundError as exc:
        raise NotBegun("prometheus-client is not installed: install the extra [pipeline]") from exc
    except OSError as exc:
        raise NotBegun(f"cannot serve the pipeline's metrics at {address}: {exc.strerror or exc}") from exc
    try:
        yield str(wanted._replace(port=server.server_port))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
