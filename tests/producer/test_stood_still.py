"""Processes that stand still beyond a deadline (no CPU, a machine that slept): what nsqd has confirmed is confirmed."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.support.nsqds import answer_one, identified
from tests.support.peer import OK, scripted_nsqd
from tests.support.processes import stopped
from tests.support.scripts import ROOT

#: Prints the deadline of its second publish, and what became of it.
_PROGRAM = """
import asyncio, sys, time
from gnsq_like import Producer
from gnsq_like.errors import PublishError

producer = Producer(sys.argv[1])
timeout = float(sys.argv[2])
producer.publish("t", b"first", timeout=60)
print(time.monotonic() + timeout, flush=True)
try:
    {publish}
except PublishError as exc:
    print(repr(exc))
else:
    print("confirmed")
"""
_PATCH = "from gevent import monkey; monkey.patch_all()"
_CALL = 'producer.publish("t", b"second", timeout=timeout)'
WAYS = {
    "a thread without a hub": ("", _CALL),
    "a greenlet": ("", 'import gevent; gevent.spawn(producer.publish, "t", b"second", timeout=timeout).get()'),
    "the hub of the connections": (_PATCH, _CALL),
    "a result": ("", 'producer.publish_async("t", b"second", timeout=timeout).get()'),
    "asyncio": ("", 'asyncio.run(producer.apublish("t", b"second", timeout=timeout))'),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_publish_whose_answer_came_meanwhile_is_confirmed(way: str) -> None:
    patch, publish = WAYS[way]
    program = patch + _PROGRAM.format(publish=publish)
    # Where the process could not be stopped before the deadline, there has to be more time.
    for timeout in (0.5, 5.0, 50.0):
        with scripted_nsqd() as nsqd:
            command = [sys.executable, "-c", program, nsqd.address, str(timeout)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
                assert process.stdout is not None
                peer = identified(nsqd)
                answer_one(peer, b"first")
                deadline = float(process.stdout.readline())
                assert (peer.line(), peer.body()) == (b"PUB t", b"second")
                with stopped(process.pid):
                    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
                    in_time = time.monotonic() < deadline
                    peer.send(OK)
                    # A stopped process does nothing at its deadline, so there is only the time to wait for.
                    time.sleep(max(0.0, deadline + 0.5 - time.monotonic()))
                said, _ = process.communicate()
        if in_time:
            break
    assert (in_time, said) == (True, "confirmed\n")
