"""The hub's turn, and threads with a hub and without one: the cases of call_blocking() (runtime/thread_pool.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
from gevent import monkey


def settle() -> None:
    """Let the hub do all that is due."""
    for _ in range(3):
        gevent.idle()


@contextmanager
def counting_rounds() -> Iterator[list[int]]:
    """The only element of the list is the number of this hub's rounds in the block."""
    rounds = [0]

    def count() -> None:
        rounds[0] += 1

    with gevent.get_hub().loop.prepare() as watcher:
        watcher.start(count)
        yield rounds


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
