"""A signal handler that raises, as SIGALRM timeouts do, wherever Python calls one in the client's code.

CPython calls signal handlers after calls, at the start of functions, and where loops go back. A trace function raises
at one of these points while the client publishes or consumes; then the same is done again with another one. Whatever is
interrupted, the connection is usable or replaced within seconds: nothing confirmed is missing, and the next publish and
the next message pass.

All sleeps are virtual: they order what happens. Each run tries one of ``_STEP`` points; ``INTERRUPT_EVERY=1`` in the
environment tries them all, which takes minutes.
"""

from __future__ import annotations

import dis
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import gevent
import pytest

import gnsq_like
from gnsq_like import Message, Producer
from gnsq_like.errors import NotSent, NSQError
from gnsq_like.runtime.control_loop import ControlLoop
from tests.simulation import Cluster, simulated
from tests.simulation.process import CURRENT

_STEP = int(os.environ.get("INTERRUPT_EVERY", "43"))
_ROOMS = ("connection", "discovery", "policy", "producer", "reader", "runtime", "transport", "wire")
_CLIENT = tuple(os.path.join(os.path.dirname(gnsq_like.__file__), room, "") for room in _ROOMS)
#: What CPython calls signal handlers after.
_CALLED_AFTER = {code for name, code in dis.opmap.items() if name.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))}
#: Seconds: what was interrupted is looked at again once a second, and a connection is dialled after another one.
_SOON = 3.0
_TIMEOUT = 3.0
_MSG_TIMEOUT = 2.0


class Alarm(Exception):
    """What the signal handler raises."""


