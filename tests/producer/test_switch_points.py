"""A gevent.Timeout, and a kill, at every place where a publish can switch: the next publish still succeeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gevent
import greenlet
import pytest

from gnsq_like import Producer, Reader
from gnsq_like.errors import NSQError
from tests.support.daemons import running_nsqd, wait_for

#: More than any publish switches; a bound on the search.
MANY = 50


class Interrupted:
    """Runs a function in a greenlet and throws into it where it switches for the n-th time."""

    def __init__(self, function, number, exception):
        self.switches = 0
        self.thrown = False
        self.outcome = None
        loop = gevent.get_hub().loop

        def work():
            try:
                function()
            except (NSQError, exception) as exc:
                self.outcome = exc

        def throw():
            if not self.victim.dead:
                self.thrown = True
                self.victim.throw(exception)

        def trace(event, switched):
            if event in ("switch", "throw") and switched[0] is self.victim and not self.victim.dead:
                self.switches += 1
                if self.switches == number:
                    loop.run_callback(throw)

        self.victim = gevent.Greenlet(work)
        old = greenlet.settrace(trace)
        try:
            self.victim.start()
            self.victim.join(60)
        finally:
            greenlet.settrace(old)
        assert self.victim.dead


def bodies_of(count, size):
    return [bytes([65 + number]) * size for number in range(count)]


#: What is interrupted: how, its Producer's options, and whether that is connected already.
CASES: dict[str, tuple[Callable[[Producer], object], dict[str, Any], bool]] = {
    "first": (lambda producer: producer.publish("t", b"interrupted"), {}, False),
    "connected": (lambda producer: producer.publish("t", b"interrupted"), {}, True),
    "batched": (lambda producer: producer.publish("t", b"interrupted"), {"batching": True, "linger": 0.01}, True),
    "several": (
        lambda producer: producer.multi_publish("t", bodies_of(5, 60)),
        {"max_body_bytes": 100, "max_batch_bytes": 100},
        True,
    ),
    "no room": (
        lambda producer: [producer.publish_async("t", b"interrupted") for _ in range(5)][-1].get(),
        {"max_pending_count": 1},
        False,
    ),
}


def came_twice(received: list[bytes], body: bytes) -> bool:
    return received.count(body) == 2


@pytest.mark.parametrize("exception", [gevent.Timeout, gevent.GreenletExit])
@pytest.mark.parametrize("case", CASES)
def test_the_next_publish_succeeds(case, exception, own_thread):
    call, options, connected = CASES[case]
    received: list[bytes] = []
    with (
        running_nsqd("ours") as nsqd,
        Reader("t", "c", lambda m: received.append(m.body), nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=100),
    ):
        for number in range(1, MANY):
            with Producer(nsqd.tcp_address, own_thread=own_thread, **options) as producer:
                if connected:
                    producer.publish("t", b"before")
                interrupted = Interrupted(partial(call, producer), number, exception)
                body = b"after %d" % number
                producer.publish("t", body, timeout=30)
                producer.multi_publish("t", [body], timeout=30)
                wait_for(partial(came_twice, received, body), "what was published afterwards")
            if not interrupted.thrown:
                break
        else:
            pytest.fail("a publish that never comes to an end")
        assert number > 1
