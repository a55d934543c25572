"""What systemd is told."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnsq_like.workers.master import Notifier


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Its socket, and the name of that in the environment."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        if request.param == "path":
            name = str(tmp_path / "notify")
            sock.bind(name)
        else:
            name = f"@gnsq-like-{os.getpid()}"
            sock.bind(f"\0{name[1:]}")
        sock.settimeout(30)
        yield sock, name


def test_states_are_sent_as_lines(systemd: tuple[socket.socket, str]) -> None:
    sock, name = systemd
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.send("READY=1", "STATUS=2 processes are running")
    assert sock.recv(1000) == b"READY=1\nSTATUS=2 processes are running"
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    first, second = sock.recv(1000).decode().splitlines()
    assert first == "RELOADING=1"
    assert int(second.removeprefix("MONOTONIC_USEC=")) >= before


def test_without_systemd_or_after_its_end_nothing_happens(tmp_path: Path) -> None:
    Notifier({}).send("READY=1")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).send("READY=1")


def test_a_systemd_that_reads_nothing_holds_nobody_up_for_ever(systemd: tuple[socket.socket, str]) -> None:
    sock, name = systemd
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, contextlib.suppress(BlockingIOError):
        other.setblocking(False)
        while True:
            other.sendto(b"x", sock.getsockname())
    Notifier({"NOTIFY_SOCKET": name}).send("READY=1")
    assert sock.recv(10) == b"x"


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_signs_of_life_come_twice_in_the_time_that_systemd_gives(environ: dict[str, str], seconds: float) -> None:
    assert Notifier(environ).interval == seconds
