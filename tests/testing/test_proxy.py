"""The proxy has its faults exactly where they are set, and forwards every other byte.

Most tests block on plain sockets, as unpatched programs do: the proxy runs in a thread of its own. The last ones have
it in their own hub.
"""

import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from gevent import socket as gevent_socket

from gnsq_like import Producer
from gnsq_like.testing import FaultProxy, running_nsqd, wait_until
from gnsq_like.testing.proxy import _wait_until_taken
from tests.support.peer import PATIENCE, scripted_nsqd

#: Seconds in which nothing arrives.
NOTHING = 0.05


class Ends:
    """A listener behind a proxy, and the two ends of connections through both."""

    def __init__(self, proxy, listener):
        self.proxy = proxy
        self._listener = listener
        self._open = []

    def connect(self):
        """(client's end, server's end) of a new connection."""
        client = socket.create_connection(("127.0.0.1", self.proxy.port), PATIENCE)
        server, _ = self._listener.accept()
        server.settimeout(PATIENCE)
        self._open += [client, server]
        return client, server

    def close(self):
        for sock in self._open:
            sock.close()


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        with FaultProxy(f"127.0.0.1:{listener.getsockname()[1]}") as proxy:
            ends = Ends(proxy, listener)
            yield ends
            ends.close()


def take(sock, count):
    """Exactly ``count`` bytes."""
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        assert piece, f"the stream ended after {data!r}"
        data += piece
    return data


def take_all(sock):
    """All bytes until the end of the stream."""
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


def take_until_reset(sock):
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionResetError:
        return data
    pytest.fail(f"it ended without a reset after {data!r}")


def echo(client, server, byte):
    """Send one byte, and return the byte that arrives."""
    client.sendall(bytes([byte]))
    return take(server, 1)


@contextmanager
def quiet(*socks):
    """Nothing arrives at these sockets during the block."""
    yield
    for sock in socks:
        sock.settimeout(NOTHING)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(PATIENCE)


# -- nothing wrong ----------------------------------------------------------------------------------


def test_every_byte_is_forwarded_both_ways_and_counted(ends):
    client, server = ends.connect()
    blob = bytes(range(256)) * 1000
    client.sendall(b"ask" + blob)
    assert take(server, 3 + len(blob)) == b"ask" + blob
    server.sendall(b"answer")
    assert take(client, 6) == b"answer"
    assert (ends.proxy.to_server.count, ends.proxy.to_client.count) == (3 + len(blob), 6)


def test_the_end_of_one_direction_is_forwarded_and_the_other_goes_on(ends):
    client, server = ends.connect()
    client.sendall(b"all")
    client.shutdown(socket.SHUT_WR)
    assert take_all(server) == b"all"
    server.sendall(b"answer")
    server.close()
    assert take_all(client) == b"answer"
    client.close()
    wait_until(lambda: ends.proxy.connection_count == 0)


def test_a_reset_by_one_end_is_a_reset_for_the_other(ends):
    client, server = ends.connect()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    assert take_until_reset(server) == b""


# -- late and slow ----------------------------------------------------------------------------------


def test_delay_holds_back_one_direction(ends):
    client, server = ends.connect()
    ends.proxy.to_client.delay = 0.2
    started = time.monotonic()
    server.sendall(b"2")
    assert take(client, 1) == b"2"
    assert time.monotonic() - started >= 0.2
    ends.proxy.to_client.delay = 1000.0
    with quiet(client):
        server.sendall(b"never")
        client.sendall(b"1")
        assert take(server, 1) == b"1"


def test_a_rate_lets_so_many_bytes_through_in_a_second_and_loses_none(ends):
    client, server = ends.connect()
    ends.proxy.to_server.bytes_per_second = 20_000
    blob = bytes(range(256)) * 16
    started = time.monotonic()
    client.sendall(blob)
    assert take(server, len(blob)) == blob
    took = time.monotonic() - started
    # The last of its steps is over when its bytes have been taken.
    assert took >= (len(blob) - 200) / 20_000
    ends.proxy.clear()
    client.sendall(blob)
    assert take(server, len(blob)) == blob


# -- half open --------------------------------------------------------------------------------------


def test_one_direction_freezes_and_the_other_goes_on(ends):
    client, server = ends.connect()
    ends.proxy.to_client.freeze()
    with quiet(client):
        server.sendall(b"frozen")
        client.sendall(b"flows")
        assert take(server, 5) == b"flows"
    ends.proxy.to_client.thaw()
    assert take(client, 6) == b"frozen"


def test_frozen_the_end_of_a_stream_does_not_come_through_either(ends):
    client, server = ends.connect()
    ends.proxy.freeze()
    with quiet(client):
        server.close()
    ends.proxy.thaw()
    assert take_all(client) == b""


def test_a_lost_server_leaves_clients_with_connections_that_say_nothing(ends):
    client, server = ends.connect()
    ends.proxy.lose_server()
    assert take_all(server) == b""
    with quiet(client):
        client.sendall(b"into the void")
    assert ends.proxy.to_server.count == 0
    again, at_server = ends.connect()
    again.sendall(b"new ones work")
    assert take(at_server, 13) == b"new ones work"


