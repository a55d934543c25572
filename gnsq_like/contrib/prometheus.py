"""What Readers and Producers count, as Prometheus metrics, in one process or in many.

``Metrics`` is a collector of prometheus-client. The handlers' seconds are observed as they happen; everything
else is read from ``stats()``, at each scrape. In prometheus-client's multiprocess mode (the environment's
PROMETHEUS_MULTIPROC_DIR) another process may answer the scrape, so each process also writes what it has every
second, and once more at its exit.

====================================  =========  ==================================================================
nsq_reader_received_messages_total    counter    by topic and channel, as all of nsq_reader
nsq_reader_finished_messages_total    counter
nsq_reader_requeued_messages_total    counter
nsq_reader_failed_messages_total      counter    requeued so that it counts for backoff
nsq_reader_given_up_messages_total    counter    delivered more often than max_attempts
nsq_reader_reconnects_total           counter
nsq_reader_in_flight_messages         gauge
nsq_reader_max_in_flight_messages     gauge
nsq_reader_rdy_messages               gauge      over all connections
nsq_reader_connections                gauge
nsq_reader_backoff_level              gauge      the highest of all processes
nsq_reader_handler_seconds            histogram  of the handlers wrapped by ``timed``
nsq_producer_messages_total           counter    by producer and outcome: confirmed, refused, unknown, not_sent
nsq_producer_retried_messages_total   counter    by producer
nsq_producer_waiting_messages         gauge      by producer: not written yet
nsq_producer_connections              gauge      by producer
====================================  =========  ==================================================================
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gnsq_like import Producer, Reader
from gnsq_like.contrib.shared.extras import missing

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
    from prometheus_client.metrics_core import Metric
    from prometheus_client.multiprocess import MultiProcessCollector
except ModuleNotFoundError as exc:
    raise missing(exc, "prometheus") from exc

#: Seconds; from a cache's answer to nsqd's default msg_timeout.
DEFAULT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: Seconds between two writes in multiprocess mode.
_INTERVAL = 1.0

_READER_LABELS = ("topic", "channel")
_PRODUCER_LABELS = ("producer",)
_COUNTED = ("received", "finished", "requeued", "failed", "given_up")
_OUTCOMES = ("confirmed", "refused", "unknown", "not_sent")


def is_multiprocess() -> bool:
    """Whether prometheus-client is in its multiprocess mode."""
    return "PROMETHEUS_MULTIPROC_DIR" in os.environ


class Metrics:
    """Watches Readers and Producers; registers itself as a collector.

    ::

        metrics = Metrics()
        reader = Reader("clicks", "archive", metrics.timed(handler), ...)
        metrics.watch_reader(reader)
        metrics.watch_producer(producer)

    Made once, before the Readers start; it may be made at import time, and before a fork. From any thread.

    :param registry: where to register; None for nowhere
    :param buckets: upper bounds of the handlers' histogram, in seconds
    """

    def __init__(
        self, registry: CollectorRegistry | None = REGISTRY, buckets: Sequence[float] = DEFAULT_BUCKETS
    ) -> None:
        def counter(name: str, text: str, labels: Iterable[str]) -> Counter:
            return Counter(name, text, labels, registry=None)

        def gauge(name: str, text: str, labels: Iterable[str], mode: Any = "livesum") -> Gauge:
            return Gauge(name, text, labels, registry=None, multiprocess_mode=mode)

        self._counted = {
            name: counter(
                f"nsq_reader_{name}_messages", f"Messages {name.replace('_', ' ')} by the Reader.", _READER_LABELS
            )
            for name in _COUNTED
        }
        self._reconnects = counter("nsq_reader_reconnects", "Times that an nsqd was connected again.", _READER_LABELS)
        self._in_flight = gauge("nsq_reader_in_flight_messages", "Messages received, not answered.", _READER_LABELS)
        self._max_in_flight = gauge("nsq_reader_max_in_flight_messages", "The most in flight.", _READER_LABELS)
        self._rdy = gauge("nsq_reader_rdy_messages", "RDY over all connections.", _READER_LABELS)
        self._connections = gauge("nsq_reader_connections", "nsqds connected.", _READER_LABELS)
        self._backoff = gauge("nsq_reader_backoff_level", "0 while messages flow.", _READER_LABELS, "livemax")
        self._seconds = Histogram(
            "nsq_reader_handler_seconds",
            "Seconds that a handler took, by message or batch.",
            _READER_LABELS,
            registry=None,
            buckets=buckets,
        )
        self._published = counter(
            "nsq_producer_messages", "Messages published, by what became of them.", (*_PRODUCER_LABELS, "outcome")
        )
        self._retried = counter("nsq_producer_retried_messages", "Publishes that were tried again.", _PRODUCER_LABELS)
        self._waiting = gauge("nsq_producer_waiting_messages", "Publishes not written yet.", _PRODUCER_LABELS)
        self._producer_connections = gauge("nsq_producer_connections", "nsqds connected.", _PRODUCER_LABELS)
        self._metrics = [
            *self._counted.values(),
            self._reconnects,
            self._in_flight,
            self._max_in_flight,
            self._rdy,
            self._connections,
            self._backoff,
            self._seconds,
            self._published,
            self._retried,
            self._waiting,
            self._producer_connections,
        ]
        #: What is watched, and what its counters stood at when they were read last.
        self._readers: weakref.WeakKeyDictionary[Reader, dict[str, int]] = weakref.WeakKeyDictionary()
        self._producers: weakref.WeakKeyDictionary[Producer, tuple[str, dict[str, int]]] = weakref.WeakKeyDictionary()
        #: Held while counters are read; nothing inside switches.
        self._lock = threading.Lock()
        #: The process that the last counts are of, and the one that writes every second in multiprocess mode.
        self._counting_pid = os.getpid()
        self._writing_pid = 0
        if registry is not None:
            registry.register(self)

    # -- what is watched ----------------------------------------------------------------------------

    def watch_reader(self, reader: Reader) -> None:
        """Take part in what ``reader`` counts, for as long as it lives."""
        with self._lock:
            self._readers.setdefault(reader, {})
        self.keep_writing()

    def watch_producer(self, producer: Producer, name: str = "default") -> None:
        """Take part in what ``producer`` counts, for as long as it lives; ``name`` is its label.

        In multiprocess mode, and with a producer that was made before a fork, call :meth:`keep_writing` in the child.
        """
        with self._lock:
            self._producers.setdefault(producer, (name, {}))

    def timed(self, handler: Callable[[Any], object]) -> Callable[[Any], object]:
        """``handler``, with its seconds observed; takes messages, or lists of them for a Batch."""

        @functools.wraps(handler)
        def timed_handler(given: Any) -> object:
            message = given[0] if isinstance(given, list) else given
            began = time.perf_counter()
            try:
                return handler(given)
            finally:
                self._seconds.labels(message.topic, message.channel).observe(time.perf_counter() - began)

        return timed_handler

    # -- reading ------------------------------------------------------------------------------------

    def update(self) -> None:
        """Read ``stats()`` of all that is watched. Never switches."""
        with self._lock:
            if self._counting_pid != os.getpid():
                # A forked child counts from 0.
                self._counting_pid = os.getpid()
                for last in (*self._readers.values(), *(last for _, last in self._producers.values())):
                    last.clear()
            self._update_readers()
            self._update_producers()

    def _update_readers(self) -> None:
        gauges: dict[tuple[str, str], list[int]] = {}
        for reader, last in list(self._readers.items()):
            stats = reader.stats()
            labels = (reader.topic, reader.channel)
            for name in _COUNTED:
                self._counted[name].labels(*labels).inc(_advance(last, name, stats[name]))
            self._reconnects.labels(*labels).inc(_advance(last, "reconnects", stats["reconnects"]))
            connections = stats["connections"].values()
            # Two Readers of one channel in a process are one line.
            sums = gauges.setdefault(labels, [0, 0, 0, 0, 0])
            sums[0] += stats["in_flight"]
            sums[1] += stats["max_in_flight"] if stats["state"] == "running" else 0
            sums[2] += sum(connection["rdy"] for connection in connections)
            sums[3] += len(connections)
            sums[4] = max(sums[4], stats["backoff_level"])
        shown = (self._in_flight, self._max_in_flight, self._rdy, self._connections, self._backoff)
        for labels, sums in gauges.items():
            for gauge, value in zip(shown, sums, strict=True):
                gauge.labels(*labels).set(value)

    def _update_producers(self) -> None:
        gauges: dict[str, list[int]] = {}
        for producer, (name, last) in list(self._producers.items()):
            stats = producer.stats()
            for outcome in _OUTCOMES:
                self._published.labels(name, outcome).inc(_advance(last, outcome, stats[outcome]))
            self._retried.labels(name).inc(_advance(last, "retried", stats["retried"]))
            sums = gauges.setdefault(name, [0, 0])
            sums[0] += stats["waiting"]
            sums[1] += sum(connection["connected"] for connection in stats["connections"].values())
        for name, (waiting, connections) in gauges.items():
            self._waiting.labels(name).set(waiting)
            self._producer_connections.labels(name).set(connections)

    def collect(self) -> Iterable[Metric]:
        """For the registry: everything, as it is now."""
        self.update()
        for metric in self._metrics:
            yield from metric.collect()

    def describe(self) -> Iterable[Metric]:
        """For the registry: the names."""
        for metric in self._metrics:
            yield from metric.describe()

    # -- multiprocess mode --------------------------------------------------------------------------

    def keep_writing(self) -> None:
        """In multiprocess mode: see to it that this process writes every second; elsewhere nothing. Cheap."""
        if self._writing_pid == os.getpid() or not is_multiprocess():
            return
        self._writing_pid = os.getpid()
        threading.Thread(target=self._write, name="gnsq_like metrics", daemon=True).start()
        atexit.register(self.update)

    def _write(self) -> None:
        while True:
            time.sleep(_INTERVAL)
            self.update()

    def wsgi_app(self) -> Callable[[Mapping[str, Any], Any], Iterable[bytes]]:
        """A WSGI application for Prometheus to scrape: of all processes in multiprocess mode, else of this one."""
        return _Exposition(self)


class _Exposition:
    """Chooses at each request: whether the mode is multiprocess is the environment's to say, maybe later."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __call__(self, environ: Mapping[str, Any], start_response: Any) -> Iterable[bytes]:
        registry = CollectorRegistry()
        if is_multiprocess():
            self._metrics.update()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        else:
            registry.register(self._metrics)
        answer: Iterable[bytes] = make_wsgi_app(registry)(environ, start_response)
        return answer


def _advance(last: dict[str, int], name: str, now: int) -> int:
    """How much a count has grown since the last time; what fell counts from 0 again, as a Producer behind a fork."""
    before = last.get(name, 0)
    last[name] = now
    return now - before if now >= before else now
