"""A network that becomes slower while a Reader is connected, with a real nsqd behind a proxy that delays."""

from __future__ import annotations

from statistics import median

import gevent
import pytest

from gnsq_like import Message, NsqdHTTPClient, Producer, Reader
from gnsq_like.testing import FaultProxy
from tests.support.daemons import running_nsqd, wait_for

_PLACES = 50


@pytest.mark.real_nsqd
def test_adaptive_rdy_fills_its_places_when_the_network_has_become_slower() -> None:
    """As nsqd sees it, whose rate they bound; in virtual time in ``tests/simulation/test_places.py``."""
    handled: list[Message] = []

    def handler(message: Message) -> None:
        gevent.sleep(0.005)
        handled.append(message)

    def in_flight() -> int:
        [topic] = client.stats("t")["topics"]
        return topic["channels"][0]["in_flight_count"]

    with (
        running_nsqd("real") as nsqd,
        NsqdHTTPClient(nsqd.http_address) as client,
        FaultProxy(nsqd.tcp_address) as proxy,
        Producer(nsqd.tcp_address) as producer,
    ):
        producer.multi_publish("t", [b"x"] * 4000)
        with Reader("t", "c", handler, nsqd_tcp_addresses=proxy.address, max_in_flight=_PLACES):
            wait_for(lambda: handled)
            proxy.delay = 0.05
            known = len(handled) + 100  # it takes some tens of round trips to learn of the change
            wait_for(lambda: len(handled) >= known)
            seen: list[int] = []
            while len(handled) < known + 500:
                seen.append(in_flight())
                gevent.sleep(0.01)
    assert median(seen) > _PLACES / 2
