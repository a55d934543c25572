"""Scripted nsqds for the Producer's tests."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import pytest

from gnsq_like import Producer
from gnsq_like.errors import NotSent
from gnsq_like.producer.pool import PublishBatch
from gnsq_like.testing.kinds import reserve
from tests.support.daemons import wait_for
from tests.support.peer import HEARTBEAT, OK, PATIENCE, Peer, ScriptedNsqd, scripted_nsqd

#: Never closed: a Producer may still dial after its test.
_reserved: list[socket.socket] = []


def answer_all(peer: Peer, bodies: list[bytes] | None = None) -> None:
    """Say OK to every PUB, MPUB and DPUB until the client goes away; keep the bodies."""
    try:
        while True:
            line = peer.line()
            if line == b"NOP":
                continue
            body = peer.body()
            if bodies is not None:
                bodies.append(body)
            peer.send(OK)
    except (AssertionError, OSError):
        return


def identified(server: ScriptedNsqd, timeout: float | None = PATIENCE) -> Peer:
    """The next connection's peer, after IDENTIFY."""
    peer = server.accept(timeout)
    peer.identify(version="1.3.0", max_rdy_count=2500)
    return peer


def answer_one(peer: Peer, body: bytes) -> None:
    """Take a PUB to t with this body, and say OK."""
    assert (peer.line(), peer.body()) == (b"PUB t", body)
    peer.send(OK)


def beat(peer: Peer) -> None:
    """A heartbeat and its answer: the client has had its turn, and has nothing before this to say."""
    peer.send(HEARTBEAT)
    assert peer.line() == b"NOP"


def run_out_of_time(producer: Producer, seconds: float = math.inf) -> None:
    """Let so much time pass for the publishes that wait: those with no more of it reach their deadlines.

    A test that must do something before a deadline gives the publish much time, and then takes that away.
    """
    pool = producer._started()

    def pass_time() -> None:
        batches = {each.carrier for each in pool.pending if isinstance(each.carrier, PublishBatch)}
        for each in (*pool.pending, *batches):
            each.deadline -= seconds
        pool._expire()

    pool.hub_handle.run(pass_time)


def why_not_sent(producer: Producer) -> str:
    """What a publish says whose time runs out while it waits for an nsqd.

    Where a deadline comes by itself, a thread of the connections that gets no processor for a tenth of a second then is
    the reason that is named.
    """
    waiting = gevent.spawn(producer.publish, "t", b"x", timeout=PATIENCE)
    wait_for(lambda: producer.stats()["waiting"])
    run_out_of_time(producer)
    with pytest.raises(NotSent) as caught:
        waiting.get(timeout=PATIENCE)
    return str(caught.value)


def failures(producer: Producer, address: str) -> int:
    """How many tries to connect to this nsqd have failed in a row."""
    stats = producer.stats()["connections"].get(address, {})
    return int(stats.get("failures", 0))


def unanswered(producer: Producer, address: str) -> int:
    """The publishes that this nsqd has not answered yet."""
    stats = producer.stats()["connections"].get(address, {})
    return int(stats.get("unanswered", 0))


def nowhere() -> str:
    """An address where nothing listens, unless the test does; reserved, so that nothing of others does either."""
    address, reserved = reserve()
    _reserved.append(reserved)
    return address


@contextmanager
def good_nsqd() -> Iterator[ScriptedNsqd]:
    """A scripted nsqd that takes everything; what it took is in ``.bodies``."""
    with scripted_nsqd() as server:

        def serve() -> None:
            while True:
                gevent.spawn(answer_all, identified(server, timeout=None), server.bodies)

        serving = gevent.spawn(serve)
        try:
            yield server
        finally:
            serving.kill()
