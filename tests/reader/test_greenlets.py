"""Which greenlets a Reader has: a reader loop for each connection, one poller, one control loop, and its workers."""

from __future__ import annotations

import gc
from collections import Counter

import gevent

from gnsq_like import Reader
from tests.support.daemons import running_nsqd, running_nsqlookupd, wait_for


def _running() -> Counter[str]:
    """The functions of this package in which greenlets of this thread wait."""
    hub = gevent.get_hub()
    # By type(): isinstance() would have lazy objects of other packages make what they stand for.
    greenlets = [each for each in gc.get_objects() if issubclass(type(each), gevent.Greenlet) and not each.dead]
    functions = [each._run for each in greenlets if each.parent is hub]
    names = [f"{each.__module__}.{each.__qualname__}" for each in functions if hasattr(each, "__qualname__")]
    rooms = ("gnsq_like.connection", "gnsq_like.discovery", "gnsq_like.reader", "gnsq_like.runtime")
    return Counter(each for each in names if each.startswith(rooms))


def test_a_reader_has_a_greenlet_a_connection_one_poller_and_one_control_loop() -> None:
    with (
        running_nsqlookupd() as lookupd,
        running_nsqd(node_id=1, lookupd_tcp_addresses=[lookupd.tcp_address]) as one,
        running_nsqd(node_id=2, lookupd_tcp_addresses=[lookupd.tcp_address]) as two,
        running_nsqd(node_id=3, lookupd_tcp_addresses=[lookupd.tcp_address]) as three,
    ):
        before = _running()
        reader = Reader(
            "t",
            "c",
            lambda message: None,
            nsqd_tcp_addresses=[one.tcp_address, two.tcp_address, three.tcp_address],
            lookupd_http_addresses=lookupd.http_address,
            max_in_flight=10,
        )
        with reader:
            wait_for(lambda: len(reader.stats()["connections"]) == 3)
            wait_for(lambda: sum((_running() - before).values()) == 5)  # after the dials and the first round
            found = _running() - before
        assert found["gnsq_like.connection.connection.Connection._read"] == 3
        assert found["gnsq_like.discovery.lookupd_poller.LookupdPoller._run"] == 1
        assert found["gnsq_like.runtime.control_loop.ControlLoop._run"] == 1
        wait_for(lambda: not _running() - before)
