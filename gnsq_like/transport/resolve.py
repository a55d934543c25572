"""Looking up the addresses of a host, in threads of our own.

gevent's resolver shares ten threads with all other work that a hub does in threads: ten names whose servers do not
answer would stop every other lookup. Here each hub has 32 threads, and simultaneous lookups of the same host and port
share one. A lookup has a timeout, and one that finds no thread free fails at once. A resolver that the application has
chosen (``GEVENT_RESOLVER``) is used directly.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - getaddrinfo imports it; in a child forked meanwhile, the import would never end
from functools import partial
from typing import Any

import gevent
from gevent import monkey, socket

from gnsq_like.runtime import native
from gnsq_like.runtime.hub_calls import handle_here

#: Names that a hub looks up at once.
MOST_LOOKUPS = 32
#: Seconds after which an idle thread ends.
_IDLE_SECONDS = 5.0

_getaddrinfo = monkey.get_original("socket", "getaddrinfo")

#: Each OS thread's _Lookups. Native even if threading is patched.
_here: Any = native.local()


def resolve(host: str, port: int, timeout: float) -> list[Any]:
    """The result of ``getaddrinfo`` for a stream socket. May switch.

    :raises TimeoutError: no answer within ``timeout`` seconds, or too many lookups wait already
    :raises OSError, UnicodeError: as ``getaddrinfo``
    :raises RuntimeError: the thread cannot be started, as at the interpreter's exit
    """
    try:
        # A numeric address needs no resolver.
        return list(_getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST))
    except OSError:
        pass
    from gevent.resolver.thread import Resolver  # here: numeric addresses need no threads

    late = TimeoutError(f"not within {timeout:g} s")
    if not isinstance(gevent.get_hub().resolver, Resolver):
        with gevent.Timeout(timeout, late):
            return list(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
    running = _lookups().begin(host, port)
    if not gevent.wait([running], timeout):
        raise late
    found = running.get()
    if isinstance(found, Exception):
        raise found
    return list(found)


class _Lookups:
    """The lookups of one hub."""

    def __init__(self) -> None:
        from gnsq_like.runtime.thread_pool import ThreadPool

        self._pool = ThreadPool(MOST_LOOKUPS, idle_timeout=_IDLE_SECONDS)
        self.close = self._pool.close
        #: AsyncResults of addresses or an exception, by host and port.
        self._running: dict[tuple[str, int], Any] = {}

    def begin(self, host: str, port: int) -> Any:
        key = (host, port)
        if key not in self._running:
            if len(self._running) >= MOST_LOOKUPS:
                raise TimeoutError(f"{MOST_LOOKUPS} other lookups have had no answer yet; is the DNS server down?")
            self._running[key] = running = self._pool.begin(partial(_look_up, host, port))
            running.rawlink(lambda _: self._running.pop(key))
        return self._running[key]


def _look_up(host: str, port: int) -> Any:
    # In a thread.
    try:
        return _getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except Exception as exc:
        return exc


def _lookups() -> _Lookups:
    handle = handle_here()  # another one in a forked child, which has none of its parent's threads
    if getattr(_here, "handle", None) is not handle:
        _here.handle, _here.lookups = handle, _Lookups()
        handle.before_end.append(_here.lookups.close)
    lookups: _Lookups = _here.lookups
    return lookups
