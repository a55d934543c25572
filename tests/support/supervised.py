"""``gnsq-like run`` as a process, with its workers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.commands import runs
from tests.support.daemons import Running, wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.web import Server, closing, get

APP = "tests.support.supervised_app"
HEALTH = r"health on http://127\.0\.0\.1:(\d+)/healthz"


class Supervised(Server):
    """What a test asks of a supervisor; its health pages are at ``port``."""

    @property
    def status(self) -> dict[str, Any]:
        """The answer of /healthz."""
        found: dict[str, Any] = json.loads(get(self.port, "/healthz")[1])
        return found

    @property
    def running_pids(self) -> set[int]:
        """The processes of workers that consume."""
        return {worker["pid"] for worker in self.status["workers"] if worker["state"] == "running"}

    def wait_for_workers(self, count: int, but: Iterable[int] = ()) -> set[int]:
        """Wait until so many workers run, and all is well; returns their pids.

        :param but: processes that must no longer be among them
        """
        gone = set(but)

        def look() -> set[int]:
            assert self.process.poll() is None, self.log
            status = self.status
            pids = {worker["pid"] for worker in status["workers"] if worker["state"] == "running"}
            return pids if status["status"] == "ok" and len(pids) == count and not pids & gone else set()

        return wait_for(look, f"{count} workers", 60)

    def wait_for_log(self, text: str) -> None:
        """Wait until the log has this text."""
        wait_for(lambda: text in self.log, text, 60)

    def metric(self, name: str) -> float:
        """The value of a metric, with its labels as on the page; 0 if it is missing."""
        _, page = get(self.port, "/metrics")
        found = [line for line in page.splitlines() if line.rpartition(" ")[0] == name]
        return float(found[0].rpartition(" ")[2]) if found else 0.0


@contextmanager
def supervised(
    directory: Path, nsqd: str, *flags: str, target: str = f"{APP}:greenlets()", **environment: str
) -> Iterator[Supervised]:
    """Context manager: ``gnsq-like run``, ended after the block; no process of it is left then."""
    command = ["-m", "gnsq_like", "run", target, "--health", "127.0.0.1:0", *flags]
    with closing(Supervised(command, directory, NSQD=nsqd, **environment), HEALTH) as server:
        try:
            yield server
        finally:
            workers = server.pids("loaded")
    wait_until_ended(int(pid) for pid in workers)


def wait_until_ended(pids: Iterable[int]) -> None:
    """Wait until none of these processes runs."""
    left = set(pids)
    wait_for(lambda: not {pid for pid in left if runs(pid)}, "the end of all workers", 60)


def publish(nsqd: Running, names: Iterable[str], topic: str = "work") -> None:
    """Publish these messages, a thousand at a time."""
    bodies = [name.encode() for name in names]
    with NsqdHTTPClient(nsqd.http_address) as client:
        for start in range(0, len(bodies), 1000):
            client.multi_publish(topic, bodies[start : start + 1000])


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
