"""Batches: when they are due, how they are answered, and that nothing is lost on the way."""

import contextlib
import time
from collections import Counter

import gevent
import pytest
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like import Batch, Message, Producer, Reader
from gnsq_like.errors import InvalidOption
from gnsq_like.reader.handlers import Handlers
from gnsq_like.runtime.control_loop import ControlLoop
from tests.support.daemons import running_nsqd, wait_for
from tests.support.hub import settle
from tests.support.messages import Source, make_message
from tests.support.peer import scripted_nsqd
from tests.support.reading import answer_cls, channel_stats, finished, serve, until

#: An interval that no test waits for.
NEVER = 600.0


class Sizes(list[int]):
    """A handler that keeps the sizes of its batches, and what was in them."""

    def __init__(self):
        super().__init__()
        self.bodies: Counter[bytes] = Counter()

    def __call__(self, messages):
        self.append(len(messages))
        self.bodies.update(message.body for message in messages)


@pytest.fixture
def nsqd():
    with running_nsqd() as daemon:
        yield daemon


def bodies(count):
    return [b"%d" % number for number in range(count)]


def batch_reader(nsqd, batch, **options):
    options = {"default_requeue_delay": 0, "max_backoff_duration": 0} | options
    return Reader("t", "c", batch, nsqd_tcp_addresses=nsqd.tcp_address, **options)


def test_a_backlog_comes_in_full_batches(nsqd):
    handler = Sizes()
    with Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("t", bodies(1000))
        with batch_reader(nsqd, Batch(handler, 50, 0.3), max_in_flight=200, concurrency=1) as reader:
            wait_for(lambda: reader.stats()["finished"] == 1000)
    assert handler.bodies == Counter(bodies(1000))
    assert max(handler) == 50
    assert len(handler) <= 40


@pytest.mark.parametrize("max_in_flight", [1, 2, 20])
def test_a_window_smaller_than_the_batch_is_flushed_when_it_is_full(nsqd, max_in_flight):
    handler = Sizes()
    total = max_in_flight * 5
    with Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("t", bodies(total))
        with batch_reader(nsqd, Batch(handler, 100, 0.5), max_in_flight=max_in_flight) as reader:
            wait_for(lambda: reader.stats()["finished"] == total)
    assert handler.bodies == Counter(bodies(total))
    assert max(handler) <= max_in_flight
    assert max(handler) >= int(0.85 * max_in_flight)


def test_what_came_within_the_interval_is_a_batch():
    handler = Sizes()
    with scripted_nsqd() as server, scripted_reader(server, handler, size=100, interval=0.4) as reader:
        peer = serve(server)
        began = time.monotonic()
        peer.messages(*ids(7))  # in one write: a machine may stand still between two of them
        wait_for(lambda: reader.stats()["finished"] == 7)
        assert time.monotonic() - began >= 0.4
        gevent.spawn(answer_cls, peer)
    assert handler == [7]


def test_a_batch_does_not_wait_for_long_where_msg_timeout_is_short(nsqd):
    handler = Sizes()
    with Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("t", bodies(5))
        with batch_reader(nsqd, Batch(handler, 100, NEVER), max_in_flight=200, msg_timeout=1) as reader:
            wait_for(lambda: finished(nsqd) and handler)
    # Where this process stands still for a second, they come twice.
    assert set(handler.bodies) == set(bodies(5))
    assert reader.stats()["finished"] == handler.bodies.total()


def test_batches_run_side_by_side_as_concurrency_says(nsqd):
    inside: list[list[Message]] = []
    most: list[int] = []
    gate = Event()

    def handler(messages):
        inside.append(messages)
        most.append(len(inside))
        gate.wait()
        inside.remove(messages)

    with Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("t", bodies(100))
        with (
            batch_reader(nsqd, Batch(handler, 10, NEVER), max_in_flight=100, concurrency=3) as reader,
            contextlib.ExitStack() as stack,
        ):
            stack.callback(gate.set)  # a Reader that stops waits for its handlers
            wait_for(lambda: len(inside) == 3)
            wait_for(lambda: reader.stats()["waiting"] == 70)
            assert reader.stats()["busy"] == 3
            gate.set()
            wait_for(lambda: reader.stats()["finished"] == 100)
    assert max(most) == 3


