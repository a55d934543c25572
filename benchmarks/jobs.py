"""Jobs of Dramatiq and Celery on NSQ, and the same on Redis: how fast, and what becomes of them when things fail.

speed       for each side: jobs a second enqueued by one thread, and run once all are there; milliseconds from sending
            to the end of a job while 50 a second are sent (median and 99 %); the CPU that the workers at rest use
faults      with two nsqds, one of them behind a proxy: while jobs are sent, workers are killed and started again, an
            nsqd is stopped and started, and the link to the other one stands still or is cut. Counts jobs that never
            ran, and copies
kill        what is lost of jobs that wait, in memory or on disk, and of delayed ones, when nsqd ends

Run it as: python benchmarks/jobs.py [speed] [faults] [kill] [--count 10000] [--only dramatiq]. It needs Debian's
redis-server for Redis, and takes NSQ's nsqd on PATH, or that of gnsq_like.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from _processes import cpu_of
from outage import Nsqd, free_port, wait_for_port

from gnsq_like.testing import FaultProxy

HERE = Path(__file__).resolve().parent


class Kind(NamedTuple):
    """A framework's program."""

    module: str
    command: list[str]
    #: How many processes say that they are there.
    processes: int


_DRAMATIQ = ["_jobs_dramatiq", "-p2", "-t8"]
_CELERY = [sys.executable, "-m", "celery", "-A", "_jobs_celery", "worker"]
KINDS = {
    "dramatiq": Kind("_jobs_dramatiq", [sys.executable, "-m", "dramatiq", *_DRAMATIQ], 2),
    "dramatiq-gevent": Kind("_jobs_dramatiq", [str(Path(sys.executable).with_name("dramatiq-gevent")), *_DRAMATIQ], 2),
    "celery prefork": Kind("_jobs_celery", [*_CELERY, "-P", "prefork", "-c", "4"], 5),
    "celery threads": Kind("_jobs_celery", [*_CELERY, "-P", "threads", "-c", "16"], 1),
    "celery gevent": Kind("_jobs_celery", [*_CELERY, "-P", "gevent", "-c", "16"], 1),
}
#: Seconds.
_PATIENCE = 240.0
_REST = 10.0
#: After which nsqd has synced its queues on disk, by its --sync-timeout of 2 s.
_SYNCED = 3.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {_PATIENCE:g} s: {what}")
        time.sleep(0.05)


class Done(NamedTuple):
    number: str
    sent: float
    at: float


