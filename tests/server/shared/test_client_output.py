"""What a daemon's connection writes at once, and what it still owes."""

from __future__ import annotations

import socket

from gnsq_like.server.shared.client_output import Output


def test_a_response_whose_end_stays_in_the_buffer_is_still_owed() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        output = Output(near, lambda held_up: None, lambda: None)
        output.size = 16
        output.send_buffered(b"message 1 ")
        output.add(b"response")
        output.send_buffered(b"m2")
        assert far.recv(100) == b"message 1 respon"
        assert output.flush_is_owed
        output.flush()
        assert far.recv(100) == b"sem2"
        assert not output.flush_is_owed
