"""The window holds: seen from the nsqds' own counters, with slow handlers, moves, losses and a slow network."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Any

import gevent
import pytest
from gevent.event import Event

from gnsq_like import Message, NsqdHTTPClient, Producer, Reader
from gnsq_like.testing import FaultProxy
from tests.support.daemons import KINDS, running_nsqd, wait_for
from tests.support.hub import settle
from tests.support.reading import ignore

pytestmark = pytest.mark.parametrize("kind", KINDS)


class Cluster:
    """Several nsqds, each behind a proxy, and their counters."""

    def __init__(self, stack, kind, count, delay=0.0, **options):
        self.nsqds = [stack.enter_context(running_nsqd(kind, node_id=number, **options)) for number in range(count)]
        self.proxies = [stack.enter_context(FaultProxy(nsqd.tcp_address, delay)) for nsqd in self.nsqds]
        self.addresses = [proxy.address for proxy in self.proxies]
        self._clients = [stack.enter_context(NsqdHTTPClient(nsqd.http_address)) for nsqd in self.nsqds]

    def publish(self, number, bodies, topic="t"):
        with Producer(self.nsqds[number].tcp_address) as producer:
            producer.multi_publish(topic, bodies)

    def channels(self):
        found = []
        for client in self._clients:
            topics = client.stats(topic="t")["topics"] or []
            found += [channel for topic in topics for channel in topic["channels"]]
        return found

    def in_flight(self):
        return [channel["in_flight_count"] for channel in self.channels()]

    def finished(self, total):
        """Whether ``total`` messages have come into the channels, and none is there any more."""
        channels = self.channels()
        keys = ("depth", "in_flight_count", "deferred_count")
        came = sum(channel["message_count"] for channel in channels)
        return came == total and not any(channel[key] for channel in channels for key in keys)

    def watch(self, limit):
        """Look until killed; the sums of messages in flight that were above ``limit``.

        The counters of several nsqds cannot be read at one moment: a message that is answered here while
        the next begins there would count twice. So a look counts only if the next one saw the same of everything,
        messages and answers ever counted included: between the two, all of it was true at once.
        """
        above: list[int] = []

        def look():
            before = None
            while True:
                channels = self.channels()
                total = sum(channel["in_flight_count"] for channel in channels)
                if total > limit and channels == before:
                    above.append(total)
                before = channels
                gevent.sleep(0.01)

        return gevent.spawn(look), above


def shares(reader):
    """What each connection's RDY may become."""
    return [each["share"] for each in reader.stats()["connections"].values()]


@pytest.fixture
def cluster(kind, request):
    with contextlib.ExitStack() as stack:
        yield lambda count, **options: Cluster(stack, kind, count, **options)


def test_an_nsqd_whose_share_is_full_of_hung_handlers_goes_on(cluster):
    nsqds = cluster(2)
    gate = Event()
    hung: list[Message] = []

    def handler(message):
        if message.body.startswith(b"hang") and message.attempts == 1:
            hung.append(message)
            gate.wait()

    options: dict[str, Any] = {
        "max_in_flight": 4,
        "msg_timeout": 1,
        "low_rdy_idle_timeout": 60,
    }
    with Reader("t", "c", handler, nsqd_tcp_addresses=nsqds.addresses, **options) as reader:
        wait_for(lambda: shares(reader) == [2, 2])
        nsqds.publish(0, [b"hang %d" % number for number in range(2)])
        wait_for(lambda: len(hung) == 2)
        nsqds.publish(0, [b"%d" % number for number in range(20)])
        wait_for(lambda: nsqds.finished(22))
        # A message that outlived msg_timeout on a slow machine may be here twice for a moment.
        wait_for(lambda: reader.stats()["in_flight"] == 2)

        def shares_while_busy():
            nsqds.publish(0, [b"more"])  # without messages it would be silent too, and have an equal share
            return sorted(shares(reader))  # they are in the order in which the nsqds were connected

        # What the hung handlers leave, except while the silent one has its turn.
        wait_for(lambda: shares_while_busy() == [0, 2])
        wait_for(lambda: not reader.is_starved)
        gate.set()
        wait_for(lambda: shares_while_busy() == [0, 4])


