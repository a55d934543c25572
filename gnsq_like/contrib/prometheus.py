"""The counts of Readers and Producers as Prometheus metrics, in one process or in many.

``Metrics`` is a collector of prometheus-client. Durations of handler calls are put into their histogram some hundred at
a time, and before each scrape; all other metrics are read from ``stats()`` then. In prometheus-client's multiprocess
mode (PROMETHEUS_MULTIPROC_DIR in the environment) another process may answer the scrape, so each process also writes
its metrics every second, and once more at its exit.

====================================  =========  ==================================================================
nsq_reader_received_messages_total    counter    by topic and channel, as all of nsq_reader
nsq_reader_finished_messages_total    counter
nsq_reader_requeued_messages_total    counter
nsq_reader_failed_messages_total      counter    failed, so that it counts for backoff
nsq_reader_given_up_messages_total    counter    failed in all max_attempts
nsq_reader_expired_messages_total     counter    older than max_age
nsq_reader_lost_messages_total        counter    not answered; nsqd delivers them again
nsq_reader_reconnects_total           counter
nsq_reader_in_flight_messages         gauge
nsq_reader_max_in_flight_messages     gauge
nsq_reader_rdy_messages               gauge      over all connections
nsq_reader_connections                gauge
nsq_reader_paused                     gauge      how many Readers are paused
nsq_reader_backoff_level              gauge      the highest of all processes
nsq_reader_handler_seconds            histogram  of the handlers wrapped by ``timed``
nsq_producer_messages_total           counter    by producer and outcome: confirmed, refused, unknown, not_sent
nsq_producer_retried_messages_total   counter    by producer
nsq_producer_waiting_messages         gauge      by producer: not written yet
nsq_producer_connections              gauge      by producer
nsq_producer_away                     gauge      by producer: 1 while publishes fail at once
nsq_outbox_published_messages_total   counter    by outbox: messages that a relay has published
nsq_outbox_refused_messages_total     counter    by outbox: times that nsqd refused one
nsq_outbox_waiting_messages           gauge      by outbox: not published; of its table, whoever wrote them
nsq_outbox_lag_seconds                gauge      by outbox: for how long the oldest of them has been due
====================================  =========  ==================================================================
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from gnsq_like import Batch, Producer, Reader
from gnsq_like.contrib.shared.extras import missing
from gnsq_like.errors import InvalidOption

if TYPE_CHECKING:
    from gnsq_like.contrib.shared.outbox.relay import Relay

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
    from prometheus_client.metrics_core import Metric

    from gnsq_like.workers.metric_files import WorkerFiles
except ModuleNotFoundError as exc:
    raise missing(exc, "prometheus") from exc

_T = TypeVar("_T")

#: Seconds; from the time a cache takes to nsqd's default msg_timeout.
DEFAULT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: Seconds between two writes in multiprocess mode.
_INTERVAL = 1.0

#: By the names of stats(): the metric and its text.
_READER_COUNTERS = {
    "received": ("received_messages", "Messages received by the Reader."),
    "finished": ("finished_messages", "Messages finished by the Reader."),
    "requeued": ("requeued_messages", "Messages requeued by the Reader."),
    "failed": ("failed_messages", "Messages failed by the Reader."),
    "given_up": ("given_up_messages", "Messages given up by the Reader."),
    "expired": ("expired_messages", "Messages too old to be handled by the Reader."),
    "lost": ("lost_messages", "Messages not answered before their connection was lost or their time was over."),
    "reconnects": ("reconnects", "Times that an nsqd was connected again."),
}
#: Of those with the same metric, the name is its label ``outcome``.
_PRODUCER_COUNTERS = {
    **dict.fromkeys(("confirmed", "refused", "unknown", "not_sent"), ("messages", "Messages published, by outcome.")),
    "retried": ("retried_messages", "Publishes that were tried again."),
}
_RELAY_COUNTERS = {
    "published": ("published_messages", "Messages of the outbox that a relay has published."),
    "refused": ("refused_messages", "Times that nsqd refused a message of the outbox."),
}
#: How the gauges of those with the same labels are combined, in one process and over all.
_Mode = Literal["livesum", "livemax"]
#: The metric, its text, and the mode.
_Gauges = Mapping[str, tuple[str, str, _Mode]]
_READER_GAUGES: _Gauges = {
    "in_flight": ("in_flight_messages", "Messages received, not answered.", "livesum"),
    "max_in_flight": ("max_in_flight_messages", "The most in flight.", "livesum"),
    "rdy": ("rdy_messages", "RDY over all connections.", "livesum"),
    "connections": ("connections", "nsqds connected.", "livesum"),
    "paused": ("paused", "Readers that are paused.", "livesum"),
    "backoff_level": ("backoff_level", "0 while messages flow.", "livemax"),
}
_PRODUCER_GAUGES: _Gauges = {
    "waiting": ("waiting_messages", "Publishes not written yet.", "livesum"),
    "connections": ("connections", "nsqds connected.", "livesum"),
    "away": ("away", "Producers whose publishes fail at once, because every nsqd is unreachable.", "livesum"),
}
#: All relays of an outbox see the same table.
_RELAY_GAUGES: _Gauges = {
    "waiting": ("waiting_messages", "Messages of the outbox that are due and not published.", "livemax"),
    "lag_seconds": ("lag_seconds", "Seconds for which the oldest of them has been due.", "livemax"),
}
#: Handler calls that are put into the histogram together, unless a scrape or a write comes before. [One by one, they
#: cost several times what an empty handler does.]
_MOST_CALLS = 500


def is_multiprocess() -> bool:
    """Whether prometheus-client is in its multiprocess mode."""
    return "PROMETHEUS_MULTIPROC_DIR" in os.environ


class _Seconds(Histogram):
    """A histogram that many observations can be put into at once."""

    def observe_all(self, amounts: list[float]) -> None:
        """As ``observe`` for each; sorts them."""
        self._sum.inc(sum(amounts))
        amounts.sort()
        before = 0
        for bound, bucket in zip(self._upper_bounds, self._buckets, strict=True):
            upto = bisect_right(amounts, bound)
            if upto > before:
                bucket.inc(upto - before)
            before = upto


class _Watched(Protocol):
    """A watched Reader, Producer or relay."""

    def stats(self) -> Mapping[str, Any]: ...


class _Family:
    """The metrics of all watched objects of one kind.

    :param read: the gauges' values from stats()
    """

    def __init__(
        self,
        kind: str,
        labels: Sequence[str],
        counters: Mapping[str, tuple[str, str]],
        gauges: _Gauges,
        read: Callable[[Mapping[str, Any]], Mapping[str, float]],
    ) -> None:
        metrics = [metric for metric, _ in counters.values()]
        made = {
            metric: Counter(
                f"nsq_{kind}_{metric}",
                text,
                (*labels, "outcome") if metrics.count(metric) > 1 else labels,
                registry=None,
            )
            for metric, text in counters.values()
        }
        #: By the names of stats(), with the value of the additional label.
        self._counters = {
            name: (made[metric], (name,) if metrics.count(metric) > 1 else ()) for name, (metric, _) in counters.items()
        }
        self._modes = {name: mode for name, (_, _, mode) in gauges.items()}
        self._gauges = {
            name: Gauge(f"nsq_{kind}_{metric}", text, labels, registry=None, multiprocess_mode=mode)
            for name, (metric, text, mode) in gauges.items()
        }
        self._read = read
        #: The watched objects, with their labels, and their counters at the last reading.
        self._watched: weakref.WeakKeyDictionary[_Watched, tuple[tuple[str, ...], dict[str, int]]] = (
            weakref.WeakKeyDictionary()
        )

    def watch(self, one: _Watched, *labels: str) -> None:
        """Include its counts as long as it exists."""
        self._watched.setdefault(one, (labels, {}))
        for counter, more in self._counters.values():
            _begin(counter, *labels, *more)

    def begin_anew(self) -> None:
        """In a forked child, which counts from 0."""
        for _, last in self._watched.values():
            last.clear()

    def update(self) -> None:
        """Read ``stats()`` of all. Never switches."""
        # Objects with the same labels share a series.
        totals: dict[tuple[str, ...], dict[str, float]] = {}
        for one, (labels, last) in list(self._watched.items()):
            stats = one.stats()
            for name, (counter, more) in self._counters.items():
                counter.labels(*labels, *more).inc(_advance(last, name, stats[name]))
            found, total = self._read(stats), totals.setdefault(labels, {})
            for name, mode in self._modes.items():
                before = total.get(name, 0)
                total[name] = before + found[name] if mode == "livesum" else max(before, found[name])
        for labels, total in totals.items():
            for name, gauge in self._gauges.items():
                gauge.labels(*labels).set(total[name])

    def metrics(self) -> Iterable[Counter | Gauge]:
        """Each once."""
        return dict.fromkeys((*(counter for counter, _ in self._counters.values()), *self._gauges.values()))


def _gauges_of_reader(stats: Mapping[str, Any]) -> dict[str, float]:
    connections = stats["connections"].values()
    return {
        "in_flight": stats["in_flight"],
        "max_in_flight": stats["max_in_flight"] if stats["state"] == "running" else 0,
        "rdy": sum(connection["rdy"] for connection in connections),
        "connections": len(connections),
        "paused": stats["paused"],
        "backoff_level": stats["backoff_level"],
    }


def _gauges_of_producer(stats: Mapping[str, Any]) -> dict[str, float]:
    return {
        "waiting": stats["waiting"],
        "away": stats["away"] is not None,
        "connections": sum(connection["connected"] for connection in stats["connections"].values()),
    }


class Metrics:
    """Watches Readers and Producers; registers itself as a collector.

    ::

        metrics = Metrics()
        reader = Reader("clicks", "archive", metrics.timed(handler), ...)
        metrics.watch_reader(reader)
        metrics.watch_producer(producer)

    Make it once, before the Readers start; at import time or before a fork is fine. Use it from any thread.

    :param registry: the registry to register with; None for none
    :param buckets: upper bounds of the handlers' histogram, in seconds
    """

    def __init__(
        self, registry: CollectorRegistry | None = REGISTRY, buckets: Sequence[float] = DEFAULT_BUCKETS
    ) -> None:
        by_channel = ("topic", "channel")
        self._readers = _Family("reader", by_channel, _READER_COUNTERS, _READER_GAUGES, _gauges_of_reader)
        self._producers = _Family("producer", ("producer",), _PRODUCER_COUNTERS, _PRODUCER_GAUGES, _gauges_of_producer)
        self._relays = _Family("outbox", ("outbox",), _RELAY_COUNTERS, _RELAY_GAUGES, lambda stats: stats)
        self._seconds = _Seconds(
            "nsq_reader_handler_seconds",
            "Seconds that a handler took, by message or batch.",
            by_channel,
            registry=None,
            buckets=buckets,
        )
        #: Held while counters are read; nothing inside switches.
        self._lock = threading.Lock()
        #: Seconds of the handler calls that are not in the histogram yet, by topic and channel.
        self._calls: dict[tuple[str, str], deque[float]] = {}
        self._observing = threading.Lock()
        #: The process of the last counts, and the one that writes every second in multiprocess mode.
        self._counting_pid = os.getpid()
        self._writing_pid = 0
        if registry is not None:
            registry.register(self)
        forked = weakref.WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: (method := forked()) and method())

    def _forked(self) -> None:
        """In a forked child: drop the parent's calls, and the lock, which another thread may have held."""
        for ended in self._calls.values():
            ended.clear()
        self._observing = threading.Lock()

    # -- watching -----------------------------------------------------------------------------------

    def watch_reader(self, reader: Reader) -> None:
        """Include the counts of ``reader`` as long as it exists."""
        with self._lock:
            self._readers.watch(reader, reader.topic, reader.channel)
        _begin(self._seconds, reader.topic, reader.channel)
        self.keep_writing()

    def watch_producer(self, producer: Producer, name: str = "default") -> None:
        """Include the counts of ``producer`` as long as it exists; ``name`` is its label.

        In multiprocess mode, with a producer that was made before a fork, call :meth:`keep_writing` in the child.
        """
        with self._lock:
            self._producers.watch(producer, name)

    def watch_relay(self, relay: Relay) -> None:
        """Include the counts of an outbox's ``relay`` as long as it exists; its name is the label."""
        with self._lock:
            self._relays.watch(relay, relay.name)
        self.keep_writing()

    def timed(self, handler: Callable[[Any], _T]) -> Callable[[Any], _T]:
        """``handler`` with the seconds of its calls observed; takes messages, or lists of them for a Batch."""
        if not callable(handler):
            raise InvalidOption("handler", handler, "it must be callable")

        return self._timed(handler, None)

    def time_reader(self, reader: Reader) -> None:
        """Replace the handler of ``reader``, which does not run, by its :meth:`timed` form."""
        handler, ended = reader.handler, self._ended((reader.topic, reader.channel))
        if isinstance(handler, Batch):
            reader.handler = Batch(self._timed(handler.handler, ended), size=handler.size, interval=handler.interval)
        elif handler is not None:
            reader.handler = self._timed(handler, ended)

    def _timed(self, handler: Callable[[Any], _T], ended: deque[float] | None) -> Callable[[Any], _T]:
        """:param ended: where the seconds go; None for that of each message's topic and channel"""

        @functools.wraps(handler)
        def timed_handler(given: Any) -> _T:
            message = given[0] if ended is None and isinstance(given, list) else given
            began = time.perf_counter()
            try:
                return handler(given)
            finally:
                into = self._ended((message.topic, message.channel)) if ended is None else ended
                into.append(time.perf_counter() - began)
                if len(into) >= _MOST_CALLS:
                    self._observe()

        return timed_handler

    def _ended(self, labels: tuple[str, str]) -> deque[float]:
        return self._calls.get(labels) or self._calls.setdefault(labels, deque())

    def _observe(self) -> None:
        """Put the handler calls that have ended into the histogram. Never switches."""
        if not self._observing.acquire(blocking=False):
            return  # another thread does
        try:
            for labels, ended in list(self._calls.items()):
                if ended:
                    # Other threads may add some meanwhile.
                    self._seconds.labels(*labels).observe_all([ended.popleft() for _ in range(len(ended))])
        finally:
            self._observing.release()

    # -- reading ------------------------------------------------------------------------------------

    def update(self) -> None:
        """Read ``stats()`` of all Readers and Producers. Never switches."""
        with self._lock:
            if self._counting_pid != os.getpid():
                # A forked child counts from 0.
                self._counting_pid = os.getpid()
                for family in self._families():
                    family.begin_anew()
            self._observe()
            for family in self._families():
                family.update()

    def collect(self) -> Iterable[Metric]:
        """For the registry: all current values."""
        self.update()
        for metric in self._metrics():
            yield from metric.collect()

    def describe(self) -> Iterable[Metric]:
        """For the registry: the names."""
        for metric in self._metrics():
            yield from metric.describe()

    def _families(self) -> tuple[_Family, ...]:
        return self._readers, self._producers, self._relays

    def _metrics(self) -> Iterable[Counter | Gauge | Histogram]:
        yield self._seconds
        for family in self._families():
            yield from family.metrics()

    # -- multiprocess mode --------------------------------------------------------------------------

    def keep_writing(self) -> None:
        """In multiprocess mode: make sure that this process writes every second; otherwise do nothing. Cheap."""
        if self._writing_pid == os.getpid() or not is_multiprocess():
            return
        with self._lock:
            already, self._writing_pid = self._writing_pid, os.getpid()
        if already == self._writing_pid:
            return  # another thread was first
        threading.Thread(target=self._write, name="gnsq_like metrics", daemon=True).start()
        atexit.register(self.update)

    def _write(self) -> None:
        while True:
            time.sleep(_INTERVAL)
            self.update()

    def wsgi_app(self) -> WSGIApplication:
        """A WSGI application for Prometheus: metrics of all processes in multiprocess mode, otherwise of this one."""
        return _Exposition(self)


class _Exposition:
    """Chooses the mode at each request, because the environment may be set later."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        registry = CollectorRegistry()
        if is_multiprocess():
            self._metrics.update()
            WorkerFiles(registry)
        else:
            registry.register(self._metrics)
        answer: Iterable[bytes] = make_wsgi_app(registry)(environ, start_response)
        return answer


def _begin(metric: Counter | Histogram, *labels: str) -> None:
    """Create a series now, not at the first scrape: its ``_created`` is the time at which it was 0.

    In multiprocess mode there is no ``_created``, and a process that only forks others must write no files.
    """
    if not is_multiprocess():
        metric.labels(*labels)


def _advance(last: dict[str, int], name: str, now: int) -> int:
    """The growth of a count since the last call; if it fell, as after a fork, it restarted at 0."""
    before = last.get(name, 0)
    last[name] = now
    return now - before if now >= before else now
