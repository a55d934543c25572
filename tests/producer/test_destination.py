"""One nsqd to publish to: away, mute, or broken while it is written to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import gevent
import pytest

from gnsq_like import Producer
from gnsq_like.errors import NotSent, OutcomeUnknown
from gnsq_like.wire.frames import RESPONSE, encode_frame
from tests.support.daemons import running_nsqd, wait_for
from tests.support.nsqds import (
    answer_all,
    answer_one,
    failures,
    identified,
    nowhere,
    run_out_of_time,
    unanswered,
    why_not_sent,
)
from tests.support.peer import OK, PATIENCE, ScriptedNsqd

Make = Callable[..., Producer]


def test_nothing_listens(make: Make) -> None:
    address = nowhere()
    producer = make(address)
    waiting = gevent.spawn(producer.publish, "t", b"x")
    wait_for(lambda: failures(producer, address) > 1)
    assert not waiting.ready()
    run_out_of_time(producer)
    with pytest.raises(NotSent, match="Connection refused"):
        waiting.get(timeout=PATIENCE)
    assert producer.stats()["not_sent"] == 1


def test_an_nsqd_that_was_away_is_found_when_it_is_there(make: Make, own_thread: bool) -> None:
    address = nowhere()
    producer = make(address)
    waiting = gevent.spawn(producer.publish, "t", b"x")
    wait_for(lambda: failures(producer, address))
    with running_nsqd("ours", tcp_address=address):
        waiting.get(timeout=PATIENCE)


def test_each_publish_that_waits_for_an_nsqd_that_is_away_sees_a_try(make: Make) -> None:
    """The next one comes within half of the time that a publish has by default."""
    address = nowhere()
    producer = make(address, timeout=1)
    for tries in range(1, 5):
        waiting = gevent.spawn(producer.publish, "t", b"x", timeout=PATIENCE)
        wait_for(lambda tries=tries: failures(producer, address) >= tries)  # type: ignore[misc]
        [destination] = producer._started().discovery.destinations
        assert destination.dialler.not_before <= time.monotonic() + 0.5
        run_out_of_time(producer)
        with pytest.raises(NotSent, match="Connection refused"):
            waiting.get(timeout=PATIENCE)
    with running_nsqd("ours", tcp_address=address):
        producer.publish("t", b"x", timeout=PATIENCE)


@pytest.mark.parametrize("fault", [gevent.Timeout(1), asyncio.CancelledError("meant")])
def test_whatever_the_users_function_raises_while_it_connects_is_a_failed_try(
    make: Make, nsqd: ScriptedNsqd, fault: BaseException
) -> None:
    faults, errors = [fault], []

    def secret() -> str:
        if faults:
            raise faults.pop()
        return "secret"

    producer = make(nsqd.address, auth_secret=secret, on_error=lambda _, error: errors.append(error))
    waiting = gevent.spawn(producer.publish, "t", b"x")
    first = nsqd.accept()
    first.identify(version="1.3.0", auth_required=True)
    assert first.ended()
    peer = nsqd.accept()
    peer.identify(version="1.3.0", auth_required=True)
    assert (peer.line(), peer.body()) == (b"AUTH", b"secret")
    peer.send(encode_frame(RESPONSE, b'{"identity": "bob", "identity_url": "", "permission_count": 1}'))
    answer_one(peer, b"x")
    waiting.get(timeout=PATIENCE)
    wait_for(lambda: [error.__cause__ for error in errors] == [fault])


def test_a_peer_that_accepts_and_is_mute(make: Make, nsqd: ScriptedNsqd, other: ScriptedNsqd) -> None:
    producer = make(nsqd.address, other.address, connect_timeout=1)
    producer.publish("t", b"x")
    assert other.bodies == [b"x"]
    assert "no connection" in why_not_sent(make(nsqd.address))


def test_a_connection_that_breaks_while_writing(make: Make, nsqd: ScriptedNsqd, other: ScriptedNsqd) -> None:
    """More than the kernel takes: bytes are missing at the peer, so nsqd cannot have executed it."""
    body = bytes(8 * 1024 * 1024)
    producer = make(nsqd.address, max_msg_bytes=len(body))
    waiting = gevent.spawn(producer.publish, "t", body)
    peer = identified(nsqd)
    peer.take(1024)
    peer.reset()
    peer = identified(nsqd)
    assert peer.line() == b"PUB t"
    assert peer.body() == body
    peer.send(OK)
    waiting.get(timeout=PATIENCE)
    assert producer.stats()["retried"] == 1


def test_a_peer_that_reads_nothing(make: Make, nsqd: ScriptedNsqd) -> None:
    """Commands beyond what the kernel takes are given up with the connection, and sent again elsewhere."""
    body = bytes(8 * 1024 * 1024)
    producer = make(nsqd.address, max_msg_bytes=len(body), write_timeout=0.1)
    waiting = gevent.spawn(producer.publish, "t", body)
    identified(nsqd)
    bodies: list[bytes] = []

    def serve() -> None:
        while True:
            gevent.spawn(answer_all, identified(nsqd, timeout=None), bodies)

    serving = gevent.spawn(serve)
    waiting.get(timeout=PATIENCE)
    assert bodies == [body]
    serving.kill()


def test_no_answer_in_time_and_the_next_goes_elsewhere(make: Make, nsqd: ScriptedNsqd, other: ScriptedNsqd) -> None:
    """A mute nsqd is asked again only when it has said something."""
    producer = make(nsqd.address, other.address)
    producer.publish("t", b"x")  # the other one gets it: this one is not connected before its IDENTIFY is answered
    peer = identified(nsqd)
    wait_for(lambda: producer.stats()["connections"][nsqd.address]["connected"])
    results = [producer.publish_async("t", b"x") for _ in range(2)]
    wait_for(lambda: any(result.ready() for result in results) and unanswered(producer, nsqd.address) == 1)
    run_out_of_time(producer)
    gevent.wait(results, timeout=PATIENCE)
    [error] = [result.exception for result in results if result.exception is not None]
    assert isinstance(error, OutcomeUnknown)
    assert error.address == nsqd.address
    for _ in range(5):
        producer.publish("t", b"y")
    assert producer.stats()["connections"][nsqd.address]["unanswered"] == 1
    # The late answer belongs to nobody, and makes the nsqd good again.
    answer_one(peer, b"x")
    bodies: list[bytes] = []
    serving = gevent.spawn(answer_all, peer, bodies)
    while not bodies:
        producer.publish("t", b"z")
    serving.kill()
