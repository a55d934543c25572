"""The window holds: seen from the nsqds' own counters, with slow handlers, moves, losses and a slow network."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from itertools import pairwise
from typing import Any, Self

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


class Slow:
    """A handler that takes its time, and knows how many of it run."""

    def __init__(self, seconds, total):
        self.seconds = seconds  # the handler's own time, which the scenario is about
        self.total = total
        #: The times of the last messages.
        self.times: deque[float] = deque(maxlen=3)
        self.inside = 0
        self.most = 0
        self.done = Event()
        self.addresses: set[str] = set()
        self.bodies: Counter[bytes] = Counter()

    def longest_silence(self):
        """The longest time without a message, in seconds, since the last but two."""
        times = [*self.times, time.monotonic()]
        return max(later - earlier for earlier, later in pairwise(times))

    def __call__(self, message):
        self.times.append(time.monotonic())
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.addresses.add(message.nsqd_address)
        gevent.sleep(self.seconds)
        self.inside -= 1
        self.bodies[message.body] += 1
        if len(self.bodies) == self.total:
            self.done.set()


class Looks:
    """Looks again and again whether the slot is where the messages are, as long as they come.

    If they stay away, because this process or nsqd stands still, a busy nsqd is taken for a silent one, and the slot
    goes round once: looks are left out from then on until it is back. A message or two may still come when it has gone.
    """

    INTERVAL = 0.01
    #: Seconds without a message: a turn ends after a quarter of one (policy.charge.Settings).
    SILENCE = 0.2

    def __init__(self, reader: Reader, address: str, handler: Slow) -> None:
        self._reader = reader
        self._address = address
        self._handler = handler
        #: Those who had the slot, one after the other.
        self.holders: list[str] = []
        self.begin_anew()
        self._greenlet = gevent.spawn(self._look)

    def begin_anew(self) -> None:
        self.count = self.busy_count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._greenlet.kill()

    def _look(self) -> None:
        was_busy = is_left_out = False
        while True:
            gevent.sleep(self.INTERVAL)
            connections = self._reader.stats()["connections"]
            holding = [each for each, stats in connections.items() if stats["share"] or stats["in_flight"]]
            self.holders += [each for each in holding if each not in self.holders[-1:]]
            is_busy = self._address in holding
            if was_busy and not is_busy:
                is_left_out = self._handler.longest_silence() > self.SILENCE
            elif is_busy:
                is_left_out = False
            was_busy = is_busy
            if not is_left_out:
                self.count += 1
                self.busy_count += is_busy


def shares(reader):
    """What each connection's RDY may become."""
    return [each["share"] for each in reader.stats()["connections"].values()]


@pytest.fixture
def cluster(kind, request):
    with contextlib.ExitStack() as stack:
        yield lambda count, **options: Cluster(stack, kind, count, **options)


@pytest.mark.parametrize("delay", [0.0, 0.02])
def test_g3_one_slot_among_four_nsqds_is_one_message(cluster, delay):
    """Handlers far slower than low_rdy_timeout, so that the slot has to move while a message is in flight."""
    nsqds = cluster(4, delay=delay)
    for number in range(4):
        nsqds.publish(number, [b"%d %d" % (number, each) for each in range(2)])
    handler = Slow(0.4, 8)
    reader = Reader("t", "c", handler, nsqd_tcp_addresses=nsqds.addresses, max_in_flight=1, low_rdy_timeout=0.15)
    with reader:
        watcher, above = nsqds.watch(1)
        assert handler.done.wait(100)
        watcher.kill()
        wait_for(lambda: nsqds.finished(8))
    assert handler.most == 1
    assert above == []
    assert handler.bodies.total() == 8


