"""A relay as a process of its own, for the commands of the web frameworks."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import gevent
from gevent.event import Event

from gnsq_like.contrib.reader_process import served_pages
from gnsq_like.contrib.shared.outbox.relay import Relay, RelayThread

if TYPE_CHECKING:
    from gnsq_like.contrib.prometheus import Metrics


def run_relay(relay: Relay, health: str | None, metrics: Metrics | None, report: Callable[[str], object]) -> None:
    """Run a relay until SIGTERM or SIGINT; for the other parameters see ``served_pages``. In the main thread only.

    The relay waits for the database and the Producer, which block a thread unless the process is patched; the main
    thread's hub has the signals and the pages.

    :raises NSQError: for a wrong address
    """
    stopped = Event()
    watchers = [gevent.signal_handler(number, stopped.set) for number in (signal.SIGTERM, signal.SIGINT)]
    for watcher in watchers:
        watcher.ref = True  # the hub may have nothing else to wait for
    try:
        with served_pages((), health, metrics, report, relays=(relay,)), RelayThread(relay):
            stopped.wait()
    finally:
        for watcher in watchers:
            watcher.cancel()