def test_a_lost_client_leaves_the_server_with_a_connection_that_says_nothing(ends):
    client, server = ends.connect()
    ends.proxy.lose_client()
    assert take_all(client) == b""
    with quiet(server):
        server.sendall(b"into the void")
    ends.proxy.reset()
    assert take_until_reset(server) == b""


@contextmanager
def observed():
    """(proxy, what its observer saw, a function that connects)"""
    seen = []
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        FaultProxy(
            f"127.0.0.1:{listener.getsockname()[1]}",
            observer=lambda number, where, data: seen.append((number, where, data)),
        ) as proxy,
    ):
        ends = Ends(proxy, listener)
        yield proxy, seen, ends.connect
        ends.close()


def test_an_observer_sees_the_bytes_at_both_sides_and_the_end():
    with observed() as (proxy, seen, connect):
        client, server = connect()
        proxy.to_server.freeze()
        client.sendall(b"held")
        wait_until(lambda: seen == [(0, "from client", b"held")])
        proxy.to_server.thaw()
        assert take(server, 4) == b"held"
        proxy.to_client.corrupt_at(0, b"X")
        server.sendall(b"ok")
        assert take(client, 2) == b"Xk"
        assert seen[1:] == [(0, "to server", b"held"), (0, "from server", b"ok"), (0, "to client", b"Xk")]
        client.close()
        wait_until(lambda: seen[4:] == [(0, "client closed", b"")])
        server.close()
        wait_until(lambda: seen[5:] == [(0, "server closed", b"")])
        connect()[0].sendall(b"!")
        wait_until(lambda: (1, "to server", b"!") in seen)


@pytest.mark.parametrize("end", ["cut", "reset", "lose_client"])
def test_an_observer_sees_that_the_client_was_cut_off(end):
    with observed() as (proxy, seen, connect):
        client, server = connect()
        echo(client, server, 1)
        getattr(proxy, end)()
        assert seen.count((0, "client closed", b"")) == 1


def test_a_connection_that_lost_its_server_ends_when_its_client_leaves():
    with observed() as (proxy, seen, connect):
        client, server = connect()
        echo(client, server, 1)
        proxy.lose_server()
        client.sendall(b"into the void")
        wait_until(lambda: seen[2:] == [(0, "server closed", b""), (0, "from client", b"into the void")])
        assert proxy.connection_count == 1
        client.close()
        wait_until(lambda: proxy.connection_count == 0)
        assert seen[-1] == (0, "client closed", b"")


def test_a_loss_leaves_a_connection_that_ends_alone(capfd):
    with observed() as (proxy, seen, connect):
        client, server = connect()
        echo(client, server, 1)
        proxy.cut()
        assert proxy.connection_count == 1
        wait_until(lambda: [each for each in seen if each[1].endswith("closed")])
        proxy.lose_server()
        assert take_all(client) == take_all(server) == b""
        client.close()
        server.close()
        wait_until(lambda: proxy.connection_count == 0)
    assert capfd.readouterr().err == ""


# -- at byte n --------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1, 7, 100])
def test_reset_at_a_byte_lets_exactly_those_before_it_through(ends, offset):
    ends.proxy.to_client.reset_at(offset)
    client, server = ends.connect()
    server.sendall(bytes(range(200)))
    assert take_until_reset(client) == bytes(range(offset))
    assert ends.proxy.to_client.count == offset
    # It was for one connection; the next one is sound.
    client, server = ends.connect()
    server.sendall(bytes(200))
    assert take(client, 200) == bytes(200)


def test_a_reset_does_not_wait_for_a_connection_that_was_closed_meanwhile():
    sock = socket.socket()
    sock.close()
    _wait_until_taken(sock)
    assert sock.fileno() == -1


def test_reset_before_the_first_byte_meets_the_client_as_it_connects(ends):
    ends.proxy.to_client.reset_at(0)
    there = ("127.0.0.1", ends.proxy.port)
    with pytest.raises(ConnectionResetError), socket.create_connection(there, PATIENCE) as client:
        take_all(client)


@pytest.mark.parametrize("offset", [0, 1, 7, 100])
def test_cut_at_a_byte_ends_both_directions_in_good_order(ends, offset):
    ends.proxy.to_server.cut_at(offset)
    client, server = ends.connect()
    if offset:
        client.sendall(bytes(range(200)))
    assert take_all(server) == bytes(range(offset))
    assert take_all(client) == b""


def test_the_byte_is_counted_over_all_that_was_written_before(ends):
    ends.proxy.to_server.cut_at(6)
    client, server = ends.connect()
    for word in (b"one", b"two"):
        client.sendall(word)
        assert take(server, 3) == word
    assert take_all(server) == b""


def test_every_connection_is_hit_where_that_is_wanted(ends):
    ends.proxy.to_client.cut_at(3, every=True)
    for _ in range(3):
        client, server = ends.connect()
        server.sendall(b"answer")
        assert take_all(client) == b"ans"
    ends.proxy.clear()
    client, server = ends.connect()
    server.sendall(b"answer")
    assert take(client, 6) == b"answer"


