"""Running until SIGTERM or SIGINT: for one Reader, and for several."""

from __future__ import annotations

import signal as signals
from typing import Any, Protocol

import gevent

from gnsq_like.errors import check_seconds


class Runnable(Protocol):
    """A Reader, or several as one."""

    @property
    def error(self) -> Exception | None: ...

    def start(self) -> None: ...
    def wait(self) -> bool: ...
    def stop(self, timeout: float) -> int: ...


def run_until_signal(runnable: Runnable, stop_timeout: float) -> None:
    """Start, and wait until it has stopped: by a signal, by ``stop``, or by itself. May switch.

    Signals are handled only in the main thread. A second SIGINT (a second Ctrl-C) ends the wait for running handlers.

    :param stop_timeout: seconds for running handlers after a signal
    :raises InvalidOption: before it starts, if stop_timeout is no number
    :raises Exception: its ``error``, if it has one
    """
    check_seconds("stop_timeout", stop_timeout)
    runnable.start()
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        runnable.stop(0.0 if len(received) > 1 and number == signals.SIGINT else stop_timeout)

    handlers: list[Any] = []
    if gevent.get_hub().main_hub:
        handlers = [gevent.signal_handler(number, stop, number) for number in (signals.SIGTERM, signals.SIGINT)]
    try:
        runnable.wait()
    finally:
        for handler in handlers:
            handler.cancel()
        runnable.stop(stop_timeout)
    if runnable.error is not None:
        raise runnable.error
