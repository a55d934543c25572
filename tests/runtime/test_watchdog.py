"""Who blocks the hub is named once for each time, and nobody is named for nothing."""

import logging
import sys
import time

import gevent
import pytest

from gnsq_like import Producer, Reader
from gnsq_like.runtime.watchdog import LIMIT, Watchdog
from tests.support.daemons import running_nsqd, wait_for

#: A limit short enough for tests, and longer than this machine makes a hub wait.
SHORT = 0.4


@pytest.fixture
def watchdog(caplog):
    caplog.set_level(logging.WARNING, "gnsq_like.runtime.watchdog")
    threads = set(sys._current_frames())
    made = Watchdog("t/c", SHORT)
    made.start()
    yield made
    made.stop()
    made.stop()
    wait_for(lambda: set(sys._current_frames()) <= threads, "its thread ends")


def blocks_the_hub(seconds):
    time.sleep(seconds)


def reports(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "gnsq_like.runtime.watchdog"]


def test_what_blocks_is_named_once_with_its_stack(watchdog, caplog):
    gevent.spawn(blocks_the_hub, 3.5 * SHORT).join()
    [report] = reports(caplog)
    assert report.startswith("t/c: the hub has been blocked for ")
    assert "by blocks_the_hub:\n" in report
    assert "time.sleep(seconds)" in report
    assert "test_watchdog.py" in report


def test_each_block_is_reported_while_it_lasts(watchdog, caplog):
    for number in range(2):
        end = time.monotonic() + 30
        while len(reports(caplog)) == number and time.monotonic() < end:
            pass  # in the hub's thread: a CPU-bound block
        gevent.sleep(SHORT / 2)
    assert len(reports(caplog)) == 2


def test_a_hub_that_waits_is_not_blocked(watchdog, caplog):
    gevent.sleep(3 * SHORT)
    assert reports(caplog) == []


def test_a_stack_of_the_hub_itself_blames_nobody(caplog):
    """As after a stop of the whole process: late, but nothing runs in the hub's thread."""
    watchdog = Watchdog("t/c", SHORT)
    watchdog.start()
    watchdog._timer.stop()
    gevent.sleep(3 * SHORT)
    watchdog.stop()
    assert reports(caplog) == []


def test_a_reader_names_its_handler_and_stops_watching_with_its_stop(caplog):
    caplog.set_level(logging.WARNING, "gnsq_like.runtime.watchdog")

    def handler(message):
        blocks_the_hub(LIMIT * 1.9)

    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"x")
        threads = set(sys._current_frames())
        with Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address) as reader:
            wait_for(lambda: reader.stats()["finished"] == 1)
            [report] = reports(caplog)
            assert "by blocks_the_hub:\n" in report
            assert "in handler" in report
        wait_for(lambda: set(sys._current_frames()) <= threads, "its thread ends")
