"""Signals are borrowed while a Reader runs, where nobody else needs them, and given back."""

from __future__ import annotations

import pytest

from tests.support.scripts import run_script

#: ``stopped`` notes each run that a signal has ended, ``caught`` each signal that the program's own handler has got.
BEGINNING = """
import logging
import os
import signal
import sys
import threading
import time

import gevent

from gnsq_like import Reader

stopped = []
caught = []
records = []

class Kept(logging.Handler):
    def emit(self, record):
        records.append(record.getMessage())

logger = logging.getLogger("gnsq_like.runtime.signals")
logger.addHandler(Kept())
logger.setLevel(logging.INFO)
logger.propagate = False
logging.getLogger("gnsq_like.discovery.outages").disabled = True

def make():
    return Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:1")

def run(reader, number=None):
    if number is not None:
        gevent.spawn(lambda: os.kill(os.getpid(), number))
    reader.run(stop_timeout=5)
    stopped.append(number)

def send(number):
    "A signal, and the time in which Python or gevent calls its handler."
    before = len(caught)
    os.kill(os.getpid(), number)
    until = time.monotonic() + 60
    while len(caught) == before and time.monotonic() < until:
        gevent.sleep(0.001)
"""


def script(body: str, *arguments: str, patched: bool = False) -> None:
    beginning = "from gevent import monkey\nmonkey.patch_all()\n" if patched else ""
    run_script(beginning + BEGINNING + body, *arguments)


@pytest.mark.parametrize("patched", [False, True])
def test_signals_are_given_back_after_a_run(patched: bool) -> None:
    """Ctrl-C raises KeyboardInterrupt again, and the program's own handler is called."""
    script(
        """
signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
run(make(), signal.SIGTERM)
assert stopped == [signal.SIGTERM] and not caught
send(signal.SIGTERM)
assert caught == [signal.SIGTERM]
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    caught.append("KeyboardInterrupt")
assert caught[1:] == ["KeyboardInterrupt"]
""",
        patched=patched,
    )


def test_a_handler_of_gevents_that_the_program_has_goes_on() -> None:
    script(
        """
gevent.signal_handler(signal.SIGTERM, caught.append, signal.SIGTERM)
run(make(), signal.SIGTERM)
assert caught == [signal.SIGTERM]
send(signal.SIGTERM)
assert caught == [signal.SIGTERM] * 2
"""
    )


@pytest.mark.parametrize("where", ["a greenlet", "a patched thread"])
def test_a_run_beside_others_leaves_signals_that_are_handled(where: str) -> None:
    """As gunicorn's workers do, whose own handlers end them in order."""
    script(
        """
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: caught.append(number))
reader = make()
if sys.argv[1] == "a greenlet":
    running = gevent.spawn(run, reader)
else:
    running = threading.Thread(target=run, args=(reader,))
    running.start()
while reader.stats()["state"] != "running":
    gevent.sleep(0.001)
send(signal.SIGTERM)
send(signal.SIGINT)
assert caught == [signal.SIGTERM, signal.SIGINT]
assert reader.stats()["state"] == "running"
assert len(records) == 1 and "to the program" in records[0], records
reader.stop()
running.join()
""",
        where,
        patched=where == "a patched thread",
    )


@pytest.mark.parametrize("where", ["a greenlet", "a patched thread"])
def test_a_run_beside_others_takes_signals_that_nobody_handles(where: str) -> None:
    script(
        """
reader = make()
if sys.argv[1] == "a greenlet":
    running = gevent.spawn(run, reader, signal.SIGTERM)
else:
    running = threading.Thread(target=run, args=(reader, signal.SIGTERM))
    running.start()
running.join()
assert stopped == [signal.SIGTERM]
assert not records
""",
        where,
        patched=where == "a patched thread",
    )


@pytest.mark.parametrize("patched", [False, True])
def test_a_process_that_a_thread_has_forked_stops_at_a_signal(patched: bool) -> None:
    """Its main thread is another one than gevent's."""
    script(
        """
import multiprocessing
import tempfile

note = os.path.join(tempfile.mkdtemp(), "runs")

def work():
    reader = make()
    gevent.spawn(os.mkdir, note)
    reader.run(stop_timeout=5)

def fork():
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    while not os.path.exists(note):
        time.sleep(0.001)
    process.terminate()
    process.join()
    caught.append(process.exitcode)

gevent.get_hub()
thread = threading.Thread(target=fork)
thread.start()
thread.join()
assert caught == [0], caught
""",
        patched=patched,
    )
