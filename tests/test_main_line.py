"""The two straight lines of the design, against whole daemons: publish, discover, consume."""

from collections import Counter
from functools import partial

import gevent
import pytest
from gevent.event import Event

from gnsq_like import Message, Producer, Reader, Requeue
from gnsq_like.errors import PublishRefused
from tests.support.daemons import KINDS, running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import LookupdClient, NsqdHTTPClient
from tests.support.peer import PATIENCE
from tests.support.reading import channel_stats, finished

pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def nsqd(kind):
    with running_nsqd(kind) as daemon:
        yield daemon


class Collector:
    """A handler that keeps what it got, and knows when it is enough."""

    def __init__(self, expected):
        self.expected = expected
        self.bodies: Counter[bytes] = Counter()
        self.messages: list[Message] = []
        self.enough = Event()

    def __call__(self, message):
        self.messages.append(message)
        self.bodies[message.body] += 1
        if len(self.bodies) >= self.expected:
            self.enough.set()


def test_what_is_published_is_handled_once_and_finished(nsqd):
    handler = Collector(500)
    with Producer(nsqd.tcp_address) as producer:
        for number in range(100):
            producer.publish("t", b"one %d" % number)
        producer.multi_publish("t", (b"many %d" % number for number in range(400)))
        with Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=50) as reader:
            assert handler.enough.wait(PATIENCE)
            wait_for(lambda: finished(nsqd))
            assert reader.stats()["finished"] == 500
    expected = {b"one %d" % n for n in range(100)} | {b"many %d" % n for n in range(400)}
    assert handler.bodies == Counter(expected)


def test_a_message_says_where_it_came_from(nsqd):
    handler = Collector(1)
    with Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"body")
    with Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address):
        assert handler.enough.wait(PATIENCE)
    [message] = handler.messages
    assert (message.topic, message.channel, message.nsqd_address) == ("t", "c", nsqd.tcp_address)
    assert (message.attempts, message.body, len(message.id)) == (1, b"body", 16)
    assert message.timestamp_ns > 1_700_000_000 * 10**9


def test_discovery_finds_every_nsqd_and_each_channel_gets_a_copy(kind):
    total = 300
    with (
        running_nsqlookupd(kind) as lookupd,
        running_nsqd(kind, node_id=1, lookupd_tcp_addresses=[lookupd.tcp_address]) as one,
        running_nsqd(kind, node_id=2, lookupd_tcp_addresses=[lookupd.tcp_address]) as two,
        LookupdClient(lookupd.http_address) as client,
    ):
        for daemon in (one, two):
            with NsqdHTTPClient(daemon.http_address) as http:
                http.create_topic("t")
                http.create_channel("t", "a")
                http.create_channel("t", "b")
        wait_for(lambda: len(client.lookup("t", missing_ok=True).producers) == 2, "both nsqds registered")
        handlers = {"a": Collector(total), "b": Collector(total)}
        readers = [
            Reader("t", channel, handler, lookupd_http_addresses=lookupd.http_address, max_in_flight=20)
            for channel, handler in handlers.items()
            for _ in range(2)
        ]
        for reader in readers:
            reader.start()
        with Producer([one.tcp_address, two.tcp_address]) as producer:
            for number in range(total):
                producer.publish("t", b"%d" % number)
        for channel, handler in handlers.items():
            assert handler.enough.wait(PATIENCE)
            for daemon in (one, two):
                wait_for(partial(finished, daemon, channel=channel))
        for reader in readers:
            assert reader.stop() == 0
    for handler in handlers.values():
        assert handler.bodies == Counter(b"%d" % number for number in range(total))
        assert {message.nsqd_address for message in handler.messages} == {one.tcp_address, two.tcp_address}


