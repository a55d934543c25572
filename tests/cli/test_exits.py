"""How commands end on signals: on either, as the tests of the commands send only one."""

import signal
import subprocess
import sys

import pytest

_CODE = """
import gevent
from gnsq_like.cli.exits import run_service

def run(stop):
    print("runs", flush=True)
    stop.wait()
    print("stopping", flush=True)
    if {is_stubborn}:
        gevent.sleep(1000)
    return 7

run_service(run, on_hup=lambda: print("hup", flush=True))
"""


@pytest.mark.parametrize(
    ("first", "is_stubborn", "status"),
    [(signal.SIGINT, False, 7), (signal.SIGTERM, False, 7), (signal.SIGINT, True, 130)],
)
def test_the_first_signal_stops_and_the_second_interrupts(
    first: signal.Signals, is_stubborn: bool, status: int
) -> None:
    command = [sys.executable, "-c", _CODE.format(is_stubborn=is_stubborn)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "runs\n"
            process.send_signal(signal.SIGHUP)
            assert process.stdout.readline() == "hup\n"
            process.send_signal(first)
            assert process.stdout.readline() == "stopping\n"
            if is_stubborn:
                process.send_signal(signal.SIGTERM)
            assert process.wait() == status
        finally:
            process.kill()
