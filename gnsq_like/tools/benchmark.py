"""How fast a cluster is, from here: ``gnsq-like bench``.

Each stage works on a topic that is made for it, on all nsqds, and deleted in the end. This process is part of what is
measured; where it uses a whole core, the cluster may be faster than the figures.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gevent
from gevent.event import AsyncResult, Event

from gnsq_like import LookupdClient, Message, NsqdHTTPClient, Producer, Reader
from gnsq_like.errors import HTTPStatusError, NSQError
from gnsq_like.quantiles import Buckets
from gnsq_like.tools.daemons import Daemons
from gnsq_like.tools.sources import Unreachable

STAGES = ("publish", "consume", "end to end")
CHANNEL = "bench"
#: The least size of a body, which holds the numbers of greenlet and message.
LEAST_BYTES = 24
#: From a microsecond on, to a percent.
_BUCKETS = Buckets(1.02, 1e-6)
_STOP_TIMEOUT = 5.0
#: Seconds for which nsqlookupds may still know nsqds that have deleted the topic, and between two looks.
_FORGET_SECONDS, _LOOK_SECONDS = 5.0, 0.05


class TopicExists(NSQError):
    """The topic is not the benchmark's own.

    :ivar topic: its name
    """

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"topic {self.topic} exists; a benchmark deletes its topic, so it needs one of its own"


class NoNsqd(NSQError):
    """There is nothing to measure."""


@dataclass(frozen=True)
class Load:
    """What each stage does.

    :ivar size: bytes of a body, LEAST_BYTES at least
    :ivar duration: seconds of a stage; consuming ends earlier, when all has been consumed
    :ivar greenlets: messages that are on their way at once
    :ivar batching: whether concurrent publishes share a command
    """

    size: int = 200
    duration: float = 5.0
    greenlets: int = 50
    max_in_flight: int = 1000
    batching: bool = False


@dataclass
class Measured:
    """A stage's result."""

    stage: str
    size: int
    messages: int = 0
    seconds: float = 0.0
    #: The longest latency in seconds.
    longest: float = 0.0
    counts: Counter[int] = field(default_factory=Counter)

    def add(self, latency: float) -> None:
        """A message took so long. Never switches."""
        self.messages += 1
        self.counts[_BUCKETS.index(latency)] += 1
        self.longest = max(self.longest, latency)

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds if self.seconds else 0.0

    def quantile(self, share: float) -> float | None:
        """Latency in seconds, to a percent; None if this stage has none."""
        return min(_BUCKETS.quantile(self.counts, share), self.longest) if self.counts else None


def bench(
    daemons: Daemons,
    load: Load,
    stages: Sequence[str] = STAGES,
    *,
    topic: str | None = None,
    options: Mapping[str, Any] | None = None,
    on_begin: Callable[[str], object] = lambda stage: None,
) -> Generator[Measured, None, None]:
    """Carry out stages, and give the result of each. May switch. The topic is deleted when the iterator is closed.

    - "publish": ``greenlets`` publish one message after the other; the latency is that of nsqd's confirmation.
    - "consume": a Reader finishes what was published. Without "publish" before it, that is published untimed.
    - "end to end": ``greenlets`` publish a message, and the next one when that has come to a Reader; the latency is
      that from the call of publish to the call of the handler.

    :param topic: None for a name that nobody has
    :param options: of connections, see :class:`gnsq_like.options.ConnectionOptions`
    :raises TopicExists: a daemon has the topic
    :raises Unreachable: a daemon does not answer
    :raises NoNsqd: nsqlookupds know none
    :raises NSQError: what was published could not be confirmed, a Reader gave up, or the topic could not be deleted
    """
    topic = topic or f"gnsq-like-bench-{secrets.token_hex(4)}"
    with _own_topic(daemons, topic) as addresses:
        run = _Run(topic, addresses, load, dict(options or {}))
        for stage in STAGES:
            if stage in stages:
                on_begin(stage)
                yield getattr(run, stage.replace(" ", "_"))()


@contextmanager
def _own_topic(daemons: Daemons, topic: str) -> Iterator[list[str]]:
    """A new topic with a channel on all nsqds; their TCP addresses."""
    nodes = daemons.nodes()
    known = daemons.ask_lookupds(LookupdClient.topics)
    existing = {name for node in nodes.answers.values() for name in node.topics}
    if topic in existing.union(*known.answers.values()):
        raise TopicExists(topic)
    if nodes.failures or known.failures:  # the topic may be there
        raise Unreachable({**nodes.failures, **known.failures})
    if not nodes.answers:
        raise NoNsqd("the nsqlookupds know no nsqd")

    def make(client: NsqdHTTPClient) -> None:
        client.create_topic(topic)
        client.create_channel(topic, CHANNEL)

    try:
        made = daemons.ask_nsqds(nodes.answers, make)
        for error in made.failures.values():
            raise error
        yield [node.tcp_address for node in nodes.answers.values()]
    finally:
        _delete(daemons, [*nodes.answers], topic)


