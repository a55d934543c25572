"""Scripted nsqds for the Producer's tests."""

from __future__ import annotations

from contextlib import contextmanager

import gevent

from tests.support.peer import OK, scripted_nsqd


def answer_all(peer, bodies=None):
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


def identified(server):
    """The next connection's peer, after IDENTIFY."""
    peer = server.accept()
    peer.identify(version="1.3.0", max_rdy_count=2500)
    return peer


@contextmanager
def good_nsqd():
    """A scripted nsqd that takes everything; what it took is in ``.bodies``."""
    with scripted_nsqd() as server:
        server.bodies = []

        def serve():
            while True:
                peer = server.accept(timeout=None)
                peer.identify(version="1.3.0", max_rdy_count=2500)
                gevent.spawn(answer_all, peer, server.bodies)

        serving = gevent.spawn(serve)
        try:
            yield server
        finally:
            serving.kill()