@pytest.mark.parametrize(
    "how", ["raise", "return False", "Requeue", "requeue itself", "gevent.Timeout", "GreenletExit"]
)
def test_a_handler_that_fails_gets_the_message_again(nsqd, how):
    attempts = []
    done = Event()

    def handler(message):
        attempts.append(message.attempts)
        if message.attempts > 1:
            done.set()
            return None
        if how == "return False":
            return False
        if how == "Requeue":
            raise Requeue(delay=0)
        if how == "requeue itself":
            message.requeue(0)
        elif how == "gevent.Timeout":
            raise gevent.Timeout(1)
        elif how == "GreenletExit":
            raise gevent.GreenletExit
        else:
            raise RuntimeError("meant")
        return None

    reader = Reader(
        "t",
        "c",
        handler,
        nsqd_tcp_addresses=nsqd.tcp_address,
        default_requeue_delay=0,
        max_backoff_duration=0,
    )
    with Producer(nsqd.tcp_address) as producer, reader:
        producer.publish("t", b"x")
        assert done.wait(PATIENCE)
        wait_for(lambda: reader.stats()["finished"] == 1)
        wait_for(lambda: finished(nsqd))
    assert attempts == [1, 2]
    assert reader.stats()["requeued"] == 1


def test_a_deferred_message_comes_when_it_is_due(nsqd):
    handler = Collector(1)
    with (
        Producer(nsqd.tcp_address) as producer,
        Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address),
    ):
        wait_for(lambda: channel_stats(nsqd))
        producer.publish("t", b"later", defer=60)
        wait_for(lambda: channel_stats(nsqd)["deferred_count"] == 1)
        producer.publish("t", b"soon", defer=0.2)
        assert handler.enough.wait(PATIENCE)
    assert handler.bodies == Counter([b"soon"])


def test_the_pulled_form(nsqd):
    with Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("t", [b"%d" % number for number in range(20)])
    reader = Reader("t", "c", nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=5, max_backoff_duration=0)
    seen = []
    for message in reader:
        with message:
            if message.body == b"7" and message.attempts == 1:
                raise Requeue(delay=0)
            seen.append(message.body)
        if len(seen) == 20:
            break
    wait_for(lambda: finished(nsqd))
    reader.stop()
    assert sorted(seen) == sorted(b"%d" % number for number in range(20))


def test_a_reader_can_be_paused_resumed_and_started_again(nsqd):
    handler = Collector(1)
    reader = Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address)
    with Producer(nsqd.tcp_address) as producer:
        reader.pause()
        reader.start()
        wait_for(lambda: channel_stats(nsqd))
        producer.publish("t", b"one")
        wait_for(lambda: channel_stats(nsqd)["depth"] == 1)
        assert not handler.messages
        reader.resume()
        assert handler.enough.wait(PATIENCE)
        reader.stop()
        handler.expected, handler.enough = 2, Event()
        producer.publish("t", b"two")
        with reader:
            assert handler.enough.wait(PATIENCE)
    assert handler.bodies == Counter([b"one", b"two"])


def test_a_refused_publish_carries_nsqds_words_and_the_producer_goes_on(kind):
    with (
        running_nsqd(kind, max_msg_size=100) as nsqd,
        Producer(nsqd.tcp_address) as producer,
    ):
        with pytest.raises(PublishRefused) as caught:
            producer.publish("t", bytes(200))
        assert caught.value.error.code == "E_BAD_MESSAGE"
        producer.publish("t", b"small")


def test_one_process_carries_many_readers_and_producers(nsqd):
    topics = [f"topic-{number}" for number in range(10)]
    handlers = {topic: Collector(20) for topic in topics}
    readers = [
        Reader(topic, "c", handlers[topic], nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=3) for topic in topics
    ]
    for reader in readers:
        reader.start()

    def publish(topic):
        with Producer(nsqd.tcp_address) as producer:
            for number in range(20):
                producer.publish(topic, b"%d" % number)

    gevent.joinall([gevent.spawn(publish, topic) for topic in topics], raise_error=True, timeout=PATIENCE)
    for topic in topics:
        assert handlers[topic].enough.wait(PATIENCE)
        assert handlers[topic].bodies == Counter(b"%d" % number for number in range(20))
    for reader in readers:
        assert reader.stop() == 0
