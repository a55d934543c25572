"""``fail_fast``: publishes fail at once while every nsqd is unreachable, and a redial finds out when one is back.

The Producers' timeout is PATIENCE, so a publish that waits instead of failing runs into the test's time limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from gnsq_like import Producer
from gnsq_like.errors import NotSent, OutcomeUnknown, PublishError
from tests.support.daemons import Kind, Process, running_nsqd, wait_for
from tests.support.lookupds import FAST, Lookupd
from tests.support.nsqds import (
    answer_all,
    answer_one,
    good_nsqd,
    identified,
    nowhere,
    run_out_of_time,
    unanswered,
)
from tests.support.peer import HEARTBEAT, OK, PATIENCE, Peer, ScriptedNsqd
from tests.support.processes import stopped

Make = Callable[..., Producer]

#: As tests.support.daemons.KINDS, but as processes, which can be stopped.
PROCESSES = ["process", pytest.param("real", marks=pytest.mark.real_nsqd)]


@pytest.fixture
def fast(make: Make) -> Make:
    return lambda *addresses, **options: make(*addresses, fail_fast=True, **options)


def fails(producer: Producer) -> str:
    """The reason why a publish fails."""
    with pytest.raises(NotSent) as caught:
        producer.publish("t", b"refused")
    return str(caught.value)


def is_left_unanswered(producer: Producer) -> bool:
    """Whether a publish is; a process that is being stopped may still answer, and this one may stand still."""
    try:
        producer.publish("t", b"x", timeout=0.2)
    except OutcomeUnknown:
        return True
    except NotSent:
        pass
    return False


def left_unanswered(producer: Producer, nsqd: ScriptedNsqd) -> Peer:
    """Connects, and leaves a publish unanswered until its time is over; the connection is doubted then."""
    waiting = gevent.spawn(producer.publish, "t", b"unanswered")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"unanswered")
    run_out_of_time(producer)
    with pytest.raises(OutcomeUnknown):
        waiting.get(timeout=PATIENCE)
    wait_for(lambda: producer.stats()["away"], "the circuit")
    return peer


def test_while_nothing_listens_publishes_fail_with_the_reason(fast: Make) -> None:
    address = nowhere()
    producer = fast(address)
    assert producer.stats()["away"] is None
    reasons = {fails(producer) for _ in range(20)}
    assert reasons == {f"every nsqd is unreachable: no connection to {address}: Connection refused"}
    assert producer.stats()["away"] in reasons
    with pytest.raises(NotSent, match="every nsqd is unreachable"):
        producer.multi_publish("t", [b"x", b"y"])
    result = producer.publish_async("t", b"x")
    with pytest.raises(NotSent, match="every nsqd is unreachable"):
        result.get(timeout=PATIENCE)
    stats = producer.stats()
    assert (stats["not_sent"], stats["waiting"]) == (23, 0)
    producer.close()
    assert producer.stats()["away"] is None


def test_from_a_thread_without_a_hub(fast: Make) -> None:
    producer = fast(nowhere())
    fails(producer)
    calls = [gevent.get_hub().threadpool.spawn(fails, producer) for _ in range(5)]
    for call in calls:
        assert "every nsqd is unreachable" in call.get(timeout=PATIENCE)


def test_a_first_try_under_way_is_not_away(fast: Make, nsqd: ScriptedNsqd) -> None:
    producer = fast(nsqd.address, nowhere())
    waiting = gevent.spawn(producer.publish, "t", b"x")
    peer = nsqd.accept()
    wait_for(lambda: [each for each in producer.stats()["connections"].values() if each["failures"]], "a failure")
    assert producer.stats()["away"] is None
    peer.identify(version="1.3.0")
    answer_one(peer, b"x")
    waiting.get(timeout=PATIENCE)


@pytest.mark.parametrize("options", [{}, {"batching": True, "linger": 0.9 * PATIENCE}], ids=["single", "batching"])
def test_what_waits_fails_when_the_circuit_opens(fast: Make, nsqd: ScriptedNsqd, options: dict[str, object]) -> None:
    producer = fast(nsqd.address, **options)
    first = gevent.spawn(producer.publish, "t", b"x", timeout=PATIENCE / 2)  # which does not linger
    peer = identified(nsqd)
    gevent.spawn(answer_all, peer)
    first.get(timeout=PATIENCE)
    nsqd.close()
    waiting = [gevent.spawn(producer.publish, "t", b"x") for _ in range(5)]
    results = [producer.publish_async("t", b"x") for _ in range(5)]
    for each in [*waiting, *results]:
        with pytest.raises(PublishError) as caught:
            each.get(timeout=PATIENCE / 2)  # a batch would stay open for longer
        assert "in time" not in str(caught.value)
    assert f"no connection to {nsqd.address}" in fails(producer)


def test_what_waits_for_the_first_try_fails_with_it(fast: Make, nsqd: ScriptedNsqd) -> None:
    producer = fast(nsqd.address)
    results = [producer.publish_async("t", b"x") for _ in range(5)]
    nsqd.accept().close()
    for result in results:
        with pytest.raises(NotSent, match="every nsqd is unreachable: no connection"):
            result.get(timeout=PATIENCE)


def test_an_nsqd_that_is_back_is_found_without_a_publish(fast: Make) -> None:
    address = nowhere()
    producer = fast(address)
    fails(producer)
    with running_nsqd("ours", tcp_address=address):
        wait_for(lambda: producer.stats()["away"] is None, "the connection")
        assert producer.stats()["connections"][address]["connected"]
        producer.publish("t", b"x")


def test_a_lost_nsqd_is_noticed_without_a_publish(fast: Make) -> None:
    with running_nsqd("ours") as nsqd:
        producer = fast(nsqd.tcp_address)
        producer.publish("t", b"x")
        nsqd.stop()
        wait_for(lambda: "Connection refused" in str(producer.stats()["away"]), "the circuit")
        nsqd.start()
        wait_for(lambda: producer.stats()["away"] is None, "the connection")
        producer.publish("t", b"x")


def test_a_doubted_nsqd_gets_no_publish_and_is_replaced_after_a_redial(fast: Make, nsqd: ScriptedNsqd) -> None:
    producer = fast(nsqd.address, connect_timeout=1)
    first = left_unanswered(producer, nsqd)
    assert "left a publish unanswered" in fails(producer)
    # The first redial hangs until its time is over.
    hanging = nsqd.accept()
    assert (hanging.take(4), hanging.line()) == (b"  V2", b"IDENTIFY")
    fails(producer)
    second = identified(nsqd)
    wait_for(lambda: producer.stats()["away"] is None, "the end of the doubt")
    assert first.ended()
    assert b"refused" not in first._read
    waiting = gevent.spawn(producer.publish, "t", b"x")
    answer_one(second, b"x")
    waiting.get(timeout=PATIENCE)


def test_a_stopped_nsqd_costs_one_timeout(fast: Make, nsqd: ScriptedNsqd) -> None:
    """The caller of the publish that it left unanswered publishes again as soon as it is woken."""
    producer = fast(nsqd.address)
    outcomes: list[type[Exception]] = []

    def publish_twice() -> None:
        for _ in range(2):
            try:
                producer.publish("t", b"x")
            except PublishError as exc:
                outcomes.append(type(exc))

    publishing = gevent.spawn(publish_twice)
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    run_out_of_time(producer)
    wait_for(lambda: outcomes)
    wait_for(lambda: len(outcomes) == 2 or unanswered(producer, nsqd.address) == 2)
    publishing.kill()
    assert outcomes == [OutcomeUnknown, NotSent]


@pytest.mark.parametrize("sign", [OK, HEARTBEAT], ids=["answer", "heartbeat"])
def test_a_doubted_nsqd_that_says_something_is_good_again(fast: Make, nsqd: ScriptedNsqd, sign: bytes) -> None:
    producer = fast(nsqd.address)
    peer = left_unanswered(producer, nsqd)
    fails(producer)
    peer.send(sign)
    wait_for(lambda: producer.stats()["away"] is None, "the end of the doubt")
    waiting = gevent.spawn(producer.publish, "t", b"x")
    assert peer.line() in (b"NOP", b"PUB t")
    if sign == HEARTBEAT:
        assert peer.line() == b"PUB t"
        peer.body()
        peer.send(OK)  # to the one before
    else:
        peer.body()
    peer.send(OK)
    waiting.get(timeout=PATIENCE)
    # The redials, which were not answered in time, change nothing.
    identified(nsqd).ended()
    assert producer.stats()["away"] is None


def test_one_of_two_is_enough(fast: Make, other: ScriptedNsqd) -> None:
    producer = fast(nowhere(), other.address)
    for _ in range(10):
        producer.publish("t", b"x")
    assert len(other.bodies) == 10
    assert producer.stats()["away"] is None


@pytest.mark.parametrize("quorum", [None, 1])
def test_replicas_need_a_quorum(fast: Make, other: ScriptedNsqd, quorum: int | None) -> None:
    away = nowhere()
    producer = fast(away, other.address, replicas=2, quorum=quorum)
    if quorum == 1:
        producer.publish("t", b"x")
        assert producer.stats()["away"] is None
        return
    with pytest.raises(PublishError):
        producer.publish("t", b"x")
    taken = len(other.bodies)
    assert fails(producer) == f"fewer than 2 nsqds are left: no connection to {away}: Connection refused"
    assert len(other.bodies) == taken
    with running_nsqd("ours", tcp_address=away):
        wait_for(lambda: producer.stats()["away"] is None, "the connection")
        producer.publish("t", b"x")


def test_a_caller_that_tries_again_in_a_loop_lets_the_redial_run() -> None:
    address = nowhere()
    with Producer(address, fail_fast=True, own_thread=False) as producer:
        fails(producer)
        tries = 0

        def insist() -> None:
            nonlocal tries
            while True:
                tries += 1
                try:
                    return producer.publish("t", b"x")
                except NotSent:
                    pass

        insisting = gevent.spawn(insist)
        with running_nsqd("ours", tcp_address=address):
            insisting.get(timeout=PATIENCE)
    assert tries > 1


def test_an_nsqlookupd_that_is_away(own_thread: bool) -> None:
    options: dict[str, Any] = {"fail_fast": True, "timeout": PATIENCE, "own_thread": own_thread}
    with Producer(lookupd_http_addresses=nowhere(), **options) as producer:
        assert fails(producer).startswith("every nsqd is unreachable: no nsqd was found yet; http://")


def test_an_nsqlookupd_that_knows_no_nsqd_and_then_one(own_thread: bool) -> None:
    with (
        Lookupd() as lookupd,
        Producer(
            lookupd_http_addresses=lookupd.address, fail_fast=True, timeout=PATIENCE, own_thread=own_thread, **FAST
        ) as producer,
        good_nsqd() as nsqd,
    ):
        assert fails(producer) == "every nsqd is unreachable: nsqlookupd knows no nsqd"
        lookupd.nsqds = [nsqd]
        wait_for(lambda: producer.stats()["away"] is None, "the nsqd")
        producer.publish("t", b"x")


def test_redials_that_fail_alike_are_logged_and_reported_once(fast: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "gnsq_like")
    errors: list[str] = []
    address = nowhere()
    producer = fast(address, on_error=lambda where, error: errors.append(str(error)))
    fails(producer)
    wait_for(lambda: producer.stats()["connections"][address]["failures"] >= 4, "redials")
    with running_nsqd("ours", tcp_address=address):
        wait_for(lambda: producer.stats()["away"] is None, "the connection")
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    refused = [
        line
        for line in logged
        if line.startswith(f"Producer: no connection to {address}: Connection refused; the next try is in")
    ]
    assert len(refused) == 1
    assert len([line for line in logged if "publishes fail at once from now on" in line]) == 1
    assert len([line for line in logged if "publishes are sent again, after" in line]) == 1
    reported = errors.count(f"no connection to {address}: Connection refused")
    assert 1 <= reported < producer.stats()["connections"][address]["failures"]


@pytest.mark.parametrize("kind", PROCESSES)
def test_an_nsqd_that_is_killed_and_one_that_stands_still(fast: Make, kind: Kind) -> None:
    with running_nsqd(kind) as nsqd:
        assert isinstance(nsqd, Process)
        assert nsqd.process is not None
        producer = fast(nsqd.tcp_address)
        producer.publish("t", b"x")
        nsqd.kill()
        wait_for(lambda: producer.stats()["away"], "the circuit")
        assert f"no connection to {nsqd.tcp_address}" in fails(producer)
        nsqd.start()
        wait_for(lambda: producer.stats()["away"] is None, "the connection")
        producer.publish("t", b"x")
        with stopped(nsqd.process.pid):
            wait_for(lambda: is_left_unanswered(producer), "the standstill")
            wait_for(lambda: producer.stats()["away"], "the circuit")
            assert "left a publish unanswered" in fails(producer)
        wait_for(lambda: producer.stats()["away"] is None, "the answer")
        producer.publish("t", b"x")