def test_a_corrupt_byte_has_all_its_bits_turned(ends):
    ends.proxy.to_server.corrupt_at(2)
    client, server = ends.connect()
    client.sendall(b"\x00\x01\x02\x03")
    assert take(server, 4) == b"\x00\x01\xfd\x03"
    client, server = ends.connect()
    client.sendall(b"\x00\x01\x02\x03")
    assert take(server, 4) == b"\x00\x01\x02\x03"


def test_other_bytes_take_the_place_of_as_many_over_several_writes(ends):
    ends.proxy.to_server.corrupt_at(2, b"XYZ")
    ends.proxy.to_server.corrupt_at(8, b"!")
    client, server = ends.connect()
    came = b"".join(echo(client, server, byte) for byte in b"0123456789")
    assert came == b"01XYZ567!9"


def test_strikes_meet_in_their_order(ends):
    ends.proxy.to_server.reset_at(5)
    ends.proxy.to_server.corrupt_at(3)
    ends.proxy.to_server.corrupt_at(1, b"ab")
    client, server = ends.connect()
    client.sendall(b"\0" * 10)
    assert take_until_reset(server) == b"\0ab\xff\0"


# -- all connections --------------------------------------------------------------------------------


def test_cut_and_reset_end_the_connections_that_are_open(ends):
    for end, ended in ((ends.proxy.cut, take_all), (ends.proxy.reset, take_until_reset)):
        pairs = [ends.connect() for _ in range(3)]
        for client, server in pairs:
            client.sendall(b"x")
            assert take(server, 1) == b"x"
        end()
        for client, server in pairs:
            assert (ended(client), ended(server)) == (b"", b"")
            client.close()
            server.close()
        wait_until(lambda: ends.proxy.connection_count == 0)


def test_it_may_refuse_connections(ends):
    ends.proxy.accepting = False
    with socket.create_connection(("127.0.0.1", ends.proxy.port), PATIENCE) as refused:
        assert take_all(refused) == b""
    ends.proxy.clear()
    client, server = ends.connect()
    client.sendall(b"x")
    assert take(server, 1) == b"x"


def test_what_it_announces_may_be_known_before_the_nsqd_is():
    with FaultProxy() as proxy, running_nsqd(broadcast_tcp_port=proxy.port) as nsqd:
        proxy.target = nsqd.tcp_address
        assert nsqd.http.info().raw["tcp_port"] == int(nsqd.tcp_address.rpartition(":")[2])
        with Producer(proxy.address) as producer:
            producer.publish("clicks", b"a")
        nsqd.wait_until("clicks", messages=1)
        assert proxy.to_server.count > 0


def test_a_corrupted_magic_is_refused_by_nsqd_and_the_producer_tries_again(caplog):
    with running_nsqd() as nsqd, FaultProxy(nsqd.tcp_address) as proxy:
        proxy.to_server.corrupt_at(0)  # of "  V2"
        with Producer(proxy.address) as producer:
            producer.publish("clicks", b"a")
        assert [message.body for message in nsqd.messages("clicks")] == [b"a"]
    assert "nsqd answered E_BAD_PROTOCOL" in caplog.text


# -- where it runs ----------------------------------------------------------------------------------


def connect(proxy):
    return gevent_socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)


@pytest.mark.parametrize("own_thread", [False, True])
def test_it_serves_a_test_that_waits_in_its_own_hub(own_thread):
    with (
        scripted_nsqd() as server,
        FaultProxy(server.address, own_thread=own_thread) as proxy,
        connect(proxy) as client,
    ):
        peer = server.accept()
        client.sendall(b"before")
        assert peer.take(6) == b"before"
        proxy.freeze()
        client.sendall(b"frozen")
        peer.sock.settimeout(NOTHING)
        with pytest.raises(TimeoutError):
            peer.take(6)
        proxy.thaw()
        peer.sock.settimeout(PATIENCE)
        assert peer.take(6) == b"frozen"
        peer.send(b"answer")
        assert client.recv(6) == b"answer"
        assert (proxy.to_server.count, proxy.to_client.count) == (12, 6)
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


PATCHED = """
from gevent import monkey
monkey.patch_all()
import socket, threading
from gnsq_like.testing import FaultProxy

with socket.create_server(("127.0.0.1", 0)) as listener:
    with FaultProxy("127.0.0.1:%d" % listener.getsockname()[1]) as proxy:
        proxy.to_server.reset_at(3)
        client = socket.create_connection(("127.0.0.1", proxy.port), 10)
        server, _ = listener.accept()
        client.sendall(b"abcdef")
        assert server.recv(10) == b"abc"
        try:
            server.recv(10)
        except ConnectionResetError:
            print("reset after", proxy.to_server.count)
        client.close(), server.close()
"""


def test_it_serves_a_patched_process():
    done = subprocess.run([sys.executable, "-W", "error", "-c", PATCHED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("reset after 3\n", "")


def test_closing_twice_and_with_open_connections_is_fine(ends):
    client, server = ends.connect()
    ends.proxy.close()
    ends.proxy.close()
    assert (take_all(client), take_all(server)) == (b"", b"")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ends.proxy.port), PATIENCE)
