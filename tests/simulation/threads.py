"""Threads and names without threads.

A call in a thread pool runs in a greenlet, after the time that the disk or whatever it waits for takes. Native threads
do not start.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import gevent
import gevent.threadpool
from gevent import monkey
from gevent.event import AsyncResult

from gnsq_like.runtime import dispatcher, hub_calls, native
from tests.simulation.loop import Loop
from tests.simulation.network import HOST
from tests.simulation.process import CURRENT

_getaddrinfo = monkey.get_original("socket", "getaddrinfo")


class Pool:
    """In the place of gevent's ThreadPool."""

    def __init__(self, maxsize: int, hub: object = None, idle_task_timeout: float = -1) -> None:
        self.maxsize = maxsize
        #: Running calls.
        self.size = 0
        self._waiting: deque[Callable[[], object]] = deque()

    def spawn(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> AsyncResult:
        """Call it as soon as fewer than ``maxsize`` calls run."""
        result = AsyncResult()

        def run() -> None:
            try:
                gevent.sleep(CURRENT.get().thread_delay())
                result.set(function(*arguments, **named))
            except BaseException as exc:
                result.set_exception(exc)
            finally:
                self.size -= 1
                self._start()

        self._waiting.append(run)
        self._start()
        return result

    def _start(self) -> None:
        while self._waiting and self.size < self.maxsize:
            self.size += 1
            gevent.spawn(self._waiting.popleft())

    def kill(self) -> None:
        """Wait for the running calls."""
        while self.size:
            gevent.sleep(0.001)

    join = kill


class Resolver:
    """Names: every one that is known is this machine."""

    def __init__(self) -> None:
        #: Seconds that a look-up takes, and whether it fails then.
        self.delay = 0.0
        self.fails = False
        self.known = ["localhost", "simulated"]

    def getaddrinfo(self, host: str, port: object, *rest: Any) -> Any:
        try:
            return _getaddrinfo(host, port, rest[0] if rest else 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
        except OSError:
            self._look_up(host)
        return _getaddrinfo(HOST, port, socket.AF_INET, socket.SOCK_STREAM)

    def _look_up(self, host: str) -> None:
        if self.delay:
            gevent.sleep(self.delay)
        if self.fails or host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def gethostbyname(self, host: str) -> str:
        return HOST

    def gethostbyaddr(self, address: str) -> tuple[str, list[str], list[str]]:
        return "localhost", [], [HOST]

    def close(self) -> None:
        pass


class _Local:
    """In the place of what each thread has: what each process has, each with a thread of its own.

    :param kind: makes one
    """

    def __init__(self, kind: type) -> None:
        self.__dict__["_kind"] = kind
        self.__dict__["_all"] = {}

    def _own(self) -> Any:
        own = self._all.get(process := CURRENT.get())
        if own is None:
            own = self._all[process] = self._kind()
        return own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own(), name, value)


def install(loop: Loop, hub: Any) -> None:
    """From now on, nothing starts a native thread."""
    hub_calls._here = _Local(hub_calls._Here)  # type: ignore[assignment]
    dispatcher._here = _Local(dispatcher._Here)  # type: ignore[assignment]
    hub.resolver = Resolver()
    hub._threadpool = Pool(10)
    gevent.threadpool.ThreadPool = Pool
    native.start_new_thread = lambda function, arguments: 0
    socket.gethostname = lambda: "simulated"
