"""Who blocks the hub is named once for each time, and nobody is named for nothing."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator

import gevent
import pytest

from gnsq_like import Message, Producer, Reader
from gnsq_like.runtime.hub_calls import handle_here
from gnsq_like.runtime.watchdog import Watchdog
from tests.support.daemons import running_nsqd, wait_for

#: A limit short enough for tests, and longer than this machine makes a hub wait.
SHORT = 0.4


Caplog = pytest.LogCaptureFixture


def dummies() -> set[str]:
    """The objects of threads that threading has not started: it removes none of them."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("Dummy")}


@pytest.fixture
def watchdog(caplog: Caplog) -> Iterator[Watchdog]:
    caplog.set_level(logging.WARNING, "gnsq_like.runtime.watchdog")
    threads, known = set(sys._current_frames()), dummies()
    made = Watchdog("t/c", handle_here(), SHORT)
    made.start()
    yield made
    made.stop()
    made.stop()
    wait_for(lambda: set(sys._current_frames()) <= threads, "its thread ends")
    assert dummies() == known


def reports(caplog: Caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "gnsq_like.runtime.watchdog"]


def blocks_the_hub(caplog: Caplog, count: int = 1) -> None:
    """Until so many reports were made."""
    end = time.monotonic() + 60
    while len(reports(caplog)) < count and time.monotonic() < end:
        time.sleep(0.01)


def test_what_blocks_is_named_once_with_its_stack(watchdog: Watchdog, caplog: Caplog) -> None:
    def block() -> None:
        blocks_the_hub(caplog)
        time.sleep(SHORT)  # and longer, which is what this is about: for some more looks

    gevent.spawn(block).join()
    [report] = reports(caplog)
    assert report.startswith("t/c: the hub has been blocked for ")
    assert ", by " in report
    assert "test_watchdog.py" in report
    assert "in block\n    blocks_the_hub(caplog)" in report


def test_each_block_is_reported_while_it_lasts(watchdog: Watchdog, caplog: Caplog) -> None:
    for number in range(2):
        end = time.monotonic() + 60
        while len(reports(caplog)) == number and time.monotonic() < end:
            pass  # in the hub's thread: a CPU-bound block
        wait_for(lambda: not watchdog._owes)
    assert len(reports(caplog)) == 2


def test_a_hub_that_waits_is_not_blocked(watchdog: Watchdog, caplog: Caplog) -> None:
    gevent.sleep(3 * SHORT)  # the wait that is not to be reported
    assert reports(caplog) == []


def test_a_stack_of_the_hub_itself_blames_nobody(watchdog: Watchdog, caplog: Caplog) -> None:
    """As after a stop of the whole process: late, but nothing runs in the hub's thread."""
    watchdog._owes = True
    gevent.sleep(3 * SHORT)  # so late that it would be reported
    assert reports(caplog) == []


def test_without_threads_nothing_is_watched_and_that_is_said(caplog: Caplog) -> None:
    watchdog = Watchdog("t/c", handle_here())
    usual = threading.stack_size(1 << 46)  # more than there is
    try:
        watchdog.start()
    finally:
        threading.stack_size(usual)
    watchdog.stop()
    assert reports(caplog) == ["t/c: a blocked hub will not be reported: can't start new thread"]


def test_a_reader_names_its_handler_and_stops_watching_with_its_stop(caplog: Caplog) -> None:
    caplog.set_level(logging.WARNING, "gnsq_like.runtime.watchdog")

    def handler(message: Message) -> None:
        blocks_the_hub(caplog)

    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"x")
        threads = set(sys._current_frames())
        with Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address) as reader:
            wait_for(lambda: reader.stats()["finished"] == 1, timeout=60)
            [report] = reports(caplog)
            assert "in blocks_the_hub" in report
            assert "in handler" in report
        wait_for(lambda: set(sys._current_frames()) <= threads, "its thread ends")
