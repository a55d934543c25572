"""Scripted nsqds for the Producer's tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import gevent

from tests.support.peer import OK, PATIENCE, Peer, ScriptedNsqd, scripted_nsqd


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