def _delete(daemons: Daemons, addresses: list[str], topic: str) -> None:
    """Delete the topic from nsqds, and then from nsqlookupds: an nsqd that still has it would register it again."""
    failures = daemons.ask_nsqds(addresses, lambda client: client.delete_topic(topic)).without("TOPIC_NOT_FOUND")
    deadline = time.monotonic() + _FORGET_SECONDS

    def forget(client: LookupdClient) -> None:
        while client.lookup(topic, missing_ok=True).producers and time.monotonic() < deadline:
            gevent.sleep(_LOOK_SECONDS)
        client.delete_topic(topic)

    forgotten = daemons.ask_lookupds(forget)
    for error in (*failures.failures.values(), *forgotten.failures.values()):
        if not isinstance(error, HTTPStatusError) or error.status != 404:
            raise error


class _Run:
    """The stages on one topic."""

    def __init__(self, topic: str, addresses: list[str], load: Load, options: dict[str, Any]) -> None:
        self._topic = topic
        self._addresses = addresses
        self._load = load
        self._options = options
        #: Messages in the channel.
        self._waiting = 0

    def publish(self) -> Measured:
        measured = Measured("publish", self._load.size)
        with self._producer() as producer:

            def work(number: int, is_over: Callable[[], bool]) -> None:
                body = self._body(number, 0)
                while not is_over():
                    start = time.monotonic()
                    producer.publish(self._topic, body)
                    measured.add(time.monotonic() - start)

            self._all(work, measured)
        self._waiting += measured.messages
        return measured

    def consume(self) -> Measured:
        if not self._waiting:
            self.publish()
        measured = Measured("consume", self._load.size)
        first, done = Event(), Event()
        began = 0.0

        def handler(message: Message) -> None:
            nonlocal began
            measured.messages += 1
            if measured.messages == 1:
                began = time.monotonic()
                first.set()
            if measured.messages == self._waiting:
                done.set()

        with self._reader(handler) as reader:
            ended = gevent.spawn(reader.wait)
            gevent.wait([first, ended], count=1)  # connecting is not measured
            gevent.wait([done, ended], timeout=self._load.duration, count=1)
            measured.seconds = time.monotonic() - began if measured.messages else 0.0
            ended.kill()
            if reader.error is not None:
                raise reader.error
        self._waiting = max(0, self._waiting - measured.messages)
        return measured

    def end_to_end(self) -> Measured:
        measured = Measured("end to end", self._load.size)
        coming: dict[bytes, tuple[float, AsyncResult]] = {}

        def handler(message: Message) -> None:
            expected = coming.pop(message.body, None)
            if expected is not None:  # not one of another stage, nor a second delivery
                start, came = expected
                measured.add(time.monotonic() - start)
                came.set()

        with self._reader(handler) as reader, self._producer() as producer:
            ended = gevent.spawn(reader.wait)

            def work(number: int, is_over: Callable[[], bool]) -> None:
                for count in itertools.count(1):
                    if is_over():
                        return
                    body, came = self._body(number, count), AsyncResult()
                    coming[body] = time.monotonic(), came
                    producer.publish(self._topic, body)
                    gevent.wait([came, ended], count=1)
                    if reader.error is not None:
                        raise reader.error

            self._all(work, measured)
            ended.kill()
        return measured

    def _all(self, work: Callable[[int, Callable[[], bool]], None], measured: Measured) -> None:
        """Run the greenlets until the time is over, or until one fails."""
        start = time.monotonic()
        until = start + self._load.duration
        errors: list[NSQError] = []

        def guarded(number: int) -> None:
            try:
                work(number, lambda: bool(errors) or time.monotonic() >= until)
            except NSQError as exc:
                errors.append(exc)

        greenlets = [gevent.spawn(guarded, number) for number in range(self._load.greenlets)]
        try:
            gevent.joinall(greenlets)
        finally:
            gevent.killall(greenlets)
        measured.seconds = time.monotonic() - start
        for error in errors:
            raise error

    def _body(self, greenlet: int, count: int) -> bytes:
        return (b"%d %d " % (greenlet, count)).ljust(self._load.size, b".")

    @contextmanager
    def _producer(self) -> Iterator[Producer]:
        producer = Producer(self._addresses, own_thread=False, **{**self._options, "batching": self._load.batching})
        try:
            yield producer
        finally:
            producer.close(_STOP_TIMEOUT)

    @contextmanager
    def _reader(self, handler: Callable[[Message], object]) -> Iterator[Reader]:
        most = self._load.max_in_flight
        options = {**self._options, "max_in_flight": most, "max_attempts": 0}
        reader = Reader(self._topic, CHANNEL, handler, nsqd_tcp_addresses=self._addresses, **options)
        reader.start()
        try:
            yield reader
        finally:
            reader.stop(_STOP_TIMEOUT)
