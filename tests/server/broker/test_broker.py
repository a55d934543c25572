"""The broker without I/O and with a clock that the test moves."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gnsq_like.errors import InvalidOption
from gnsq_like.server.broker.broker import Broker
from gnsq_like.server.broker.channel import (
    ELSEWHERE,
    SAME_REGION,
    SAME_ZONE,
    Channel,
    Consumer,
)
from gnsq_like.server.broker.message import Message
from gnsq_like.server.broker.queues import OverflowQueue, Queue, QueueMaker
from gnsq_like.server.broker.topic import Topic
from gnsq_like.server.daemon_options import NsqdOptions, default_node_id
from gnsq_like.server.storage.disk_queue import DiskQueue
from tests.support.files import memory_directory
from tests.support.scale import share_of

#: A client that the broker only passes on.
NOBODY: Any = None

WALL_NS = 1_795_230_760_000_000_000


def waiting(channel: Channel) -> list[Message]:
    """The content of a channel's queue, without changing it."""
    messages = channel.queue.take(len(channel.queue), 1 << 30)
    channel.queue.put(messages)
    return messages


class World:
    """A broker, its clock, and the deliveries."""

    def __init__(self, make_queue: QueueMaker | None = None, **options: float) -> None:
        self.now = 1000.0
        self.notes = 0
        self.changes: list[tuple[str, str | None, bool]] = []
        checked = NsqdOptions(node_id=1, **options)  # type: ignore[arg-type]
        self.broker = Broker(checked, self._note, self._change, make_queue=make_queue)

    def _note(self) -> None:
        self.notes += 1

    def _change(self, topic: Topic, channel: Channel | None, exists: bool) -> None:
        self.changes.append((topic.name, channel.name if channel else None, exists))

    def publish(self, *bodies: bytes, topic: str = "t", defer: float = 0.0) -> Topic:
        found = self.broker.topic(topic)
        found.publish(list(bodies), defer, self.now, WALL_NS)
        return found

    def subscribe(
        self, channel: str = "c", topic: str = "t", rdy: int = 0, sample_rate: int = 0, distance: int = ELSEWHERE
    ) -> Consumer:
        consumer = self.broker.subscribe(topic, channel, NOBODY, 60.0, sample_rate, self.now, distance)
        consumer.set_ready(rdy)
        return consumer

    def work(self, seconds: float = 0.0) -> list[tuple[Consumer, bytes]]:
        """Move the clock and let the broker work; returns which client gets which body."""
        self.now += seconds
        return [(consumer, message.body) for consumer, messages in self.broker.work(self.now) for message in messages]


def test_one_call_does_a_part_of_much_work_and_asks_for_another() -> None:
    world = World(max_rdy_count=10_000)
    names = ["a", "b", "c"]
    consumers = [world.subscribe(name, rdy=5000) for name in names]
    world.publish(*[b"x"] * 3000)
    calls: list[list[tuple[Consumer, bytes]]] = []
    while True:
        world.notes = 0
        calls.append(world.work())
        if not world.notes:
            break
    assert max(map(len, calls)) <= 1000
    # No channel waits until another has all.
    assert {consumer for call in calls[:3] for consumer, _ in call} == set(consumers)
    assert Counter(consumer for call in calls for consumer, _ in call) == dict.fromkeys(consumers, 3000)
    for consumer in consumers:
        consumer.set_ready(0)
    world.now += 60.0
    before = len(waiting(consumers[0].channel))
    world.work()
    assert before == 0
    assert 0 < sum(len(waiting(consumer.channel)) for consumer in consumers) < 9000
    assert world.broker.next_due is not None and world.broker.next_due <= world.now


