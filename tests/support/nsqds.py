"""Scripted nsqds for the Producer's tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import gevent

from tests.support.peer import HEARTBEAT, OK, PATIENCE, Peer, ScriptedNsqd, free_port, scripted_nsqd


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


def nowhere() -> str:
    """An address where nothing listens."""
    return f"127.0.0.1:{free_port()}"


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
