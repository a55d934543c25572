"""Listen on a daemon's addresses, accept clients, and connect to other daemons.

When file descriptors are exhausted, every accept fails. gevent waits before the next one, from 10 ms up to a second,
but prints the traceback of each. It waits as well, and prints nothing, for an exception that is no error; so a failed
accept is one line of the log here.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket as plain_socket
import stat
from typing import Any

from gevent import GreenletExit, socket
from gevent.baseserver import BaseServer
from gevent.server import StreamServer

from gnsq_like.addresses import Address, parse_address

_BACKLOG = 1024
#: Hosts that stand for all interfaces, of IPv4 and IPv6.
_ALL_INTERFACES = ("", "0.0.0.0", "::")
#: The prefix of an IPv4 client's address in IPv6.
_MAPPED = "::ffff:"


def listen(address: str) -> socket.socket:
    """Open a listening socket.

    :raises InvalidAddress: if the address is malformed
    :raises OSError: if it cannot be listened on, usually because it is in use
    """
    where = parse_address(address, to_listen=True)
    if where.path:
        _remove_stale(where.path)
        return _listening(socket.AF_UNIX, where.path)
    if where.host not in _ALL_INTERFACES:
        return _listening(socket.AF_INET6 if ":" in where.host else socket.AF_INET, (where.host, where.port))
    try:  # as in Go, also for 0.0.0.0
        return _listening(socket.AF_INET6, ("::", where.port))
    except OSError as exc:
        if exc.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return _listening(socket.AF_INET, ("0.0.0.0", where.port))  # a machine without IPv6


def _listening(family: int, target: str | tuple[str, int]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections inherit this. Without it the second of an HTTP response's two writes is delayed by 40 ms.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, target[0] != "::")
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
    return plain_socket.gethostname() if host in _ALL_INTERFACES else host


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


class Acceptor(BaseServer):
    """Mixed into gevent's servers."""

    #: The daemon's.
    accept_log = logging.getLogger("gnsq_like")

    def do_read(self) -> object:
        """Called by gevent when clients wait: accept one, or raise."""
        try:
            accepted: Any = super().do_read()
            if accepted is not None and isinstance(accepted[1], tuple) and accepted[1][0].startswith(_MAPPED):
                sock, (host, port, *_) = accepted
                return sock, (host.removeprefix(_MAPPED), port)
            return accepted
        except OSError as exc:
            if exc.errno in self.fatal_errors:
                raise  # the listener is closed
            if exc.errno in (errno.EMFILE, errno.ENFILE):
                self.make_room()
            address = bound_address(self.socket)
            reason = (exc.strerror or str(exc)).lower()
            self.accept_log.warning("temporary Accept() failure - accept %s: %s", address, reason)
            raise GreenletExit from exc

    def make_room(self) -> None:
        """Called when no descriptor is free for a client: close a connection that can be spared. Never switches."""


class TCPServer(Acceptor, StreamServer):
    """For TCP clients."""