@pytest.mark.parametrize("first_is", ["in flight", "deferred"])
def test_a_second_record_of_a_message_does_not_take_the_place_of_the_first(first_is: str) -> None:
    """After a kill, the disk may have several."""
    world = World()
    consumer = world.subscribe(rdy=2)
    channel = consumer.channel
    world.publish(b"a")
    [first] = waiting(channel)
    second = first.copy()
    assert world.work() == [(consumer, b"a")]
    if first_is == "deferred":
        assert channel.requeue(consumer, second.id, 5.0, world.now) is None
    channel.put([second], world.now, False)
    assert world.work() == []
    if first_is == "deferred":
        assert world.work(5) == [(consumer, b"a")]
    assert channel.finish(consumer, [second.id]) == []
    assert (consumer.in_flight_count, len(channel.queue), channel.deferred) == (0, 0, {})


def test_work_is_noted_once_until_it_is_done() -> None:
    world = World()
    consumer = world.subscribe(rdy=1)
    world.publish(b"a")
    world.publish(b"b")
    assert world.notes == 1
    assert world.work() == [(consumer, b"a")]
    world.publish(b"c")
    assert world.notes == 2


def test_the_next_deadline_is_known() -> None:
    world = World()
    assert world.broker.next_due is None
    consumer = world.subscribe(rdy=2)
    world.publish(b"a")
    world.publish(b"b", defer=5)
    world.work()
    assert world.broker.next_due == world.now + 5
    assert world.work(5) == [(consumer, b"b")]
    assert world.broker.next_due == world.now + 55
    consumer.channel.finish(consumer, list(consumer.channel.in_flight))
    assert world.work(55) == []


def test_messages_are_dealt_evenly_and_in_turns() -> None:
    world = World()
    consumers = [world.subscribe(rdy=100) for _ in range(3)]
    world.publish(*[b"%d" % n for n in range(90)])
    assert Counter(consumer for consumer, _ in world.work()) == dict.fromkeys(consumers, 30)
    for _ in range(9):
        world.publish(b"x")
        world.work()
    assert [consumer.in_flight_count for consumer in consumers] == [33, 33, 33]


def test_messages_go_to_the_nearest_consumers_that_are_ready() -> None:
    world = World()
    far, region, near, beside = (
        world.subscribe(rdy=2, distance=d) for d in (ELSEWHERE, SAME_REGION, SAME_ZONE, SAME_ZONE)
    )
    world.publish(*[b"%d" % n for n in range(3)])
    assert Counter(consumer for consumer, _ in world.work()) == {near: 2, beside: 1}
    world.publish(*[b"%d" % n for n in range(4)])
    assert Counter(consumer for consumer, _ in world.work()) == {beside: 1, region: 2, far: 1}
    assert near.channel.taken_counts == [4, 2, 1]


def test_big_messages_are_dealt_in_portions_that_show_whether_connections_take_them() -> None:
    world = World()
    consumer = world.subscribe(rdy=100)
    world.publish(*[b"x" * 1_000_000] * 20)
    assert len(world.work()) == 5
    assert world.notes == 2
    consumer.set_held_up(True)
    assert world.work() == []
    consumer.set_held_up(False)
    assert [len(world.work()) for _ in range(4)] == [5, 5, 5, 0]


def test_a_consumer_that_is_held_up_leaves_its_share_to_others() -> None:
    world = World()
    slow, quick = world.subscribe(rdy=10), world.subscribe(rdy=10)
    slow.set_held_up(True)
    world.publish(*[b"x"] * 15)
    assert Counter(consumer for consumer, _ in world.work()) == {quick: 10}
    slow.set_held_up(False)
    assert Counter(consumer for consumer, _ in world.work()) == {slow: 5}


def test_a_touched_message_times_out_when_it_should_and_once() -> None:
    world = World(max_msg_timeout=100.0)
    consumer = world.subscribe(rdy=1)
    world.publish(b"a")
    world.work()
    (message_id,) = consumer.channel.in_flight
    for seconds, times_out in ((50, False), (49, False), (1, True), (10, False)):
        got = world.work(seconds)
        assert got == ([(consumer, b"a")] if times_out else [])
        if not times_out:
            consumer.channel.touch(consumer, message_id, world.now)
    assert consumer.channel.timeout_count == 1


