"""Connects to an address. A name may have several: each gets a head start over the next one (RFC 8305, "happy
eyeballs"), so an address that swallows packets costs a quarter of a second.

Names are looked up in the hub's threads (``hub_threads``). gevent's resolver shares ten threads with all other work
that a hub does in threads: ten names whose servers do not answer would stop every other lookup. Simultaneous lookups of
the same host and port share one. A lookup has a timeout, and one that finds too many others fails at once. A resolver
that the application has chosen (``GEVENT_RESOLVER``) is used directly.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - getaddrinfo imports it; in a child forked meanwhile, the import would never end
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import gevent
from gevent import monkey, socket
from gevent.event import Event

from gnsq_like.addresses import Address, join_host_port
from gnsq_like.errors import ConnectionFailed, reason_of
from gnsq_like.runtime.timer import LEAST_TIMEOUT
from gnsq_like.transport.tcp import TcpTransport

#: Seconds after which the next address is tried beside those that have not answered; RFC 8305's.
HEAD_START = 0.25

#: Names that a hub looks up at once: half of its threads.
MOST_LOOKUPS = 32

#: Errors of a dial. UnicodeError: a name that DNS cannot encode, such as "foo..bar" or one with a label over 63
#: characters. RuntimeError: the resolver's thread cannot be started, as at the interpreter's exit.
_FAILURES = (OSError, UnicodeError, RuntimeError)

_getaddrinfo = monkey.get_original("socket", "getaddrinfo")


def dial(address: Address, timeout: float) -> TcpTransport:
    """Connect to ``address`` within ``timeout`` seconds, trying all addresses its name resolves to. May switch.

    :raises ConnectionFailed: if none accepts the connection
    """
    deadline = time.monotonic() + timeout
    if address.path:
        targets = [(socket.AF_UNIX, address.path)]
    else:
        targets = [(family, target) for family, _, _, _, target in _resolve(address, timeout)]
    if not targets:
        raise ConnectionFailed(str(address), "its name resolves to no address")
    if time.monotonic() >= deadline:
        raise ConnectionFailed(str(address), "the time to connect is over")
    is_one = len(targets) == 1
    outcomes = [_connect(*targets[0], deadline)] if is_one else _race(targets, deadline)
    if isinstance(outcomes[0], socket.socket):
        return TcpTransport(outcomes[0])
    reasons = [
        _reason(exc) if is_one else f"{join_host_port(*target[:2])}: {_reason(exc)}"
        for (_, target), exc in zip(targets, outcomes, strict=True)
    ]
    raise ConnectionFailed(str(address), "; ".join(reasons)) from outcomes[-1]


def _resolve(address: Address, timeout: float) -> Any:
    try:
        return _addresses(address.host, address.port, timeout)
    except TimeoutError as exc:
        raise ConnectionFailed(str(address), f"its name was not resolved: {exc}") from exc
    except _FAILURES as exc:
        raise ConnectionFailed(str(address), f"its name cannot be resolved: {_reason(exc)}") from exc


def _addresses(host: str, port: int, timeout: float) -> Any:
    try:
        # A numeric address needs no resolver.
        return _getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    except OSError:
        pass
    from gevent.resolver.thread import Resolver  # here: numeric addresses need no threads

    from gnsq_like.runtime.thread_pool import hub_threads, result_of

    late = TimeoutError(f"not within {timeout:g} s")
    if not isinstance(gevent.get_hub().resolver, Resolver):
        with gevent.Timeout(timeout, late):
            return socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    threads, name = hub_threads(), (host, port)
    lookups = threads.shared
    if name not in lookups:
        if len(lookups) >= MOST_LOOKUPS:
            raise TimeoutError(f"{MOST_LOOKUPS} other lookups have had no answer yet; is the DNS server down?")
        lookups[name] = threads.begin(_getaddrinfo, host, port, 0, socket.SOCK_STREAM)
        lookups[name].rawlink(lambda _: lookups.pop(name))
    running = lookups[name]
    if not gevent.wait([running], timeout):
        raise late
    return result_of(running)


def _connect(family: int, target: Any, deadline: float) -> Any:
    """The socket, connected to one of a name's addresses, or the exception if that fails. May switch."""
    try:
        with ExitStack() as failed:
            sock = failed.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.settimeout(max(deadline - time.monotonic(), LEAST_TIMEOUT))
            sock.connect(target)
            sock.settimeout(None)
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            failed.pop_all()
    except _FAILURES as exc:
        return exc
    return sock


def _race(targets: list[tuple[int, Any]], deadline: float) -> list[Any]:
    """The socket of the first address that accepts; if none does, the exception of each. May switch."""
    changed = Event()
    waiting = iter(targets)
    running: list[Any] = []
    winner = None
    try:
        while winner is None:
            following = next(waiting, None)
            if following is not None:
                running.append(gevent.spawn(_connect, *following, deadline))
                running[-1].rawlink(lambda _: changed.set())
            elif all(each.ready() for each in running):
                return [each.value for each in running]
            changed.clear()
            changed.wait(HEAD_START if following is not None else None)
            winner = next(_sockets(running), None)
        return [winner]
    finally:
        try:
            gevent.killall(running)
        finally:
            for sock in _sockets(running):
                if sock is not winner:
                    sock.close()


def _sockets(attempts: list[Any]) -> Iterator[Any]:
    return (each.value for each in attempts if isinstance(each.value, socket.socket))


def _reason(exc: Exception | None) -> str:
    return "no answer in time" if exc is None or isinstance(exc, TimeoutError) else reason_of(exc)