def test_one_batch_may_serve_several_readers(nsqd):
    handler = Sizes()
    batch = Batch(handler, 10, 0.1)
    readers = [Reader("t", channel, batch, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=20) for channel in "ab"]
    with Producer(nsqd.tcp_address) as producer:
        for reader in readers:
            reader.start()
        wait_for(lambda: all(channel_stats(nsqd, channel=channel) for channel in "ab"))
        producer.multi_publish("t", bodies(20))
        wait_for(lambda: [reader.stats()["finished"] for reader in readers] == [20, 20])
        for reader in readers:
            assert reader.stop() == 0
    assert handler.bodies == Counter(bodies(20) * 2)
    assert "size=10" in repr(batch)


# -- answers ----------------------------------------------------------------------------------------


def test_a_failing_batch_is_one_failure_for_backoff(nsqd):
    levels = []

    def handler(messages):
        if messages[0].attempts == 1:
            raise RuntimeError("meant")

    with Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("t", bodies(10))
        reader = batch_reader(
            nsqd,
            Batch(handler, 10, 1.0),
            max_in_flight=50,
            max_backoff_duration=1,
            backoff_multiplier=0.01,
            on_backoff=lambda level, seconds: levels.append(level),
        )
        with reader:
            wait_for(lambda: reader.stats()["finished"] == 10)
    assert levels == [1, 0]


def test_messages_answered_by_the_handler_itself_are_left_alone():
    kept: list[Message] = []

    def handler(messages):
        messages[0].finish()
        messages[1].requeue(0, backoff=False)
        messages[2].enable_async()
        kept.append(messages[2])
        messages.clear()  # the list is the handler's own

    zero, one, two, three = ids(4)
    with scripted_nsqd() as server, scripted_reader(server, handler, size=4, adaptive_rdy=False) as reader:
        peer = server.accept()
        peer.subscribe()
        until(peer, b"RDY 100")
        peer.messages(zero, one, two, three)
        assert {peer.line() for _ in range(3)} == {b"FIN " + zero, b"REQ " + one + b" 0", b"FIN " + three}
        assert reader.stats()["in_flight"] == 1
        assert not kept[0].has_responded
        kept[0].finish()
        assert peer.line() == b"FIN " + two
        gevent.spawn(answer_cls, peer)


def test_messages_delivered_too_often_are_given_up_one_by_one(nsqd):
    given_up = []

    def handler(messages):
        raise RuntimeError("meant")

    with Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("t", bodies(10))
        reader = batch_reader(
            nsqd,
            Batch(handler, 10, 0.1),
            max_in_flight=50,
            max_attempts=1,
            on_giving_up=lambda message: given_up.append(message.body),
        )
        with reader:
            wait_for(lambda: reader.stats()["finished"] == 10)
    assert sorted(given_up) == bodies(10)


def ids(count):
    return [b"%016d" % number for number in range(count)]


def scripted_reader(server, handler, size=10, interval=NEVER, **options):
    options = {"max_in_flight": 100} | options
    return Reader("t", "c", Batch(handler, size, interval), nsqd_tcp_addresses=server.address, **options)


def test_the_answers_of_a_batch_leave_in_one_write():
    with scripted_nsqd() as server, scripted_reader(server, lambda messages: None) as reader:
        peer = server.accept()
        peer.subscribe()
        assert peer.line().startswith(b"RDY")
        peer.messages(*ids(10))
        data = b""
        while b"FIN" not in data:
            data = peer.sock.recv(65536)
        assert [line for line in data.split(b"\n") if line.startswith(b"FIN")] == [b"FIN " + each for each in ids(10)]
        peer.close()
        wait_for(lambda: not reader.stats()["connections"])


# -- ends -------------------------------------------------------------------------------------------


def test_at_a_stop_what_waits_is_requeued_and_what_runs_may_end(nsqd):
    seen: Counter[bytes] = Counter()
    gate = Event()

    def handler(messages):
        seen.update(message.body for message in messages)
        gate.wait()

    with Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("t", bodies(15))
        reader = batch_reader(nsqd, Batch(handler, 10, NEVER), max_in_flight=50)
        reader.start()
        wait_for(lambda: reader.stats()["busy"] == 1 and reader.stats()["waiting"] == 5)
        stopping = gevent.spawn(reader.stop, 60)
        wait_for(lambda: reader.stats()["requeued"] == 5)
        gate.set()
        assert stopping.get(timeout=60) == 0
        assert reader.stats()["finished"] == 10
        wait_for(lambda: channel_stats(nsqd)["depth"] == 5)
        with batch_reader(nsqd, Batch(handler, 5, NEVER), max_in_flight=50) as again:
            wait_for(lambda: again.stats()["finished"] == 5)
    assert seen == Counter(bodies(15))