class Interrupter:
    """Raises Alarm once, in the client's code, when a count of points has passed."""

    def __init__(self) -> None:
        #: How many points to pass; below 0 before the beginning and after the end.
        self._left = -1
        #: Where it has raised.
        self.where = ""

    def begin(self, points: int) -> None:
        """Interrupt what happens from now on, in this greenlet's hub and the greenlets that start."""
        self._left = points
        # In the hub, because each new greenlet is traced if the one that switches to it is.
        gevent.get_hub().loop.run_callback(self._trace)
        gevent.sleep(0)

    def end(self) -> None:
        """Interrupt nothing more."""
        self._left = -1

    def _trace(self) -> None:
        sys._getframe().f_trace_opcodes = True  # before: Python 3.12 looks at it only when tracing begins
        sys.settrace(self._begin_function)

    def _begin_function(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        if self._left < 0 or not code.co_filename.startswith(_CLIENT) or CURRENT.get().name != "main":
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        codes = code.co_code
        last = dis.opmap["RESUME"]

        def step(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal last
            if event == "opcode" and self._left >= 0:
                is_point = last in _CALLED_AFTER
                last = codes[frame.f_lasti]
                if is_point:
                    self._left -= 1
                    if self._left < 0:
                        self.where = "".join(traceback.format_stack(frame, 5))
                        raise Alarm(f"{code.co_filename}:{frame.f_lineno}")
            return step

        return step


def expect_alarms(cluster: Cluster) -> None:
    """What nothing has caught, as in the hub, must be Alarms."""
    assert [error for error in cluster.world.errors if "Alarm" not in error] == []
    cluster.world.errors.clear()


def each_point(cluster: Cluster, attempt: Callable[[Interrupter, int], None]) -> None:
    """Call ``attempt(interrupter, number)``, which has it begin at this number, until nothing is interrupted."""
    logging.disable()  # what is logged with its frames keeps their sockets
    for number in range(0, 100_000, _STEP):
        interrupter = Interrupter()
        try:
            attempt(interrupter, number)
        except Exception as exc:
            raise AssertionError(f"{exc!r} after point {number} was interrupted:\n{interrupter.where}") from exc
        finally:
            interrupter.end()
        if not interrupter.where:
            break
    assert number > 300
    expect_alarms(cluster)


@pytest.mark.parametrize("start", ["connected", "connecting"])
@pytest.mark.parametrize("batching", [False, True], ids=["single", "batching"])
@simulated(timeout=600)
def test_a_producer(cluster: Cluster, batching: bool, start: str) -> None:
    def attempt(interrupter: Interrupter, number: int) -> None:
        topic = f"t{number}"
        producer = Producer(cluster.tcp_addresses, own_thread=False, timeout=_TIMEOUT, batching=batching)
        confirmed: list[bytes] = []
        not_sent: list[bytes] = []

        def publish_three(caller: int) -> None:
            for index in range(3):
                body = b"%d.%d" % (caller, index)
                began = cluster.now
                try:
                    producer.publish(topic, body)
                    confirmed.append(body)
                except NotSent:
                    not_sent.append(body)
                except (Alarm, NSQError):
                    pass
                assert cluster.now - began < _TIMEOUT + 0.1, f"{body!r} took {cluster.now - began:.2f} s"
                gevent.sleep(0.01)

        if start == "connected":
            producer.publish(topic, b"first")
        interrupter.begin(number)
        gevent.joinall([gevent.spawn(publish_three, caller) for caller in range(3)], raise_error=True)
        interrupter.end()
        publish_three(3)
        assert confirmed[-3:] == [b"3.0", b"3.1", b"3.2"]
        assert producer.close()
        stored: list[bytes] = []
        reader = cluster.reader(topic, "c", lambda message: stored.append(message.body), max_in_flight=100)
        cluster.wait(lambda: set(confirmed) <= set(stored), 0.5)
        reader.stop()
        assert len(set(stored)) == len(stored)
        assert not set(not_sent) & set(stored)

    each_point(cluster, attempt)


@pytest.mark.parametrize("handling", [0.0, 0.02], ids=["at once", "in 20 ms"])
@pytest.mark.parametrize("start", ["connected", "connecting"])
@simulated(timeout=600, msg_timeout=_MSG_TIMEOUT)
def test_a_reader(cluster: Cluster, start: str, handling: float) -> None:
    nsqd = cluster.nsqds[0]
    broker = nsqd.daemon.broker

    def attempt(interrupter: Interrupter, number: int) -> None:
        topic = nsqd.process.run(broker.topic, f"t{number}")
        handled: set[bytes] = set()

        def handle(message: Message) -> None:
            if handling:
                gevent.sleep(handling)
            handled.add(message.body)

        def put(bodies: set[bytes]) -> None:
            nsqd.process.run(topic.publish, sorted(bodies), 0.0, time.monotonic(), time.time_ns())

        def consume(bodies: set[bytes], seconds: float) -> None:
            put(bodies)
            cluster.wait(lambda: bodies <= handled, seconds)

        reader = gnsq_like.Reader(
            topic.name,
            "c",
            handle,
            nsqd_tcp_addresses=cluster.tcp_addresses,
            max_in_flight=3,
            max_backoff_duration=0.0,
            max_requeue_delay=0.0,
            max_attempts=0,
            connect_timeout=_SOON,
        )
        first = {b"%d" % index for index in range(6)}
        nsqd.process.run(broker.channel, topic, "c", time.monotonic())
        if start != "connected":
            interrupter.begin(number)
        try:
            reader.start()
        except Alarm:
            reader.stop()
            return
        if start == "connected":
            cluster.sleep(0.5)
            interrupter.begin(number)
        # What was in flight on a lost connection comes again after its timeout.
        consume(first, 2 * _SOON + _MSG_TIMEOUT)
        interrupter.end()
        consume({b"later %d" % index for index in range(9)}, 2 * _SOON)
        reader.stop(_SOON)

    each_point(cluster, attempt)


@simulated(timeout=600)
def test_a_control_loop(cluster: Cluster) -> None:
    times: list[float] = []

    def act() -> None:
        times.append(cluster.now)

    logging.disable()
    for number in range(1000):
        interrupter = Interrupter()
        loop = ControlLoop("x", lambda: None)
        interrupter.begin(number)
        try:
            loop.start()
        except Alarm:
            loop.stop()
            continue
        for _ in range(3):
            with suppress(Alarm):
                loop.soon(act)
            with suppress(Alarm):
                loop.by(time.monotonic() + 0.01, act)
            gevent.sleep(0.02)
        interrupter.end()
        times.clear()
        loop.soon(act)
        cluster.wait(lambda: times, _SOON)
        loop.stop()
        if not interrupter.where:
            break
    assert number > 50
    expect_alarms(cluster)
