"""A thread's hub: made once, and an error where file descriptors are lacking."""

from __future__ import annotations

import os
import threading
from typing import Any

import gevent

from gnsq_like.runtime.own_hub import own_hub
from tests.support.daemons import wait_for
from tests.support.processes import no_descriptors


def in_a_thread(hubs: list[Any]) -> None:
    def work() -> None:
        try:
            hubs.extend([own_hub(), own_hub()])
        except OSError as exc:
            hubs.append(exc.strerror)
        else:
            hubs[-1].destroy(destroy_loop=True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_thread_gets_one_hub() -> None:
    assert own_hub() is gevent.get_hub()
    hubs: list[Any] = []
    in_a_thread(hubs)
    assert hubs[0] is hubs[1]
    assert hubs[0] is not own_hub()


def test_without_descriptors_the_process_goes_on() -> None:
    hubs: list[Any] = []
    gevent.get_hub()
    with no_descriptors(os.getpid()):
        in_a_thread(hubs)
        assert own_hub() is gevent.get_hub()  # one that exists needs none
    assert hubs == ["Too many open files"]


def test_it_takes_no_descriptors_itself() -> None:
    before = os.listdir("/proc/self/fd")
    with no_descriptors(os.getpid()):
        in_a_thread([])
    # Other tests' threads may have some open for a moment.
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= len(before))