def test_g2_the_survivor_gets_the_whole_window_at_once(cluster):
    nsqds = cluster(2)
    lost = Event()
    options: dict[str, Any] = {"max_in_flight": 100, "adaptive_rdy": False, "on_disconnect": lambda *_: lost.set()}
    with Reader("t", "c", ignore, nsqd_tcp_addresses=nsqds.addresses, **options) as reader:
        wait_for(lambda: shares(reader) == [50, 50])
        nsqds.proxies[0].accepting = False
        nsqds.proxies[0].cut()
        assert lost.wait(100)
        settle()
        assert shares(reader) == [100]


def test_g5_a_connection_with_unanswered_messages_is_replaced_at_once(cluster):
    nsqds = cluster(1, msg_timeout=1)
    nsqds.publish(0, [b"never answered"])
    came: list[int] = []

    def handler(message: Message) -> None:
        message.enable_async()
        came.append(message.attempts)

    reader = Reader(
        "t",
        "c",
        handler,
        nsqd_tcp_addresses=nsqds.addresses,
        max_in_flight=2,
        max_redial_delay=0.1,
        low_rdy_idle_timeout=0.2,
    )
    with reader:
        wait_for(lambda: came)
        nsqds.proxies[0].cut()
        wait_for(lambda: len(came) >= 2)
        assert came[:2] == [1, 2]
        assert reader.stop(0.1) >= 1


def test_stopping_under_load_finishes_what_was_handled_and_loses_nothing(cluster):
    nsqds = cluster(2, delay=0.005)
    total = 2000
    for number in range(2):
        nsqds.publish(number, [b"%d %d" % (number, each) for each in range(total // 2)])
    handled: Counter[bytes] = Counter()
    done = Event()

    def handler(message):
        gevent.sleep(0.001)
        handled[message.body] += 1
        if len(handled) == total:
            done.set()

    rounds = 0
    while not done.is_set():
        rounds += 1
        reader = Reader("t", "c", handler, nsqd_tcp_addresses=nsqds.addresses, max_in_flight=50)
        with reader:
            before = handled.total()
            enough = before + 300
            wait_for(lambda enough=enough: handled.total() >= enough or done.is_set())  # type: ignore[misc]
        stats = reader.stats()
        assert stats["finished"] == handled.total() - before
    wait_for(lambda: nsqds.finished(total))
    assert rounds > 3
    assert handled.total() == len(handled) == total


def test_handlers_that_block_for_four_heartbeats_lose_no_connection(cluster):
    nsqds = cluster(1)
    nsqds.publish(0, [b"%d" % number for number in range(50)])
    gate = Event()
    lost: list[Exception | None] = []
    inside: list[bytes] = []

    def handler(message: Message) -> None:
        inside.append(message.body)
        gate.wait()

    reader = Reader(
        "t",
        "c",
        handler,
        nsqd_tcp_addresses=nsqds.addresses,
        max_in_flight=50,
        heartbeat_interval=1,
        on_disconnect=lambda address, error: lost.append(error),
    )
    with reader:
        wait_for(lambda: len(inside) == 50)
        # Twice as long as nsqd waits. Whatever else it says meanwhile: so much of it are answers to heartbeats, one a
        # second.
        heard = nsqds.proxies[0].to_server.count
        wait_for(lambda: nsqds.proxies[0].to_server.count >= heard + 4 * len(b"NOP\n"))
        gate.set()
        wait_for(lambda: nsqds.finished(50))
        assert not lost
    assert len(set(inside)) == 50


def test_handlers_that_keep_the_cpu_lose_no_connection_and_answer_as_they_go(cluster):
    """200 handlers of 20 ms of CPU, heartbeats every second: the first FIN leaves when a few of them have run."""
    nsqds = cluster(1)
    nsqds.publish(0, [b"%d" % number for number in range(200)])
    lost: list[Exception | None] = []
    began: list[bytes] = []

    def handler(message: Message) -> None:
        began.append(message.body)
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass

    reader = Reader(
        "t",
        "c",
        handler,
        nsqd_tcp_addresses=nsqds.addresses,
        max_in_flight=200,
        heartbeat_interval=1,
        adaptive_rdy=False,
        on_disconnect=lambda address, error: lost.append(error),
    )
    with reader:
        wait_for(lambda: began)
        before = nsqds.proxies[0].to_server.count
        wait_for(lambda: nsqds.proxies[0].to_server.count > before)
        begun_by_the_first_fin = len(began)
        wait_for(lambda: len(began) == 200)
        wait_for(lambda: nsqds.finished(200))
        assert not lost
    assert begun_by_the_first_fin <= 10