def test_sampling_keeps_what_a_random_number_allows() -> None:
    numbers = iter([0.0, 0.209, 0.21, 0.99])
    broker = Broker(NsqdOptions(), random=lambda: next(numbers))
    consumer = broker.subscribe("t", "c", NOBODY, 60.0, 20, 0.0)
    consumer.set_ready(10)
    broker.topic("t").publish([b"kept", b"kept too", b"gone", b"gone too"], 0.0, 0.0, WALL_NS)
    ((_, messages),) = broker.work(0.0)
    assert [message.body for message in messages] == [b"kept", b"kept too"]
    assert (consumer.channel.depth, consumer.in_flight_count) == (0, 2)


def test_an_ephemeral_queue_overflows_after_the_consumers_have_taken_theirs() -> None:
    world = World(mem_queue_size=2)
    consumer = world.subscribe("c#ephemeral", rdy=1)
    world.subscribe("durable")
    world.publish(*[b"%d" % n for n in range(10)])
    assert world.work() == [(consumer, b"0")]
    assert [message.body for message in waiting(consumer.channel)] == [b"1", b"2"]
    assert world.broker.topics["t"].channels["durable"].depth == 10
    assert consumer.channel.message_count == 10


def test_who_is_told_of_what_comes_and_goes() -> None:
    world = World()
    world.publish(b"a")
    consumer = world.subscribe("c#ephemeral", topic="e#ephemeral")
    world.broker.unsubscribe(consumer)
    world.broker.unsubscribe(consumer)
    assert world.changes == [
        ("t", None, True),
        ("e#ephemeral", None, True),
        ("e#ephemeral", "c#ephemeral", True),
        ("e#ephemeral", "c#ephemeral", False),
        ("e#ephemeral", None, False),
    ]
    assert list(world.broker.topics) == ["t"]


def test_a_topic_on_hold_keeps_its_messages_until_its_channels_are_there() -> None:
    world = World()
    topic = world.broker.topic("t")
    topic.set_held(True, world.now)
    consumer = world.subscribe(rdy=5)
    world.publish(b"a")
    assert world.work() == []
    other = world.broker.channel(topic, "other", world.now)
    topic.set_held(False, world.now)
    assert world.work() == [(consumer, b"a")]
    assert other.depth == 1


def test_finished_messages_leave_nothing_behind() -> None:
    world = World()
    consumer = world.subscribe(rdy=1001)
    world.publish(b"kept")
    world.work()
    (kept,) = consumer.channel.in_flight
    for _ in range(100):
        world.publish(*[b"x"] * 1000)
        world.work(0.001)
        consumer.channel.finish(consumer, [each for each in consumer.channel.in_flight if each != kept])
    assert world.broker._schedule._size < 20_000  # of 100,001 deadlines
    assert world.work(60) == [(consumer, b"kept")]


def test_options_and_the_default_node_id() -> None:
    assert default_node_id("vm") == 617  # seen from a real nsqd
    with pytest.raises(InvalidOption, match="node_id=1024"):
        NsqdOptions(node_id=1024)


