"""Tells systemd what the supervisor does (sd_notify(3)); nothing elsewhere."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

#: Seconds for systemd to take a message; without a limit, a systemd that reads nothing would stop the supervisor.
_TIMEOUT = 1.0


class Notifier:
    """Sends states to the socket that systemd names in the environment.

    :param environ: the environment
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        #: An @ stands for the zero byte of an abstract name.
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        #: Seconds between two signs of life; 0 for none.
        self.interval = 0.0
        if environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            with suppress(ValueError):
                self.interval = int(environ.get("WATCHDOG_USEC", "0")) / 1e6 / 2

    def send(self, *lines: str) -> None:
        """Send assignments, as "READY=1"; failures are ignored."""
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(_TIMEOUT)
            sock.sendto("\n".join(lines).encode(), self._address)

    def reloading(self) -> None:
        """Say that a reload has begun; "READY=1" ends it."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")
