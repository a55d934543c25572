"""The proxy does what networks do, and hands on every byte otherwise."""

import pytest
from gevent import socket

from gnsq_like.testing import FaultProxy
from tests.daemons import wait_for
from tests.peer import PATIENCE, scripted_nsqd


def connect(proxy):
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def test_a_frozen_proxy_hands_nothing_on_until_it_thaws():
    with scripted_nsqd() as server, FaultProxy(server.address) as proxy, connect(proxy) as client:
        peer = server.accept()
        client.sendall(b"before")
        assert peer.take(6) == b"before"
        proxy.freeze()
        client.sendall(b"frozen")
        peer.sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            peer.take(6)
        proxy.thaw()
        peer.sock.settimeout(PATIENCE)
        assert peer.take(6) == b"frozen"
        peer.send(b"answer")
        assert client.recv(6) == b"answer"
        assert (proxy.to_server_count, proxy.to_client_count) == (12, 6)


def test_a_reset_is_seen_as_one():
    with scripted_nsqd() as server, FaultProxy(server.address) as proxy, connect(proxy) as client:
        peer = server.accept()
        client.sendall(b"x")
        assert peer.take(1) == b"x"
        wait_for(lambda: proxy.to_server_count == 1)
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
