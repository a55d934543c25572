"""nsqd in virtual time, as docs/internals 1.12 and 1.13 describe it, and the network to it.

Nothing here sleeps. `Clock` holds the events; `Nsqd` is one nsqd with one channel and, seen from one Reader,
one connection: its queue, RDY, in flight, and the output buffer with its free-running ticker.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable

#: Seconds nsqd takes for one message (666,000 a second were measured).
NSQD_PER_MESSAGE = 1.5e-6


class Clock:
    """Virtual time: events in the order of their times, then of their making."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def at(self, when: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self._numbers), action))

    def after(self, delay: float, action: Callable[[], object]) -> None:
        self.at(self.now + delay, action)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = end


class Message:
    __slots__ = ("answered", "attempts", "delivered_at", "published_at", "received_at", "stamp")

    def __init__(self, published_at: float) -> None:
        self.published_at = published_at
        self.attempts = 0
        #: when nsqd counted it as in flight
        self.delivered_at = 0.0
        #: when the Reader got it
        self.received_at = 0.0
        self.stamp = 0
        #: whether FIN or REQ is on its way
        self.answered = False


class Link:
    """One direction of a connection: in order, each thing after its own delay."""

    def __init__(self, clock: Clock, delay: Callable[[], float]) -> None:
        self._clock = clock
        self._delay = delay
        self._last = 0.0
        self.broken = False

    def send(self, action: Callable[[], object]) -> None:
        self._last = max(self._last, self._clock.now + self._delay())
        self._clock.at(self._last, lambda: None if self.broken else action())


class Nsqd:
    """One nsqd: a queue, one consumer's RDY and in-flight, and the output buffer with its free-running ticker."""

    def __init__(
        self,
        clock: Clock,
        name: str,
        *,
        buffer_bytes: int = 16384,
        buffer_timeout: float = 0.025,
        message_bytes: int = 134,
        ticker_phase: float = 0.0,
        msg_timeout: float | None = None,
        per_message: float = NSQD_PER_MESSAGE,
    ) -> None:
        self.clock = clock
        self.name = name
        self.buffer_timeout = buffer_timeout
        self.msg_timeout = msg_timeout
        self.per_message = per_message
        self._buffer_count = max(1, buffer_bytes // message_bytes)
        self._phase = ticker_phase
        self.queue: deque[Message] = deque()
        self.rdy = 0
        #: after CLS
        self.closing = False
        #: In the order of delivery: a set's would be another one in each run.
        self.in_flight: dict[Message, None] = {}
        self.sent_count = 0
        self.finished_count = 0
        self.timed_out_count = 0
        #: (time, RDY) of all RDY commands it got
        self.rdy_log: list[tuple[float, int]] = []
        self._buffer: list[Message] = []
        self._flushed = True
        self._ticks_used = -1
        self._busy = False
        #: Where messages go: set by whoever connects.
        self.deliver: Callable[[list[Message]], object] | None = None
        self.on_send: Callable[[Nsqd], object] = lambda _nsqd: None

    # -- what is said to it

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            self.queue.append(Message(self.clock.now))
        self._pump()

    def set_rdy(self, rdy: int) -> None:
        self.rdy = 0 if self.closing else rdy
        self.rdy_log.append((self.clock.now, rdy))
        self._pump()

    def finish(self, messages: list[Message]) -> None:
        for message in messages:
            if message in self.in_flight:
                del self.in_flight[message]
                self.finished_count += 1
        self._pump()

    def requeue(self, message: Message, delay: float) -> None:
        if message in self.in_flight:
            del self.in_flight[message]
            self.clock.after(delay, lambda: self._return(message))
        self._pump()

    def close_wait(self) -> None:
        self.closing = True
        self.rdy = 0
        self._pump()

    def disconnect(self) -> None:
        """The consumer is gone; what it held comes back when its timeout is over."""
        self.rdy = 0
        self.deliver = None
        for message in [*self.in_flight, *self._buffer]:
            again = Message(message.published_at)
            again.attempts = message.attempts
            self.clock.after(self.msg_timeout or 60.0, lambda again=again: self._return(again))  # type: ignore[misc]
        self.in_flight = {}
        self._buffer = []
        self._flushed = True

    def _return(self, message: Message) -> None:
        self.queue.append(message)
        self._pump()

    def _expire(self, message: Message, delivered_at: float) -> None:
        if message in self.in_flight and message.delivered_at == delivered_at:
            del self.in_flight[message]
            self.timed_out_count += 1
            again = Message(message.published_at)
            again.attempts = message.attempts
            self._return(again)

    # -- the delivery loop

    def _pump(self) -> None:
        if self._busy:
            return
        if self.rdy <= len(self.in_flight):
            self._flush()
        elif self.queue and self.deliver:
            self._busy = True
            self.clock.after(self.per_message, self._send_one)
        elif not self._flushed:
            self._wait_for_tick()

    def _send_one(self) -> None:
        self._busy = False
        if self.queue and self.deliver and len(self.in_flight) < self.rdy:
            message = self.queue.popleft()
            message.attempts += 1
            message.delivered_at = self.clock.now
            message.answered = False
            self.in_flight[message] = None
            self.sent_count += 1
            self._buffer.append(message)
            self._flushed = False
            self.on_send(self)
            if self.msg_timeout is not None:
                sent_at = self.clock.now
                self.clock.after(self.msg_timeout, lambda: self._expire(message, sent_at))
            if len(self._buffer) > self._buffer_count:
                self._write(self._buffer_count)
        self._pump()

    def _wait_for_tick(self) -> None:
        ticks = int((self.clock.now - self._phase) / self.buffer_timeout)
        if ticks > self._ticks_used:  # one is pending since the last flush by the ticker
            self._ticks_used = ticks
            self._flush()
            return
        self.clock.at(self._phase + (ticks + 1) * self.buffer_timeout + 1e-9, self._pump)

    def _flush(self) -> None:
        self._flushed = True
        if self._buffer:
            self._write(len(self._buffer))

    def _write(self, count: int) -> None:
        batch, self._buffer = self._buffer[:count], self._buffer[count:]
        if self.deliver:
            self.deliver(batch)
