"""Daemons as child processes: with a hub, without one, and in patched programs."""

import signal
import sys

import pytest

from gnsq_like.server.daemon_process import DaemonFailed, DaemonProcess
from gnsq_like.testing import wait_until
from tests.support.hub import PLACES, Place
from tests.support.patient import NsqdHTTPClient
from tests.support.scripts import run_script

NSQD = ["nsqd", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--data-path="]
#: Seconds for an end, on a busy machine.
PATIENCE = 30.0


def program(code: str, *listens: str) -> DaemonProcess:
    """A daemon that runs this Python code."""
    return DaemonProcess("nsqd 1", ["-c", code], program=[sys.executable], listens=listens or ("TCP", "HTTP"))


def start_and_end() -> None:
    nsqd = DaemonProcess("nsqd", NSQD)
    try:
        nsqd.start()
        nsqd.wait_until_listening()
        with NsqdHTTPClient(nsqd.http_address) as client:
            client.ping()
        assert nsqd.is_running
        assert f"INFO: TCP: listening on {nsqd.tcp_address}\n" in nsqd.log
        assert nsqd.https_address == ""
        nsqd.signal(signal.SIGTERM)
        assert nsqd.end(PATIENCE)
    finally:
        nsqd.end(0)
    assert (nsqd.is_running, nsqd.status, nsqd.how_it_ended) == (False, 0, "it ended with status 0")


@pytest.mark.parametrize("place", PLACES)
def test_a_daemon_is_started_and_ended(place: str) -> None:
    in_place: Place = PLACES[place]
    in_place(start_and_end)


def test_a_patched_program_starts_daemons_too() -> None:
    code = """
        from gevent import monkey
        monkey.patch_all()
        from tests.server.test_daemon_process import start_and_end
        start_and_end()
        print("done")
    """
    assert run_script(code) == ["done"]


def test_the_exit_statuses_of_other_children_are_left_alone() -> None:
    code = """
        import subprocess, sys, gevent
        from tests.server.test_daemon_process import start_and_end
        gevent.spawn(start_and_end).get()
        print(subprocess.run([sys.executable, "-c", "raise SystemExit(7)"]).returncode)
    """
    assert run_script(code) == ["7"]


def test_it_may_not_start() -> None:
    missing = DaemonProcess("nsqd 1", [], program=["/nowhere/nsqd"])
    with pytest.raises(DaemonFailed, match=r"^nsqd 1 did not start: /nowhere/nsqd: No such file or directory$"):
        missing.start()
    assert missing.end(0)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(3)", "it ended with status 3"),
        ("import os; os.abort()", "it was killed by SIGABRT"),
        ("raise SystemExit('[nsqd] 2024/05/06 07:08:09.000000 FATAL: no disk\\n')", "FATAL: no disk"),
    ],
)
def test_it_may_end_before_it_listens(code: str, reason: str) -> None:
    daemon = program(code)
    daemon.start()
    with pytest.raises(DaemonFailed, match=f"^nsqd 1 did not start: {reason}$"):
        daemon.wait_until_listening(PATIENCE)
    assert daemon.end(0)


def test_it_may_never_listen_and_ignore_signals() -> None:
    code = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("INFO: TCP: listening on 127.0.0.1:1", file=sys.stderr, flush=True)
signal.pause()
"""
    daemon = program(code, "TCP", "HTTPS")
    daemon.start()
    try:
        with pytest.raises(DaemonFailed, match=r"^nsqd 1 did not start: it did not listen within 1 s$"):
            daemon.wait_until_listening(1.0)
        wait_until(lambda: daemon.tcp_address, PATIENCE)
        daemon.signal(signal.SIGTERM)
    finally:
        assert not daemon.end(0.1)
    assert daemon.how_it_ended == "it was killed by SIGKILL"
    assert daemon.end(0)


def test_a_log_of_any_length_holds_nothing_up() -> None:
    code = """
import sys
print("INFO: TCP: listening on 127.0.0.1:1", file=sys.stderr)
print("x" * 99 + "\\n" * 20_000, end="", file=sys.stderr)
print("last", end="", file=sys.stderr)
"""
    daemon = program("import time\n" + code, "TCP")
    daemon.start()
    daemon.wait_until_listening(PATIENCE)
    assert daemon.end(PATIENCE)
    assert daemon.status == 0
    assert len(daemon.log.splitlines()) == 10_000
