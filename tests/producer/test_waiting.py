"""Waiting for a publish: greenlets whose Producer has its connections in another thread, and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from gevent.event import AsyncResult
from gevent.threadpool import ThreadPool

from gnsq_like import Producer
from gnsq_like.errors import NotSent, OutcomeUnknown, PublishRefused
from gnsq_like.producer.producer import PublishResult, may_wait_here
from gnsq_like.runtime.hub_calls import InnerGreenlet
from tests.support.daemons import wait_for
from tests.support.nsqds import answer_one, good_nsqd, identified, nowhere, run_out_of_time
from tests.support.peer import OK, PATIENCE, Peer, ScriptedNsqd
from tests.support.scripts import run_script

Make = Callable[..., Producer]


@pytest.fixture
def producer(nsqd: ScriptedNsqd) -> Iterator[Producer]:
    producer = Producer(nsqd.address, own_thread=True, timeout=PATIENCE)
    yield producer
    producer.close(timeout=0)


def connected(producer: Producer, nsqd: ScriptedNsqd) -> Peer:
    first = gevent.spawn(producer.publish, "t", b"first")
    peer = identified(nsqd)
    answer_one(peer, b"first")
    first.get(timeout=PATIENCE)
    return peer


def publishing(producer: Producer, count: int, **options: Any) -> list[gevent.Greenlet]:
    return [gevent.spawn(producer.publish, "t", b"%d" % number, **options) for number in range(count)]


def test_the_publishes_of_one_iteration_leave_in_order(producer: Producer, nsqd: ScriptedNsqd) -> None:
    peer = connected(producer, nsqd)
    greenlets = publishing(producer, 100)
    for number in range(100):
        assert (peer.line(), peer.body()) == (b"PUB t", b"%d" % number)
    peer.send(OK * 99)
    gevent.joinall(greenlets[:99], timeout=PATIENCE, raise_error=True)
    assert [greenlet.dead for greenlet in greenlets] == [True] * 99 + [False]
    peer.send(OK)
    greenlets[99].get(timeout=PATIENCE)
    assert producer.stats()["confirmed"] == 101


def test_one_that_is_killed_before_it_is_handed_over_is_not_sent(producer: Producer, nsqd: ScriptedNsqd) -> None:
    peer = connected(producer, nsqd)
    loop = gevent.get_hub().loop
    greenlets = publishing(producer, 3)
    # After the greenlets have begun, which the loop runs first, and before the hub hands over.
    loop.run_callback(greenlets[1].kill, gevent.GreenletExit, False)
    for number in (0, 2):
        answer_one(peer, b"%d" % number)
        assert greenlets[number].get(timeout=PATIENCE) is None
    following = gevent.spawn(producer.publish, "t", b"following")
    answer_one(peer, b"following")
    following.get(timeout=PATIENCE)


def test_each_has_its_own_deadline(producer: Producer, nsqd: ScriptedNsqd) -> None:
    peer = connected(producer, nsqd)
    slow = publishing(producer, 2)
    quick = publishing(producer, 2, timeout=PATIENCE / 2)
    for number in (0, 1, 0, 1):
        assert (peer.line(), peer.body()) == (b"PUB t", b"%d" % number)
    run_out_of_time(producer, PATIENCE / 2)
    for greenlet in quick:
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            greenlet.get(timeout=PATIENCE)
    assert not any(greenlet.dead for greenlet in slow)
    peer.send(OK * 4)
    gevent.joinall(slow, timeout=PATIENCE, raise_error=True)


def test_one_that_fails_leaves_the_others(producer: Producer, nsqd: ScriptedNsqd) -> None:
    peer = connected(producer, nsqd)
    greenlets = publishing(producer, 3)
    for _ in range(3):
        peer.line()
        peer.body()
    peer.send(OK)
    peer.close()
    greenlets[0].get(timeout=PATIENCE)
    for greenlet in greenlets[1:]:
        with pytest.raises(OutcomeUnknown):
            greenlet.get(timeout=PATIENCE)


def test_nothing_keeps_the_hub_running_afterwards() -> None:
    with good_nsqd() as nsqd:
        lines = run_script(
            """
            import sys, gevent
            from gnsq_like import Producer

            producer = Producer(sys.argv[1], timeout=600)
            gevent.joinall([gevent.spawn(producer.publish, "t", b"x") for _ in range(10)], raise_error=True)
            print(gevent.get_hub().join(timeout=30))
            """,
            nsqd.address,
        )
    assert lines == ["True"]


def test_after_close_they_are_told(producer: Producer, nsqd: ScriptedNsqd) -> None:
    connected(producer, nsqd)
    greenlets = publishing(producer, 2)
    gevent.sleep(0)
    assert not producer.close(timeout=0)
    for greenlet in greenlets:
        with pytest.raises((OutcomeUnknown, NotSent)):
            greenlet.get(timeout=PATIENCE)


def test_greenlets_of_several_hubs_are_woken_each_in_theirs() -> None:
    def work(producer: Producer) -> int:
        greenlets = [gevent.spawn(many, producer) for _ in range(20)]
        gevent.joinall(greenlets, raise_error=True)
        return sum(greenlet.value for greenlet in greenlets)

    def many(producer: Producer) -> int:
        for _ in range(10):
            producer.publish("t", b"x")
        return 10

    with good_nsqd() as nsqd, Producer(nsqd.address, own_thread=True, timeout=PATIENCE) as producer:
        threads = ThreadPool(3)
        others = [threads.spawn(work, producer) for _ in range(3)]
        assert work(producer) == 200
        assert [each.get(timeout=PATIENCE) for each in others] == [200] * 3
        assert len(nsqd.bodies) == 800
        threads.kill()


# -- the result of publish_async ------------------------------------------------------------


@pytest.mark.parametrize("answer", [b"\0\0\0\6\0\0\0\0OK", b"\0\0\0\x0f\0\0\0\1E_BAD_TOPIC"], ids=["OK", "refused"])
def test_callbacks_get_the_outcome_though_nobody_waits(make: Make, nsqd: ScriptedNsqd, answer: bytes) -> None:
    outcomes: list[tuple[str, Exception | None]] = []
    result = make(nsqd.address).publish_async("t", b"x")
    assert isinstance(result, PublishResult)
    result.add_done_callback(lambda error: outcomes.append(("first", error)))
    peer = nsqd.accept()
    peer.identify(version="1.3.0")
    peer.line()
    peer.body()
    assert outcomes == []
    peer.send(answer)
    wait_for(lambda: outcomes, "the callback")
    result.add_done_callback(lambda error: outcomes.append(("late", error)))
    wait_for(lambda: len(outcomes) == 2, "the late one")
    assert [name for name, _ in outcomes] == ["first", "late"]
    for _, error in outcomes:
        assert isinstance(error, PublishRefused) if b"E_" in answer else error is None


def test_it_is_ready_once_nsqd_has_answered(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    result = producer.publish_async("t", b"x")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    with pytest.raises(gevent.Timeout):
        result.get(timeout=0.01)
    result.wait(timeout=0.01)
    assert not result.ready()
    peer.send(OK)
    result.wait(timeout=PATIENCE)
    assert result.ready()
    result.get(timeout=PATIENCE)


def test_any_thread_may_wait_for_it(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    result = producer.publish_async("t", b"x")
    thread = ThreadPool(1)
    waiting = thread.spawn(result.get, timeout=PATIENCE)
    answer_one(identified(nsqd), b"x")
    assert waiting.get(timeout=PATIENCE) is None
    thread.kill()


def test_it_has_the_publishs_error(make: Make) -> None:
    result = make(nowhere()).publish_async("t", b"x", timeout=0.05)
    with pytest.raises(NotSent):
        result.get(timeout=PATIENCE)
    assert isinstance(result.exception, NotSent)


def test_the_first_publish_makes_it_and_close_ends_it(make: Make, other: ScriptedNsqd) -> None:
    producer = make(other.address)
    assert producer._pool is None
    producer.publish("t", b"x")
    running = producer._pool
    assert running is not None
    producer.publish("t", b"y")
    assert producer._pool is running
    assert producer.close()
    assert running.stopped
    assert producer._pool is None


def test_it_drains_what_is_pending_for_so_long_and_no_longer(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    waiting = gevent.spawn(producer.publish, "t", b"x")
    peer = identified(nsqd)
    running = producer._started()
    assert running.hub_handle.run(running.drain, 0.01, timeout=PATIENCE) is False
    draining = gevent.spawn(running.hub_handle.run, running.drain, PATIENCE, timeout=PATIENCE)
    answer_one(peer, b"x")
    assert draining.get(timeout=PATIENCE) is True
    waiting.get(timeout=PATIENCE)


def test_waiting_is_for_other_greenlets() -> None:
    assert may_wait_here()
    assert gevent.spawn(may_wait_here).get() is True
    assert InnerGreenlet.spawn(may_wait_here).get() is False
    in_the_hub: AsyncResult[bool] = AsyncResult()
    gevent.get_hub().loop.run_callback(lambda: in_the_hub.set(may_wait_here()))
    assert in_the_hub.get() is False