def test_a_handler_of_three_times_msg_timeout_never_has_company(cluster):
    """nsqd delivers the message again while its handler runs; the slot must not be used for it."""
    nsqds = cluster(1)
    nsqds.publish(0, [b"a", b"b"])
    runs: list[bytes] = []
    inside: list[bytes] = []

    def handler(message):
        inside.append(message.body)
        assert len(inside) == 1
        first = message.body not in runs
        runs.append(message.body)
        gevent.sleep(3 if first else 0)  # of a msg_timeout of 1
        inside.remove(message.body)

    reader = Reader("t", "c", handler, nsqd_tcp_addresses=nsqds.addresses, max_in_flight=1, msg_timeout=1)
    with reader:
        wait_for(lambda: nsqds.finished(2))
    assert reader.stats()["requeued"] == 0  # the assertion in the handler never failed
    assert sorted(set(runs)) == [b"a", b"b"]


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


@pytest.mark.parametrize("count", [2, 3])
def test_g1_a_lowered_max_in_flight_holds_as_soon_as_messages_are_answered(cluster, count):
    nsqds = cluster(count)
    gate = Event()
    inside = [0]

    def handler(message):
        inside[0] += 1
        gate.wait()
        inside[0] -= 1

    with Reader("t", "c", handler, nsqd_tcp_addresses=nsqds.addresses, max_in_flight=60) as reader:
        # Had one of them messages before the others are connected, it would fill the window alone.
        wait_for(lambda: shares(reader) == [60 // count] * count)
        for number in range(count):
            nsqds.publish(number, [b"%d %d" % (number, each) for each in range(100)])
        wait_for(lambda: inside[0] == 60)
        reader.max_in_flight = 2 * count
        # Not 0 each: one that was busy first has most of the 60, and nsqd delivers nothing until its RDY is above what
        # it has in flight.
        wait_for(lambda: sum(each["rdy"] for each in reader.stats()["connections"].values()) <= 2 * count)
        gate.set()
        gate.clear()
        wait_for(lambda: sum(nsqds.in_flight()) == inside[0] == 2 * count)
        reader.max_in_flight = 20
        wait_for(lambda: inside[0] == 20)
        gate.set()
        wait_for(lambda: nsqds.finished(100 * count))


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


@pytest.mark.timeout(300)  # six seconds of looks, which a busy machine has not in six seconds
def test_ten_nsqds_one_slot_one_backlog(cluster):
    """Over 85 % of the time for the one that has messages, and the first of them when each other had one turn."""
    nsqds = cluster(10)
    handler = Slow(0.01, 10**9)
    with Reader("t", "c", handler, nsqd_tcp_addresses=nsqds.addresses, max_in_flight=1) as reader:
        wait_for(lambda: len(reader.stats()["connections"]) == 10)
        nsqds.publish(7, [b"%d" % number for number in range(20_000)])
        with Looks(reader, nsqds.addresses[7], handler) as looks:
            wait_for(lambda: handler.addresses)
            assert len(looks.holders) <= 10
            # How much it handles meanwhile is the machine's affair; who has the slot is ours.
            looks.begin_anew()
            wait_for(lambda: looks.count >= 6 / Looks.INTERVAL, timeout=250)
    assert looks.busy_count / looks.count > 0.85
    assert handler.addresses == {nsqds.addresses[7]}


def test_lending_gives_the_busy_nsqd_what_the_idle_ones_do_not_use(cluster):
    nsqds = cluster(3)
    options: dict[str, Any] = {"max_in_flight": 30, "low_rdy_idle_timeout": 0.3, "adaptive_rdy": False}
    gate = Event()
    inside = [0]

    def handler(message):
        inside[0] += 1
        gate.wait()
        inside[0] -= 1

    with Reader("t", "c", handler, nsqd_tcp_addresses=nsqds.addresses, **options) as reader:
        wait_for(lambda: len(shares(reader)) == 3)
        nsqds.publish(1, [b"%d" % number for number in range(100)])
        wait_for(lambda: inside[0] == 28)
        gate.set()
        wait_for(lambda: nsqds.finished(100))


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
