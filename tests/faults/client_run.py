"""The work of a client: publishers, a Reader, and what it holds before and after."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import gevent
from gevent import monkey
from gevent.event import AsyncResult
from gevent.socket import wait_read

from gnsq_like import Batch, Producer, Reader
from gnsq_like.errors import NotSent, OutcomeUnknown, PublishError, PublishRefused
from gnsq_like.runtime.hub_calls import handle_here
from gnsq_like.runtime.thread_pool import call_blocking
from tests.faults.bodies import make_body
from tests.faults.client import Spec
from tests.faults.handling import Handler
from tests.faults.ledger import CONFIRMED, NOT_SENT, REFUSED, UNKNOWN
from tests.faults.notes import Notes
from tests.faults.resources import kept, own_resources

TOPIC = "faults"
CHANNEL = "c"
#: Between a client's own numbers and those of its children.
_OF_CHILDREN = 500_000_000
#: Seconds for a forked child, which publishes three times, for five seconds at most.
_CHILD_TIMEOUT = 120.0
#: Seconds for what ends by itself, before the client says what it still holds.
_SETTLE_TIMEOUT = 60.0
#: Seconds for a thread to be started.
_WARM_UP_TIMEOUT = 60.0
#: Seconds between two looks whether this process runs, and how late one must be to count as a stall.
_TICK, _STALL = 0.05, 0.02

_native_sleep = monkey.get_original("time", "sleep")
_start_new_thread = monkey.get_original("_thread", "start_new_thread")
_OUTCOMES: dict[type[BaseException], str] = {NotSent: NOT_SENT, PublishRefused: REFUSED, OutcomeUnknown: UNKNOWN}


class Client:
    """One client; see :class:`Spec`."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._notes = Notes(spec.notes)
        self._numbers = itertools.count(spec.first)
        self._forks = itertools.count()
        self._is_quiet = False
        self._is_over = False
        self._is_native = spec.way == "threads"
        self._sleep: Callable[[float], object] = _native_sleep if self._is_native else gevent.sleep
        self._may_repeat = bool(spec.producer.get("retry_unknown")) or spec.producer.get("replicas", 1) > 1
        self._handler = Handler(spec.seed, self._notes, spec.hang, is_native=spec.reader.get("spawn") == "thread")
        self._addresses: dict[str, Any] = {
            "nsqd_tcp_addresses": spec.nsqds,
            "lookupd_http_addresses": spec.lookupds,
        }

    def run(self) -> None:
        """Until stdin says stop."""
        self._warm_up()
        before = own_resources()
        ticker = gevent.spawn(self._tick, gevent.sleep)
        # Threads of one process wait for each other as well as for the machine.
        _start_new_thread(self._tick, (_native_sleep,))
        producer = Producer(**self._addresses, **self._spec.producer)
        many = Batch(self._handler.handle_many, self._spec.batch, 0.1) if self._spec.batch > 1 else None
        reader = Reader(
            TOPIC, CHANNEL, many or self._handler, **self._addresses, **self._spec.reader, client_id=self._spec.name
        )
        reader.start()
        steering = gevent.spawn(self._steer, reader)
        publishers = [self._spawn(self._publish_on, producer, index) for index in range(self._spec.publishers)]
        print("running", flush=True)
        forks = []
        for command in self._commands():
            if command == "fork":
                forks.append(gevent.spawn(self._fork, producer))
            elif command == "quiet":
                self._is_quiet = True
                gevent.spawn(self._say_quiet, [*publishers, *forks])
        self._is_quiet = True
        _undisturbed(steering.join)
        _undisturbed(gevent.joinall, forks)
        for each in publishers:
            _undisturbed(each.join)
        _undisturbed(reader.stop, 5.0)
        _undisturbed(producer.close)
        self._is_over = True
        _undisturbed(ticker.join)
        del reader, producer, publishers, forks, steering, many
        # Idle threads for HTTP end by themselves, after two seconds of their time.
        deadline = time.monotonic() + _SETTLE_TIMEOUT
        while kept(before, after := own_resources()) and time.monotonic() < deadline:
            gevent.sleep(0.5)
        self._notes.left({"before": before, "after": after})

    def _say_quiet(self, running: list[Any]) -> None:
        """Once nothing more is published; without blocking the hub, where the Reader goes on."""
        while any(each.is_alive() if isinstance(each, threading.Thread) else not each.dead for each in running):
            gevent.sleep(_TICK)
        if self._notes.is_mine:
            print("quiet", flush=True)

    def _warm_up(self) -> None:
        """Make all that is made once for each process."""
        topic = "warm#ephemeral"
        with (
            Producer(**self._addresses, **self._spec.producer | {"timeout": 1.0}) as producer,
            Reader(topic, topic, lambda message: None, **self._addresses, **self._spec.reader),
        ):
            with suppress(PublishError):
                producer.publish(topic, make_body(-1))
            # Each thread's pool for HTTP; nsqlookupd may not have been asked yet, and may not be there.
            for hub_handle in (handle_here(), producer._started().hub_handle):
                hub_handle.run(call_blocking, int, _WARM_UP_TIMEOUT)
            gevent.sleep(0.5)
        del producer
        AsyncResult().set_exception(ValueError())  # its first call imports a module, which takes a descriptor
        gevent.sleep(2.5)

    def _spawn(self, function: Callable[..., object], *arguments: object) -> Any:
        if not self._is_native:
            return gevent.spawn(function, *arguments)
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        return thread

    def _tick(self, sleep: Callable[[float], object]) -> None:
        while not self._is_over and self._notes.is_mine:
            begin = time.monotonic()
            sleep(_TICK)
            end = time.monotonic()
            if end - begin > _TICK + _STALL:
                self._notes.stalled(begin + _TICK, end)

    def _steer(self, reader: Reader) -> None:
        """Pause the Reader, or stop and start it, now and then."""
        draw = random.Random(f"{self._spec.seed} steering")
        while not self._is_quiet:
            gevent.sleep(draw.uniform(0, 5))
            if not self._notes.is_mine:
                return  # a forked child, whose hub resumes the parent's greenlets
            if draw.random() < 0.2:
                reader.stop(draw.uniform(0, 1))
                if self._notes.is_mine:
                    reader.start()
            else:
                reader.pause()
                gevent.sleep(draw.uniform(0, 0.5))
                reader.resume()

    def _commands(self) -> Iterator[str]:
        """The lines of stdin, to its end or "stop"."""
        rest = b""
        while True:
            try:
                wait_read(0)
            except KeyboardInterrupt:
                continue  # a handler's, as meant
            if not self._notes.is_mine:
                gevent.sleep(_CHILD_TIMEOUT)  # a forked child, whose hub resumes the parent's greenlets
            data = os.read(0, 1000)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line == b"stop":
                    return
                yield line.decode()
            if not data:
                return

    # -- publishing ----------------------------------------------------------------------------------

    def _publish_on(self, producer: Producer, index: int) -> None:
        draw = random.Random(f"{self._spec.seed} {index}")
        while not self._is_quiet and self._notes.is_mine:
            self._publish(producer, draw)
            self._sleep(draw.expovariate(self._spec.rate / self._spec.publishers))

    def _publish(self, producer: Producer, draw: random.Random) -> None:
        count = draw.randint(2, 10) if draw.random() < 0.03 else 1
        numbers = [next(self._numbers) for _ in range(count)]
        bodies = [make_body(number, self._padding(draw)) for number in numbers]
        timeout = draw.choice([0.3, 1.0, 3.0])
        defer = draw.uniform(0.05, 1) if count == 1 and draw.random() < 0.02 else 0.0

        def publish() -> None:
            if count > 1:
                producer.multi_publish(TOPIC, bodies, timeout=timeout)
            elif defer:
                producer.publish(TOPIC, bodies[0], timeout=timeout, defer=defer)
            elif draw.random() < 0.1:
                result: AsyncResult = producer.publish_async(TOPIC, bodies[0], timeout=timeout)
                result.get()
            else:
                producer.publish(TOPIC, bodies[0], timeout=timeout)

        self._note_outcome(self._notes, numbers, timeout, defer, publish)

    @staticmethod
    def _padding(draw: random.Random) -> int:
        return draw.randrange(100_000) if draw.random() < 0.01 else draw.randrange(200)

    def _note_outcome(
        self, notes: Notes, numbers: list[int], timeout: float, defer: float, publish: Callable[[], None]
    ) -> None:
        begin = time.monotonic()
        for number in numbers:
            notes.publishing(number, begin, begin + timeout, self._may_repeat, defer)
        code = ""
        try:
            publish()
        except PublishError as exc:
            outcome = _OUTCOMES[type(exc)]
            code = exc.error.code if isinstance(exc, PublishRefused) else ""
        except BaseException as exc:
            notes.unexpected(f"publish raised {exc!r}")
            raise
        else:
            outcome = CONFIRMED
        end = time.monotonic()
        for number in numbers:
            notes.ended(number, outcome, end, code)

    # -- forks ---------------------------------------------------------------------------------------

    def _fork(self, producer: Producer) -> None:
        """Fork a child that publishes with the inherited Producer, and wait for its end."""
        if not self._notes.is_mine:
            return  # a forked child, whose hub resumes the parent's greenlets
        first = self._spec.first + _OF_CHILDREN + 1000 * next(self._forks)
        pid = os.fork()
        if not pid:
            status = 1
            try:
                notes = Notes(self._spec.notes)
                for number in range(first, first + 3):
                    publish = partial(producer.publish, TOPIC, make_body(number), timeout=5.0)
                    self._note_outcome(notes, [number], 5.0, 0.0, publish)
                status = 0
            finally:
                os._exit(status)
        self._reap(pid)
        if self._notes.is_mine:
            print("forked", flush=True)

    def _reap(self, pid: int) -> None:
        """Wait for a child's end."""
        deadline = time.monotonic() + _CHILD_TIMEOUT
        while time.monotonic() < deadline and self._notes.is_mine:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                if status:
                    self._notes.unexpected(f"a forked child ended with wait status {status}")
                return
            gevent.sleep(_TICK)
        if self._notes.is_mine:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._notes.unexpected("a forked child did not end")


def _undisturbed(function: Callable[..., object], *arguments: object) -> None:
    """Call it again until no handler's KeyboardInterrupt meets it."""
    while True:
        try:
            function(*arguments)
        except KeyboardInterrupt:
            continue
        return
