"""nsqd and nsqlookupd in virtual time, for a fleet of consumers: see docs/internals 1.12, 1.13 and 4.

An `Nsqd` has one channel for all of its consumers. A `Consumer` is what it has of one of them: RDY, in flight and the
output buffer, with the methods of `tests.support.virtual_nsqd.Nsqd`, which has one consumer only.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable

import gevent

from gnsq_like.addresses import Address, parse_address
from gnsq_like.errors import HTTPRequestFailed
from gnsq_like.http.nsqlookupd import NsqdNode
from tests.support.virtual_nsqd import Clock, Message

#: Messages that fit into nsqd's output buffer of 16 KiB.
_BUFFER_COUNT = 122
#: Seconds between two flushes by nsqd's ticker: what a Reader asks for (output_buffer_timeout).
_TICKER = 0.025
#: Seconds between two pings of an nsqd to its nsqlookupds; a lost connection is made again with the next.
PING = 15.0


class Consumer:
    """A connection, on nsqd's side."""

    msg_timeout = None
    buffer_timeout = _TICKER

    def __init__(self, nsqd: Nsqd, phase: float) -> None:
        self.nsqd = nsqd
        self.name = nsqd.name
        self.rdy = 0
        self.in_flight: dict[Message, None] = {}
        self.deliver: Callable[[list[Message]], object] | None = None
        self._closing = False
        self._buffer: list[Message] = []
        self._phase = phase
        self._flush_due = False

    @property
    def has_room(self) -> bool:
        return len(self.in_flight) < self.rdy and self.deliver is not None

    def set_rdy(self, rdy: int) -> None:
        self.nsqd.rdy_count += 1
        self.rdy = 0 if self._closing else rdy
        self._look_again()

    def finish(self, messages: list[Message]) -> None:
        for message in messages:
            if message in self.in_flight:
                del self.in_flight[message]
                self.nsqd.finished_count += 1
        self._look_again()

    def requeue(self, message: Message, delay: float) -> None:
        if message in self.in_flight:
            del self.in_flight[message]
            self.nsqd.clock.after(delay, lambda: self.nsqd.put(message))
        self._look_again()

    def close_wait(self) -> None:
        self._closing = True
        self.set_rdy(0)

    def disconnect(self) -> None:
        self.deliver = None
        left, self.in_flight, self._buffer = list(self.in_flight), {}, []
        self.nsqd.remove(self)
        for message in left:
            self.nsqd.put(message)

    def _look_again(self) -> None:
        """Its goroutine selects anew, and so waits for a message behind the others."""
        self.nsqd.enqueue(self)
        if not self.has_room:
            self._flush()

    def send(self, message: Message) -> None:
        message.attempts += 1
        message.delivered_at = self.nsqd.clock.now
        message.answered = False
        self.in_flight[message] = None
        self._buffer.append(message)
        if not self.has_room or len(self._buffer) > _BUFFER_COUNT:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            now = self.nsqd.clock.now
            ticks = int((now - self._phase) / _TICKER) + 1
            self.nsqd.clock.at(max(now, self._phase + ticks * _TICKER), self._ticked)

    def _ticked(self) -> None:
        self._flush_due = False
        self._flush()

    def _flush(self) -> None:
        if self._buffer and self.deliver is not None:
            batch, self._buffer = self._buffer, []
            self.deliver(batch)


class Nsqd:
    """A channel's queue, and its consumers that wait for a message, the longest waiting first (as Go's select)."""

    def __init__(self, clock: Clock, number: int, rng: random.Random) -> None:
        self.clock = clock
        self.name = f"10.0.{number // 250}.{number % 250 + 1}:4150"
        self.address: Address = parse_address(self.name)
        host = self.name.partition(":")[0]
        self.node = NsqdNode(broadcast_address=host, tcp_port=4150, http_port=4151, hostname=host, version="1.3.0")
        self.is_up = False
        #: Whether its queue never gets empty.
        self.is_endless = False
        self.rdy_count = 0
        self.sent_count = 0
        self.finished_count = 0
        #: When each consumer dialled, and when each was accepted.
        self.dialled: list[float] = []
        self.accepted: list[float] = []
        self.consumers: dict[Consumer, Callable[[], object]] = {}
        self._rng = rng
        self._queue: deque[Message] = deque()
        self._waiting: OrderedDict[Consumer, None] = OrderedDict()

    def accept(self, on_lost: Callable[[], object]) -> Consumer:
        """A new consumer; `on_lost` is called when this nsqd ends."""
        self.accepted.append(self.clock.now)
        consumer = Consumer(self, self._rng.random() * _TICKER)
        self.consumers[consumer] = on_lost
        return consumer

    def remove(self, consumer: Consumer) -> None:
        self.consumers.pop(consumer, None)
        self._waiting.pop(consumer, None)

    def end(self) -> None:
        """As if killed: its connections end, and what it has waits on its disk."""
        self.is_up = False
        self.drop_consumers()

    def drop_consumers(self) -> None:
        """All of its connections end."""
        consumers, self.consumers = list(self.consumers.values()), {}
        for on_lost in consumers:
            on_lost()

    def publish(self) -> None:
        self.put(Message(self.clock.now))

    def put(self, message: Message) -> None:
        self._queue.append(message)
        self.pump()

    def set_endless(self, is_endless: bool) -> None:
        self.is_endless = is_endless
        self._queue.clear()
        self.pump()

    def enqueue(self, consumer: Consumer) -> None:
        self._waiting.pop(consumer, None)
        if consumer.has_room:
            self._waiting[consumer] = None
            self.pump()

    def pump(self) -> None:
        while self._waiting and self.is_up and (self._queue or self.is_endless):
            consumer, _ = self._waiting.popitem(last=False)
            self.sent_count += 1
            consumer.send(self._queue.popleft() if self._queue else Message(self.clock.now))
            if consumer.has_room:
                self._waiting[consumer] = None


class Lookupd:
    """An nsqlookupd, with the methods of `LookupdClient` that a `LookupdPoller` calls."""

    def __init__(self, clock: Clock, number: int, latency: float = 0.001) -> None:
        self.url = f"http://lookupd-{number}:4161"
        self._clock = clock
        self._latency = latency
        self.is_up = True
        self.registered: dict[str, NsqdNode] = {}
        #: When each request came.
        self.requests: list[float] = []

    def nodes(self) -> list[NsqdNode]:
        self.requests.append(self._clock.now)
        gevent.sleep(self._latency)
        if not self.is_up:
            raise HTTPRequestFailed(self.url, "refused")
        return list(self.registered.values())

    def close(self) -> None:
        pass

    def restart(self, seconds: float) -> None:
        """It is away for so long, and has forgotten all nsqds when it comes back."""
        self.is_up = False
        self.registered.clear()

        def back() -> None:
            self.is_up = True

        self._clock.after(seconds, back)


def register(clock: Clock, nsqd: Nsqd, lookupds: list[Lookupd], phase: float) -> None:
    """Register with all nsqlookupds: now, and with each ping while it is up.

    `phase` is that of the pings, from 0 to 1.
    """

    def ping(pause: float = PING) -> None:
        if nsqd.is_up:
            for lookupd in lookupds:
                if lookupd.is_up:
                    lookupd.registered.setdefault(nsqd.name, nsqd.node)
            clock.after(pause, ping)

    ping(PING * phase)
