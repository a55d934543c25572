"""Places that requests are made from: the cases of call_blocking() in gnsq_like/runtime/thread_pool.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import gevent
from gevent import monkey

#: Calls a function somewhere; returns its value, or raises its error.
Place = Callable[[Callable[[], Any]], Any]


def in_plain_thread(work: Callable[[], Any]) -> Any:
    """The value or the error of ``work()``, run in a new OS thread (a greenlet, where threads are patched)."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as exc:
            outcome.append((None, exc))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def in_hub_thread(work: Callable[[], Any]) -> Any:
    """The value or the error of ``work()``, run in a new OS thread that has a hub."""

    def with_hub() -> Any:
        hub = gevent.get_hub()
        try:
            return work()
        finally:
            hub.destroy(destroy_loop=True)

    return in_plain_thread(with_hub)


# test_in_threads.py runs tests again in a patched process, where there is one case only.
PLACES: dict[str, Place] = {"plain thread": in_plain_thread, "thread with a hub": in_hub_thread}
if monkey.is_module_patched("socket"):
    PLACES = {"patched": in_plain_thread}