class Bookkeeping(RuleBasedStateMachine):
    """In any sequence of calls, every message of a channel is in exactly one place, and the counters agree."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.make_queue, mem_queue_size=5, max_msg_timeout=90.0)
        self.consumers: list[Consumer] = []
        #: For each channel ever made: the ids it was given and has not finished or dropped.
        self.alive: dict[Channel, set[bytes]] = {}

    #: None for queues in memory.
    make_queue: QueueMaker | None = None

    def _settle(self) -> None:
        """Record what the topics have moved to their channels, before anything can leave them."""
        for topic in self.world.broker.topics.values():
            for channel in topic.channels.values():
                known = self.alive.setdefault(channel, set())
                known |= {message.id for message in waiting(channel)} | set(channel.deferred)

    @rule(count=st.integers(1, 5), defer=st.sampled_from([0.0, 0.0, 30.0]))
    def publish(self, count: int, defer: float) -> None:
        self.world.publish(*[b"x"] * count, defer=defer)
        self._settle()

    @rule(channel=st.sampled_from(["c", "d"]), rdy=st.integers(0, 4))
    def subscribe(self, channel: str, rdy: int) -> None:
        if len(self.consumers) < 4:
            self.consumers.append(self.world.subscribe(channel, rdy=rdy))
            self._settle()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(self.consumers))
        self.consumers.remove(consumer)
        self.world.broker.unsubscribe(consumer)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), rdy=st.integers(0, 4))
    def ready(self, data: st.DataObject, rdy: int) -> None:
        data.draw(st.sampled_from(self.consumers)).set_ready(rdy)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), held_up=st.booleans())
    def hold_up(self, data: st.DataObject, held_up: bool) -> None:
        data.draw(st.sampled_from(self.consumers)).set_held_up(held_up)

    @precondition(lambda self: any(consumer.channel.in_flight for consumer in self.consumers))
    @rule(data=st.data(), answer=st.sampled_from(["finish", "requeue", "defer", "touch"]))
    def answer(self, data: st.DataObject, answer: str) -> None:
        consumer = data.draw(st.sampled_from([each for each in self.consumers if each.channel.in_flight]))
        channel = consumer.channel
        message_id = data.draw(st.sampled_from(sorted(channel.in_flight)))
        if answer == "finish":
            if not channel.finish(consumer, [message_id]):
                self.alive[channel].remove(message_id)
        elif answer == "touch":
            channel.touch(consumer, message_id, self.world.now)
        else:
            channel.requeue(consumer, message_id, 20.0 if answer == "defer" else 0.0, self.world.now)

    @rule(seconds=st.sampled_from([0.0, 1.0, 20.0, 61.0]))
    def work(self, seconds: float) -> None:
        world = self.world
        world.work(seconds)
        for channel in self.alive:
            if len(channel.queue):
                assert not [consumer for consumer in channel.consumers if consumer.room() > 0]
            for message in [*channel.in_flight.values(), *channel.deferred.values()]:
                assert message.due > world.now
                assert world.broker.next_due is not None and world.broker.next_due <= message.due

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), what=st.sampled_from(["pause", "unpause", "empty"]))
    def manage(self, data: st.DataObject, what: str) -> None:
        channel = data.draw(st.sampled_from(sorted(self.alive, key=lambda channel: channel.name)))
        if what == "empty":
            channel.empty()
            self.alive[channel].clear()
        else:
            channel.set_paused(what == "pause")

    @rule(paused=st.booleans())
    def pause_topic(self, paused: bool) -> None:
        if "t" in self.world.broker.topics:
            self.world.broker.topics["t"].set_paused(paused, self.world.now)
            self._settle()

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        for channel, alive in self.alive.items():
            places = [message.id for message in waiting(channel)] + list(channel.in_flight) + list(channel.deferred)
            assert sorted(places) == sorted(alive)

    @invariant()
    def counters_say_what_is(self) -> None:
        for consumer in self.consumers:
            owned = [message for message in consumer.channel.in_flight.values() if message.owner is consumer]
            assert consumer.in_flight_count == len(owned)
            assert consumer.message_count >= consumer.finish_count + consumer.requeue_count


class BookkeepingOnDisk(Bookkeeping):
    """The same when most of the messages are on disk."""

    def __init__(self) -> None:
        self._directory = memory_directory()
        super().__init__()

    def make_queue(self, name: str, ephemeral: bool) -> Queue:
        disk = DiskQueue(self._directory.name, name, max_bytes_per_file=200)
        return OverflowQueue(disk, 2, lambda error: None, lambda queue: None)

    def teardown(self) -> None:
        self.world.broker.close()
        self._directory.cleanup()


TestBookkeepingOnDisk = BookkeepingOnDisk.TestCase
TestBookkeepingOnDisk.settings = settings(max_examples=share_of(60), stateful_step_count=40, deadline=None)

TestBookkeeping = Bookkeeping.TestCase
TestBookkeeping.settings = settings(max_examples=share_of(200), stateful_step_count=40, deadline=None)
