"""One publish and its outcome; how publishes are counted, what one costs, and those who wait for them woken."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import gevent
import pytest

import gnsq_like
from gnsq_like import Producer
from gnsq_like.errors import NotSent, NsqdError, OutcomeUnknown, PublishRefused
from gnsq_like.producer.publish import PublishCounts
from tests.support.daemons import wait_for
from tests.support.hub import settle
from tests.support.nsqds import answer_one, identified, nowhere, run_out_of_time
from tests.support.peer import OK, PATIENCE, Peer, ScriptedNsqd, scripted_nsqd

Make = Callable[..., Producer]


@pytest.mark.parametrize("how", ["close", "reset"])
def test_killed_between_write_and_reply(make: Make, nsqd: ScriptedNsqd, how: str) -> None:
    producer = make(nsqd.address)
    waiting = gevent.spawn(producer.publish, "t", b"x")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    getattr(peer, how)()
    with pytest.raises(OutcomeUnknown) as caught:
        waiting.get(timeout=PATIENCE)
    assert caught.value.address == nsqd.address
    again = gevent.spawn(producer.publish, "t", b"y")
    answer_one(identified(nsqd), b"y")
    again.get(timeout=PATIENCE)


def test_retry_unknown_takes_the_risk(make: Make, nsqd: ScriptedNsqd, other: ScriptedNsqd) -> None:
    producer = make(nsqd.address, retry_unknown=True)
    waiting = gevent.spawn(producer.publish, "t", b"x")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    peer.close()
    answer_one(identified(nsqd), b"x")
    waiting.get(timeout=PATIENCE)


def test_what_is_unknown_stays_so_when_the_next_try_is_not_sent(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address, retry_unknown=True)
    waiting = gevent.spawn(producer.publish, "t", b"x")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    peer.close()
    wait_for(lambda: producer.stats()["retried"] == 1)
    run_out_of_time(producer)
    with pytest.raises(OutcomeUnknown):
        waiting.get(timeout=PATIENCE)


def test_a_killed_caller_abandons_its_answer_only(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    killed = gevent.spawn(producer.publish, "t", b"killed")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"killed")
    killed.kill()
    following = gevent.spawn(producer.publish, "t", b"following")
    assert (peer.line(), peer.body()) == (b"PUB t", b"following")
    peer.error("E_PUB_FAILED the first one's")  # belongs to the one whose caller is gone
    peer.close()
    answer_one(identified(nsqd), b"following")
    following.get(timeout=PATIENCE)


def test_a_caller_that_is_gone_before_its_publish_was_sent(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    killed = gevent.spawn(producer.publish, "t", b"killed")
    following = gevent.spawn(producer.publish, "t", b"following")
    settle()
    killed.kill()
    answer_one(identified(nsqd), b"following")
    following.get(timeout=PATIENCE)


def outcomes(producer: Producer) -> tuple[int, int, int]:
    stats = producer.stats()
    return stats["confirmed"], stats["unknown"], stats["not_sent"]


@pytest.fixture
def second() -> Iterator[ScriptedNsqd]:
    with scripted_nsqd() as server:
        yield server


def take_two(peer: Peer) -> int:
    """Take two publishes, in one MPUB or not: the thread of the connections may see the first before the second is
    made. Returns the number of commands."""
    if (line := peer.line()) == b"MPUB t":
        assert peer.body()[:4] == b"\0\0\0\2"
        return 1
    peer.body()
    assert line == peer.line() == b"PUB t"
    peer.body()
    return 2


MODES: dict[str, dict[str, object]] = {"single": {}, "batching": {"batching": True}, "replicas": {"replicas": 2}}


@pytest.mark.parametrize("mode", MODES)
def test_sent_publishes_whose_callers_are_gone_are_counted(
    make: Make, nsqd: ScriptedNsqd, second: ScriptedNsqd, mode: str
) -> None:
    """Each once: those that nsqd confirms, and those that it may have."""
    servers = [nsqd, second] if mode == "replicas" else [nsqd]
    producer = make(*(server.address for server in servers), **MODES[mode])
    peers: list[Peer] = []
    for answered in (True, False):
        callers = [gevent.spawn(producer.publish, "t", b"x") for _ in range(2)]
        peers = peers or [identified(server) for server in servers]
        commands = [take_two(peer) for peer in peers]
        gevent.killall(callers)
        assert outcomes(producer) == (0 if answered else 2, 0, 0)
        for peer, count in zip(peers, commands, strict=True):
            if answered:
                peer.send(OK * count)
            else:
                peer.close()
        wait_for(lambda answered=answered: outcomes(producer) == (2, 0 if answered else 2, 0))  # type: ignore[misc]


@pytest.mark.parametrize("mode", MODES)
def test_publishes_that_were_not_sent_when_their_callers_went_are_counted(make: Make, mode: str) -> None:
    producer = make(nowhere(), nowhere(), **MODES[mode])
    callers = [gevent.spawn(producer.publish, "t", b"x") for _ in range(2)]
    wait_for(lambda: producer.stats()["waiting"])
    gevent.killall(callers)
    wait_for(lambda: outcomes(producer) == (0, 0, 2))


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (PublishRefused(NsqdError("E_BAD_MESSAGE", "too big"), "127.0.0.1:4150"), "refused"),
        (OutcomeUnknown("127.0.0.1:4150", "lost"), "unknown"),
        (NotSent("away"), "not_sent"),
        (RuntimeError("anything else was not sent"), "not_sent"),
    ],
)
def test_a_failure_counts_once_for_each_message(error: Exception, name: str) -> None:
    counts = PublishCounts()
    counts.failed(error, 3)
    expected = PublishCounts()
    setattr(expected, name, 3)
    assert counts == expected


def test_callers_resume_in_the_order_of_their_publishes(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    order: list[int] = []
    callers = [gevent.spawn(producer.publish, "t", b"x") for _ in range(3)]
    for number, caller in enumerate(callers):
        caller.link(lambda _, number=number: order.append(number))
    peer = identified(nsqd)
    for _ in callers:
        assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    peer.send(OK * 3)
    gevent.joinall(callers, timeout=PATIENCE, raise_error=True)
    settle()
    assert order == [0, 1, 2]


def test_a_publish_of_one_caller_costs_so_many_calls_of_our_own(other: ScriptedNsqd) -> None:
    """30, with a tenth of room; some more are made once a second."""
    package = os.path.dirname(gnsq_like.__file__)
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(package)

    with Producer(other.address, own_thread=False) as producer:
        producer.publish("t", b"first")
        sys.setprofile(count)
        try:
            for _ in range(100):
                producer.publish("t", b"x")
        finally:
            sys.setprofile(None)
    assert calls // 100 <= 33
