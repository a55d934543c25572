"""Listening, and what is announced of the address: TCP in both families, and unix sockets with their files."""

import os
import socket
from pathlib import Path

import pytest

from gnsq_like.errors import InvalidAddress
from gnsq_like.httpd.listen import bound_address, broadcast_host, dial, listen, port_of, unlink_socket


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "0.0.0.0"])
def test_port_0_takes_a_free_port_that_can_be_dialled(host: str) -> None:
    with listen(f"{host}:0") as listener:
        address = bound_address(listener)
        assert port_of(address) == listener.getsockname()[1] > 0
        with dial(address, 5) as client:
            assert client.getpeername()[1] == port_of(address)
        with pytest.raises(OSError, match="in use"):
            listen(address)


@pytest.mark.parametrize("address", ["0.0.0.0:0", ":0", "[::]:0"])
def test_all_interfaces_are_those_of_both_families(address: str) -> None:
    with listen(address) as listener:
        port = port_of(bound_address(listener))
        for host in ("127.0.0.1", "[::1]"):
            with dial(f"{host}:{port}", 5) as client:
                assert client.getpeername()[1] == port


def test_one_interface_is_that_of_one_family() -> None:
    with listen("[::1]:0") as listener, pytest.raises(OSError, match="refused"):
        dial(f"127.0.0.1:{port_of(bound_address(listener))}", 5)


def test_a_unix_socket_replaces_the_file_of_a_dead_daemon_only(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/socket"
    first = listen(address)
    assert bound_address(first) == address
    assert port_of(address) == -1
    with dial(address, 5), pytest.raises(OSError, match="in use"):
        listen(address)
    first.close()
    with listen(address) as second, dial(address, 5) as client:
        assert client.getpeername() == second.getsockname()
    unlink_socket(address)
    unlink_socket(address)
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_not_a_socket_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="in use"):
        listen(f"unix:{tmp_path}/file")
    assert (tmp_path / "file").read_text() == "mine"


def test_what_is_announced_is_a_host_that_others_can_reach() -> None:
    assert broadcast_host("127.0.0.1:4150") == "127.0.0.1"
    assert broadcast_host("[::1]:4150") == "::1"
    for anywhere in ("0.0.0.0:4150", "[::]:4150", "unix:/socket"):
        assert broadcast_host(anywhere) == socket.gethostname()


def test_malformed_addresses_open_nothing() -> None:
    with pytest.raises(InvalidAddress):
        listen("localhost")
    with pytest.raises(InvalidAddress):
        dial("localhost", 5)