class Workers:
    """A framework's program, which can be started again; and the file with what it has done."""

    def __init__(self, kind: Kind, broker: str, directory: str) -> None:
        self._kind = kind
        self._file = Path(directory) / "done"
        self._file.touch()
        self._environment = {**os.environ, "JOBS_BROKER": broker, "JOBS_FILE": str(self._file)}
        self._process: subprocess.Popen[bytes] | None = None
        #: Processes of earlier starts.
        self._before = 0

    def lines(self) -> list[Done]:
        fields = [line.split() for line in self._file.read_text().splitlines()]
        return [Done(number, float(sent), float(at)) for number, sent, at in fields]

    def done(self) -> list[Done]:
        return [each for each in self.lines() if each.number != "booted"]

    def start(self) -> None:
        self._before = len(self.booted())
        self._process = subprocess.Popen(
            self._kind.command, cwd=HERE, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(lambda: len(self.booted()) >= self._before + self._kind.processes, "the workers to start")

    def booted(self) -> list[int]:
        """The worker processes, the oldest first."""
        return [int(each.sent) for each in self.lines() if each.number == "booted"]

    def cpu(self) -> float:
        return sum(cpu_of(pid) or 0.0 for pid in self.booted()[-self._kind.processes :])

    def kill_one(self) -> None:
        """SIGKILL for a worker. Celery's prefork replaces it; otherwise the program ends, and is started anew."""
        assert self._process is not None
        process, booted = self._process, self.booted()
        children = [pid for pid in booted[self._before :] if pid != process.pid]
        os.kill([process.pid, *children][-1], signal.SIGKILL)
        wait_until(lambda: process.poll() is not None or len(self.booted()) > len(booted), "the end of a worker")
        if process.poll() is not None:
            self.start()

    def wait(self) -> None:
        if self._process is not None:
            self._process.wait(_PATIENCE)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
        self.wait()


def sender(kind: Kind, broker: str, directory: str) -> Any:
    """The module with the job, for this process."""
    os.environ |= {"JOBS_BROKER": broker, "JOBS_FILE": str(Path(directory) / "own")}
    for name in ("_jobs_done", kind.module):
        sys.modules.pop(name, None)
    return importlib.import_module(kind.module)


@contextmanager
def redis() -> Iterator[str]:
    port = free_port()
    command = ["redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        wait_for_port(port)
        yield f"redis:127.0.0.1:{port}"
        process.terminate()


@contextmanager
def nsqs(count: int, *options: str) -> Iterator[list[Nsqd]]:
    with tempfile.TemporaryDirectory() as directory:
        running = []
        for number in range(count):
            path = Path(directory) / str(number)
            path.mkdir()
            running.append(Nsqd(str(path), *options))
        yield running
        for each in running:
            each.process.terminate()
            each.process.wait()


@contextmanager
def one_nsqd() -> Iterator[str]:
    with nsqs(1) as [nsqd]:
        yield f"nsq:127.0.0.1:{nsqd.port}"


# -- speed -------------------------------------------------------------------------------------------


def speed(kinds: list[str], count: int) -> None:
    sides: dict[str, Any] = {"nsq": one_nsqd}
    if shutil.which("redis-server"):
        sides["redis"] = redis
    print(f"{'side':<24}{'enqueued/s':>12}{'run/s':>9}{'ms':>8}{'99 %':>8}{'% CPU at rest':>15}")
    for kind in kinds:
        for name, server in sides.items():
            with server() as broker, tempfile.TemporaryDirectory() as directory:
                print(f"{f'{name}, {kind}':<24}{_speed_of(KINDS[kind], broker, directory, count)}", flush=True)


def _speed_of(kind: Kind, broker: str, directory: str, count: int) -> str:
    app, workers = sender(kind, broker, directory), Workers(kind, broker, directory)
    began = time.monotonic()
    for number in range(count):
        app.send(number)
    enqueued = count / (time.monotonic() - began)
    workers.start()
    try:
        wait_until(lambda: len(workers.done()) >= count, "the jobs")
        times = sorted(each.at for each in workers.done())
        rate = (count - 1) / (times[-1] - times[0])
        paced = min(count, 500)
        for number in range(count, count + paced):
            app.send(number)
            time.sleep(0.02)
        wait_until(lambda: len(workers.done()) >= count + paced, "the paced jobs")
        delays = sorted(1000 * (each.at - each.sent) for each in workers.done() if int(each.number) >= count)
        before, began = workers.cpu(), time.monotonic()
        time.sleep(_REST)
        rest = 100 * (workers.cpu() - before) / (time.monotonic() - began)
    finally:
        workers.stop()
        app.close()
    late = delays[int(len(delays) * 0.99)]
    return f"{enqueued:>12,.0f}{rate:>9,.0f}{statistics.median(delays):>8.1f}{late:>8.1f}{rest:>15.1f}"


# -- faults ------------------------------------------------------------------------------------------


def faults(kinds: list[str], count: int) -> None:
    for name in kinds:
        kind = KINDS[name]
        with (
            nsqs(2) as [stopped, hidden],
            FaultProxy(f"127.0.0.1:{hidden.port}") as proxy,
            tempfile.TemporaryDirectory() as directory,
        ):
            broker = f"nsq:127.0.0.1:{stopped.port},{proxy.address}"
            app, workers = sender(kind, broker, directory), Workers(kind, broker, directory)
            repeated = Counter[str]()

            def send() -> None:
                for number in range(count):
                    while True:
                        try:
                            app.send(number, 0.005)  # noqa: B023
                            break
                        except app.Unsent as exc:  # noqa: B023
                            repeated[type(exc.__cause__).__name__] += 1  # noqa: B023

            workers.start()
            sending = threading.Thread(target=send)
            sending.start()
            rounds = 0
            while sending.is_alive() or not rounds:
                rounds += 1
                for act in (workers.kill_one, stopped_and_started(stopped), frozen(proxy), proxy.cut):
                    act()
                    time.sleep(1)
            sending.join()
            wait_until(lambda: len({each.number for each in workers.done()}) == count, "every job to run")  # noqa: B023
            time.sleep(5)
            ran = Counter(each.number for each in workers.done())
            workers.stop()
            app.close()
        copies = sum(ran.values()) - len(ran)
        print(
            f"{name}: {count:,} jobs, {rounds} rounds of 4 faults; never ran: {count - len(ran)}; copies: {copies}; "
            f"publishes repeated: {dict(repeated)}",
            flush=True,
        )


def stopped_and_started(nsqd: Nsqd) -> Callable[[], None]:
    def act() -> None:
        nsqd.process.terminate()
        nsqd.process.wait()
        time.sleep(1)
        nsqd.start()

    return act


def frozen(proxy: FaultProxy) -> Callable[[], None]:
    def act() -> None:
        proxy.freeze()
        time.sleep(5)
        proxy.thaw()

    return act


# -- kill --------------------------------------------------------------------------------------------


def kill(kinds: list[str], count: int) -> None:
    kind = KINDS[kinds[0]]
    for number, memory in ((signal.SIGTERM, 10_000), (signal.SIGKILL, 10_000), (signal.SIGKILL, 0)):
        with nsqs(1, f"--mem-queue-size={memory}") as [nsqd], tempfile.TemporaryDirectory() as directory:
            broker = f"nsq:127.0.0.1:{nsqd.port}"
            app, workers = sender(kind, broker, directory), Workers(kind, broker, directory)
            workers.start()  # makes the channel
            workers.stop()
            for each in range(count):
                app.send(each)
            due = time.time() + 15
            for each in range(count, 2 * count):
                app.send_later(each, due)
            time.sleep(_SYNCED)
            nsqd.process.send_signal(number)
            nsqd.process.wait()
            nsqd.start()
            workers.start()
            time.sleep(max(0.0, due + 10 - time.time()))
            done = {int(each.number): each for each in workers.done()}
            waited = sum(each < count for each in done)
            early = sum(each.at < due for key, each in done.items() if key >= count)
            workers.stop()
            app.close()
        print(
            f"{number.name}, mem-queue-size {memory}: ran {waited} of {count} that waited, and {len(done) - waited} of "
            f"{count} delayed ones, {early} of these too early",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"speed": speed, "faults": faults, "kill": kill}
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="default: all")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--only", action="append", choices=KINDS, help="these programs; may be repeated")
    arguments = parser.parse_args()
    for name in arguments.parts or parts:
        parts[name](arguments.only or [*KINDS], arguments.count)


if __name__ == "__main__":
    main()
