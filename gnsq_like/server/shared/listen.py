"""Addresses of daemons: listening on them, connecting to them, and saying what they are."""

from __future__ import annotations

import contextlib
import os
import socket as plain_socket
import stat

from gevent import socket

from gnsq_like.addresses import join_host_port
from gnsq_like.errors import InvalidAddress

_BACKLOG = 1024
_UNIX = "unix:"


def split_address(address: str) -> tuple[str, int] | str:
    """(host, port), or the path of a unix socket.

    :raises InvalidAddress: if it is neither "host:port", "[ipv6]:port" nor "unix:/path"
    """
    if address.startswith(_UNIX):
        path = address.removeprefix(_UNIX)
        if not path:
            raise InvalidAddress(address, "the path is missing")
        return path
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidAddress(address, "the port is missing or not a number up to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidAddress(address, "an IPv6 address goes in brackets")
    return host, int(port)


def listen(address: str) -> socket.socket:
    """A listening socket.

    :raises InvalidAddress: if the address is none
    :raises OSError: if it cannot be listened on, mostly because it is taken
    """
    where = split_address(address)
    if isinstance(where, str):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        target: tuple[str, int] | str = where
        _remove_stale(where)
    else:
        host, port = where
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. An HTTP answer is written in two pieces, and would wait 40 ms between them.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        target = (host, port)
    try:
        listener.bind(target)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: str) -> None:
    """Remove the socket file of a daemon that is gone: nobody answers there."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except OSError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)


def unlink_socket(address: str) -> None:
    """Remove the file of a unix socket that is listened on no more; nothing for TCP."""
    where = split_address(address)
    if isinstance(where, str):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(where)


def bound_address(listener: socket.socket) -> str:
    """The address that a socket listens on, with its real port."""
    if listener.family == plain_socket.AF_UNIX:
        return _UNIX + str(listener.getsockname())
    host, port = listener.getsockname()[:2]
    return join_host_port(host, port)


def port_of(address: str) -> int:
    """The port of a bound address; -1 for a unix socket, as nsqd says it."""
    where = split_address(address)
    return -1 if isinstance(where, str) else where[1]


def broadcast_host(address: str) -> str:
    """What to announce for a bound address: its host, or the machine's name if it is bound to all."""
    where = split_address(address)
    if isinstance(where, str) or where[0] in ("", "0.0.0.0", "::"):
        return plain_socket.gethostname()
    return where[0]


def dial(address: str, timeout: float) -> socket.socket:
    """Connect to a daemon. May switch.

    :raises OSError: if that fails, or takes longer than ``timeout`` seconds
    """
    where = split_address(address)
    if isinstance(where, str):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout)
        try:
            connection.connect(where)
        except BaseException:
            connection.close()
            raise
        return connection
    return socket.create_connection(where, timeout)
