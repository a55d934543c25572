"""What the kernel says of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack

from tests.faults.resources import time_waited
from tests.support.daemons import wait_for

#: Its first thread does nothing; another wants all of one processor.
_BUSY = """
import os, sys, threading

def spin():
    while True:
        pass

os.sched_setaffinity(0, {int(sys.argv[1])})
threading.Thread(target=spin, daemon=True).start()
print("spins", flush=True)
sys.stdin.read()
"""


def test_the_time_that_a_second_thread_waits_for_a_processor_counts() -> None:
    processor = str(min(os.sched_getaffinity(0)))
    with ExitStack() as ends:
        processes = []
        for _ in range(2):
            command = [sys.executable, "-c", _BUSY, processor]
            process = ends.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            ends.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"spins\n"
        begin = time_waited(processes[0].pid)
        wait_for(lambda: time_waited(processes[0].pid) > begin + 0.5)


def test_a_process_that_has_ended_waits_no_more() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert time_waited(process.pid) == 0