def test_a_batch_that_outlives_the_stop_is_killed_and_comes_again(nsqd):
    seen: Counter[bytes] = Counter()
    ended: list[int] = []

    def handler(messages):
        seen.update(message.body for message in messages)
        try:
            gevent.sleep(NEVER)  # until it is killed
        finally:
            ended.append(len(messages))

    with Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("t", bodies(10))
        reader = batch_reader(nsqd, Batch(handler, 10, NEVER), max_in_flight=50)
        reader.start()
        wait_for(lambda: reader.stats()["busy"] == 1)
        assert reader.stop(0.05) == 10
        assert ended == [10]
        wait_for(lambda: channel_stats(nsqd)["depth"] == 10)


def test_messages_of_a_lost_connection_leave_the_batch_and_the_others_stay():
    handler = Sizes()
    with scripted_nsqd() as one, scripted_nsqd() as two:
        reader = Reader("t", "c", Batch(handler, 10, NEVER), nsqd_tcp_addresses=[one.address, two.address])
        reader.max_in_flight = 100
        with reader:
            peers = [server.accept() for server in (one, two)]
            for peer in peers:
                peer.subscribe()
            peers[0].messages(*ids(4), body=b"lost")
            peers[1].messages(*ids(4), body=b"kept")
            wait_for(lambda: reader.stats()["waiting"] == 8)
            peers[0].reset()
            wait_for(lambda: reader.stats()["in_flight"] == 4)
            wait_for(lambda: reader.stats()["waiting"] == 4)
            peers[1].messages(*(each.replace(b"0", b"a") for each in ids(6)), body=b"kept")
            wait_for(lambda: handler)
            for peer in peers:
                peer.close()
    assert handler == [10]
    assert handler.bodies == Counter({b"kept": 10})


# -- arguments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ({"handler": None}, "handler"),
        ({"size": 0}, "size"),
        ({"size": True}, "size"),
        ({"size": 2.5}, "size"),
        ({"interval": 0}, "interval"),
        ({"interval": -1}, "interval"),
        ({"interval": "1"}, "interval"),
        ({"interval": float("inf")}, "interval"),
        ({"interval": float("nan")}, "interval"),
    ],
)
def test_wrong_arguments_are_refused(arguments, option):
    with pytest.raises(InvalidOption) as caught:
        Batch(**{"handler": print, **arguments})
    assert caught.value.option == option


# -- without connections ----------------------------------------------------------------------------


@given(
    size=st.integers(1, 7),
    concurrency=st.integers(1, 3),
    passes=st.lists(st.integers(0, 20), max_size=8),
    ends=st.lists(st.sampled_from(["return", "raise", "False", "block"]), max_size=10),
    starved=st.lists(st.booleans(), min_size=1, max_size=10),
    overdue=st.sets(st.integers(0, 60), max_size=5),
    together=st.booleans(),
)
def test_every_message_is_answered_once_whatever_happens(size, concurrency, passes, ends, starved, overdue, together):
    source = Source()
    handled: list[str] = []
    sizes: list[int] = []
    gates: list[Event] = []
    coming_ends, coming_starved = iter(ends), iter(starved)

    def handler(messages):
        handled.extend(message.id for message in messages)
        sizes.append(len(messages))
        end = next(coming_ends, "return")
        if end == "block":
            gates.append(Event())
            gates[-1].wait()
        elif end == "raise":
            raise RuntimeError("meant")
        return end != "False"

    loop = ControlLoop("t/c", lambda: None)
    loop.start()
    batch = Batch(handler, size, NEVER)
    reader = Reader("t", "c", batch, nsqd_tcp_addresses="127.0.0.1:1", concurrency=concurrency)
    handlers = Handlers(reader._setup, lambda: next(coming_starved, False), loop)
    number = 0
    for count in passes:
        messages = []
        for _ in range(count):
            message = make_message(message_id=b"%016d" % number, source=source)
            message.is_overdue = number in overdue
            messages.append(message)
            number += 1
        if together:
            handlers.put(messages)
        else:
            for message in messages:
                handlers.put([message])
        settle()
        assert handlers.busy <= concurrency
        assert handlers.waiting < size or handlers.busy == concurrency
        if gates:
            gates.pop(0).set()
    settle()
    while gates:  # a batch that is let go makes room for one that may block
        gates.pop(0).set()
        settle()
    left = [message.id for message in handlers.close()]
    handlers.kill()
    loop.stop()
    everything = [*(each for _, each, *_ in source.answers), *left]
    assert Counter(everything) == Counter(f"{each:016d}" for each in range(number))
    assert Counter(handled) == Counter(source.ids("finish") + source.ids("requeue"))
    assert len(left) < size
    assert max(sizes, default=1) <= size
    assert handled == sorted(handled)
