"""Which nsqd gets the next publish, who waits for room, and what goes again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from gnsq_like import Producer
from gnsq_like.errors import NotSent, NSQError, OutcomeUnknown, PublishRefused
from gnsq_like.testing.proxy import FaultProxy
from tests.simulation import Cluster, simulated
from tests.support.daemons import running_nsqd, wait_for
from tests.support.hub import settle
from tests.support.nsqds import answer_all, answer_one, failures, good_nsqd, identified, nowhere, run_out_of_time
from tests.support.peer import OK, PATIENCE, ScriptedNsqd, scripted_nsqd

Make = Callable[..., Producer]


def test_no_room_in_time(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address, max_pending_count=1)
    first = gevent.spawn(producer.publish, "t", b"first")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"first")
    second = gevent.spawn(producer.publish, "t", b"second", timeout=PATIENCE / 2)
    wait_for(lambda: producer.stats()["waiting"])
    run_out_of_time(producer, PATIENCE / 2)
    with pytest.raises(NotSent, match="no room"):
        second.get(timeout=PATIENCE)
    peer.send(OK)
    first.get(timeout=PATIENCE)
    third = gevent.spawn(producer.publish, "t", b"third")
    assert (peer.line(), peer.body()) == (b"PUB t", b"third")
    peer.send(OK)
    third.get(timeout=PATIENCE)


def test_what_waits_at_the_end_was_not_sent(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    result = producer.publish_async("t", b"x")
    nsqd.accept()
    producer.close(timeout=0)
    with pytest.raises(NotSent, match="the Producer was closed before this was sent"):
        result.get(timeout=PATIENCE)


def test_the_others_take_turns_beside_one_that_is_gone(make: Make) -> None:
    with good_nsqd() as one, good_nsqd() as two:
        producer = make(one.address, two.address, nowhere())
        producer.publish("t", b"x")
        wait_for(
            lambda: [each["connected"] for each in producer.stats()["connections"].values()] == [True, True, False]
        )
        before = len(one.bodies), len(two.bodies)
        for _ in range(10):
            producer.publish("t", b"x")
        assert (len(one.bodies) - before[0], len(two.bodies) - before[1]) == (5, 5)


def test_those_who_wait_for_room_go_in_their_order(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address, max_pending_count=2)
    waiting = [gevent.spawn(producer.publish, "t", b"%d" % number) for number in range(20)]
    peer = identified(nsqd)
    for number in range(20):
        assert (peer.line(), peer.body()) == (b"PUB t", b"%d" % number)
        peer.send(OK)
    gevent.joinall(waiting, raise_error=True, timeout=PATIENCE)


def test_publishes_go_to_the_nsqds_in_turn_and_many_of_one_moment_in_groups() -> None:
    with contextlib.ExitStack() as stack:
        nsqds = [stack.enter_context(scripted_nsqd()) for _ in range(9)]
        producer = stack.enter_context(Producer([each.address for each in nsqds], own_thread=False))
        first = producer.publish_async("t", b"first")
        bodies: list[list[bytes]] = [[] for _ in nsqds]
        for nsqd, taken in zip(nsqds, bodies, strict=True):
            gevent.spawn(answer_all, identified(nsqd), taken)
        first.get(timeout=PATIENCE)
        wait_for(lambda: all(each["connected"] for each in producer.stats()["connections"].values()))
        for taken in bodies:
            taken.clear()
        for _ in range(18):
            producer.publish("t", b"x")
        assert [len(taken) for taken in bodies] == [2] * 9

        for taken in bodies:
            taken.clear()
        results = [producer.publish_async("t", b"%d" % number) for number in range(47)]
        for result in results:
            result.get(timeout=PATIENCE)
        got = sorted([int(body) for body in taken] for taken in bodies if taken)
        assert got == [[0], [1], [2], [*range(3, 15)], [*range(15, 31)], [*range(31, 47)]]


def test_groups_go_to_all_nsqds_alike(make: Make) -> None:
    with contextlib.ExitStack() as stack:
        nsqds = [stack.enter_context(good_nsqd()) for _ in range(12)]
        producer = make(*[each.address for each in nsqds], own_thread=False)
        producer.publish("t", b"first")
        wait_for(lambda: all(each["connected"] for each in producer.stats()["connections"].values()))
        for _ in range(100):  # each time one to four nsqds, and six to a group
            for result in [producer.publish_async("t", b"x") for _ in range(10)]:
                result.get(timeout=PATIENCE)
        # 83 are expected, and 17 is the standard deviation; three of them would get 233.
        assert all(15 < len(each.bodies) < 170 for each in nsqds)


def test_publish_async_waits_when_too_much_waits_already(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address, max_pending_count=10)
    results = [producer.publish_async("t", b"%d" % number) for number in range(10)]
    late = gevent.spawn(producer.publish_async, "t", b"10")
    peer = nsqd.accept()
    settle()
    assert not late.ready()
    peer.identify(version="1.3.0")
    results.append(late.get(timeout=PATIENCE))
    for number in range(11):
        assert (peer.line(), peer.body()) == (b"PUB t", b"%d" % number)
        peer.send(OK)
    for result in results:
        result.get(timeout=PATIENCE)


def test_publish_async_without_room_in_time(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address, max_pending_count=1, timeout=0.2)
    results = [producer.publish_async("t", b"%d" % number) for number in range(2)]
    for result in results:
        with pytest.raises(NotSent):
            result.get(timeout=PATIENCE)


@simulated()
def test_publish_async_waits_in_the_same_queue_as_others(cluster: Cluster) -> None:
    producer = cluster.producer(max_pending_count=2, own_thread=False)
    cluster.world.network.latency = 0.01
    stopped = False

    def publish_on() -> None:
        while not stopped:
            producer.publish("t", b"x")

    callers = [gevent.spawn(publish_on) for _ in range(20)]
    cluster.sleep(1)
    began = cluster.now
    producer.publish_async("t", b"async").get()
    assert cluster.now - began < 0.5, "twenty before it, two in each round trip of 20 ms"
    stopped = True
    gevent.joinall(callers, raise_error=True)


@pytest.mark.parametrize("options", [{}, {"batching": True}, {"replicas": 2}], ids=["single", "batching", "replicas"])
@simulated(nsqds=2)
def test_each_publish_ends_at_its_own_deadline_and_is_kept_no_longer(cluster: Cluster, options: dict[str, Any]) -> None:
    producer = cluster.producer(own_thread=False, **options)
    producer.publish("t", b"first")
    for nsqd in cluster.nsqds:
        nsqd.process.stand_still(60)

    def late(number: int) -> float:
        timeout = 1 + number * 7 % 40 / 10  # no order
        began = cluster.now
        with pytest.raises(OutcomeUnknown):
            producer.publish("t", b"x", timeout=timeout)
        return cluster.now - began - timeout

    callers = [gevent.spawn(late, number) for number in range(40)]
    gevent.joinall(callers, raise_error=True)
    assert all(0 <= caller.value < 0.03 for caller in callers)
    assert not producer._started().pending


def test_one_offender_among_a_hundred(make: Make, nsqd: ScriptedNsqd) -> None:
    """nsqd answers in order and executes nothing after a fatal error."""
    producer = make(nsqd.address)
    producer_first = gevent.spawn(producer.publish, "t", b"first")
    peer = identified(nsqd)
    answer_one(peer, b"first")
    producer_first.get(timeout=PATIENCE)
    waiting = {number: gevent.spawn(producer.publish, "t", b"%d" % number) for number in range(100)}
    taken: list[int] = []
    for _ in range(100):
        assert peer.line() == b"PUB t"
        taken.append(int(peer.body()))
    for _ in range(40):
        peer.send(OK)
    peer.error("E_BAD_MESSAGE PUB message too big")
    peer.close()
    bodies: list[bytes] = []
    serving = gevent.spawn(answer_all, identified(nsqd), bodies)
    gevent.joinall(waiting.values(), timeout=PATIENCE)
    offender = taken[40]
    assert isinstance(waiting[offender].exception, PublishRefused)
    assert waiting[offender].exception.error.code == "E_BAD_MESSAGE"
    assert [number for number, greenlet in waiting.items() if greenlet.exception] == [offender]
    assert sorted(map(int, bodies)) == sorted(taken[41:])
    serving.kill()
    stats = producer.stats()
    assert (stats["confirmed"], stats["refused"], stats["retried"]) == (100, 1, 59)


@pytest.mark.parametrize(
    "answer",
    [
        "E_BAD_MESSAGE PUB failed to read message body",
        "E_PUB_FAILED PUB failed exiting",
        "E_AUTH_FAILED AUTH failed",
    ],
)
def test_what_nsqd_did_not_take_goes_again(make: Make, nsqd: ScriptedNsqd, answer: str) -> None:
    producer = make(nsqd.address)
    waiting = gevent.spawn(producer.publish, "t", b"x")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    peer.error(answer)
    peer.close()
    answer_one(identified(nsqd), b"x")
    waiting.get(timeout=PATIENCE)
    assert producer.stats()["retried"] == 1


def test_nsqds_reason_is_in_the_error_when_it_takes_nothing_in_time(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    waiting = gevent.spawn(producer.publish, "t", b"x")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    peer.error("E_PUB_FAILED PUB failed write t.dat: no space left on device")
    peer.close()
    wait_for(lambda: failures(producer, nsqd.address))
    run_out_of_time(producer)
    with pytest.raises(NotSent, match="no space left on device"):
        waiting.get(timeout=PATIENCE)


@pytest.mark.real_nsqd
def test_a_publish_that_stalled_beyond_nsqds_deadline_goes_again(make: Make) -> None:
    """nsqd reads a command for two heartbeat intervals, and then says that it failed to read it."""
    lost: list[str] = []
    with running_nsqd("real") as nsqd, FaultProxy(nsqd.tcp_address) as proxy:

        def recover(_: str, error: NSQError | None) -> None:
            lost.append(str(error))
            proxy.to_server.bytes_per_second = 0.0
            proxy.to_server.thaw()

        producer = make(proxy.address, heartbeat_interval=1, write_timeout=PATIENCE, on_disconnect=recover)
        producer.publish("t", b"first")
        before = proxy.to_server.count
        proxy.to_server.bytes_per_second = 1000
        publishing = gevent.spawn(producer.publish, "t", bytes(100_000))
        wait_for(lambda: proxy.to_server.count > before + 50, "the beginning of the command at nsqd")
        proxy.to_server.freeze()  # nsqd leaves nothing unread then, which would reset the connection without its error
        publishing.get(timeout=PATIENCE)
        assert "E_BAD_MESSAGE PUB failed to read message body" in lost[0]
        stats = producer.stats()
        assert (stats["confirmed"], stats["refused"], stats["unknown"]) == (2, 0, 0)


def test_the_answers_before_a_refusal_count(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    first = gevent.spawn(producer.publish, "t", b"a")
    peer = identified(nsqd)
    answer_one(peer, b"a")
    first.get(timeout=PATIENCE)
    results = [producer.publish_async("t", body) for body in (b"b", b"c")]
    for body in (b"b", b"c"):
        assert (peer.line(), peer.body()) == (b"PUB t", body)
    peer.send(OK)
    peer.error("E_BAD_MESSAGE PUB message too big 2 > 1")
    peer.close()
    results[0].get(timeout=PATIENCE)
    with pytest.raises(PublishRefused):
        results[1].get(timeout=PATIENCE)
