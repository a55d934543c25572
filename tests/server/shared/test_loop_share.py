"""How a client's greenlet gives way."""

from __future__ import annotations

import gevent
from gevent import socket

from gnsq_like.server.shared.loop_share import give_way


def test_way_is_given_to_sockets_and_not_only_to_greenlets() -> None:
    one, other = socket.socketpair()
    with one, other:
        reader = gevent.spawn(other.recv, 1)
        gevent.sleep(0)
        one.sendall(b"x")
        give_way()
        gevent.sleep(0)  # the hub has seen the byte; the greenlet runs now
        assert reader.value == b"x"
