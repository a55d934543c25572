"""A network that becomes slower while a Reader is connected, with a real nsqd behind a proxy that delays."""

from __future__ import annotations

import time

import gevent
import pytest

from gnsq_like import Message, Producer, Reader
from gnsq_like.testing import FaultProxy
from tests.support.daemons import KINDS, Kind, running_nsqd, wait_for


@pytest.mark.parametrize("kind", KINDS)
def test_adaptive_rdy_keeps_its_rate_when_the_network_becomes_slower(kind: Kind) -> None:
    """Beside a Reader without it that connected then; in virtual time in ``tests/simulation/test_places.py``."""
    handled: list[Message] = []

    def handler(message: Message) -> None:
        gevent.sleep(0.005)
        handled.append(message)

    def handle(count: int) -> float:
        """The seconds that so many messages take."""
        began, enough = time.monotonic(), len(handled) + count
        wait_for(lambda: len(handled) >= enough)
        return time.monotonic() - began

    seconds = []
    with running_nsqd(kind) as nsqd, FaultProxy(nsqd.tcp_address) as proxy, Producer(nsqd.tcp_address) as producer:
        for adaptive in (False, True):
            topic = f"adaptive-{adaptive}"
            producer.multi_publish(topic, [b"x"] * 4000)
            proxy.delay = 0.0 if adaptive else 0.025
            nsqds = [proxy.address]
            with Reader(topic, "c", handler, nsqd_tcp_addresses=nsqds, max_in_flight=20, adaptive_rdy=adaptive):
                handle(1)
                proxy.delay = 0.025
                handle(100)  # it takes some tens of round trips to learn of the change
                seconds.append(handle(500))
    assert seconds[1] < 2 * seconds[0]
