"""Listen on a daemon's addresses, and connect to those of other daemons."""

from __future__ import annotations

import contextlib
import os
import socket as plain_socket
import stat

from gevent import socket

from gnsq_like.addresses import Address, parse_address

_BACKLOG = 1024


def listen(address: str) -> socket.socket:
    """Open a listening socket.

    :raises InvalidAddress: if the address is malformed
    :raises OSError: if it cannot be listened on, mostly because it is in use
    """
    where = parse_address(address, to_listen=True)
    target: tuple[str, int] | str = where.path or (where.host, where.port)
    if where.path:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _remove_stale(where.path)
    else:
        family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit this. Without it the second of an HTTP response's two writes is delayed by 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind(target)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: str) -> None:
    """Remove the socket file of a daemon that is gone: one that refuses connections."""
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
    """Remove the file of a unix socket after its listener is closed; does nothing for TCP."""
    if path := parse_address(address).path:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def bound_address(listener: socket.socket) -> str:
    """The address that a socket listens on, with its real port."""
    name = listener.getsockname()
    return str(Address("", 0, name) if listener.family == plain_socket.AF_UNIX else Address(*name[:2]))


def port_of(address: str) -> int:
    """The port of a bound address; -1 for a unix socket, as nsqd reports it."""
    where = parse_address(address)
    return -1 if where.path else where.port


def broadcast_host(address: str) -> str:
    """The host to announce for a bound address; the machine's name if it is bound to all interfaces."""
    host = parse_address(address).host
    return plain_socket.gethostname() if host in ("", "0.0.0.0", "::") else host


def dial(address: str, timeout: float) -> socket.socket:
    """Connect to a daemon. May switch.

    :raises InvalidAddress: if the address is malformed
    :raises OSError: if that fails, or takes longer than ``timeout`` seconds
    """
    where = parse_address(address)
    if not where.path:
        return socket.create_connection((where.host, where.port), timeout)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    try:
        connection.connect(where.path)
    except BaseException:
        connection.close()
        raise
    return connection
