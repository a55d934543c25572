"""What requests see while nsqd is unreachable: a site in gunicorn (gthread, 2 workers of 8 threads), and an nsqd that
is killed, or stopped by SIGSTOP, for some seconds.

Clients post to a page that publishes, each 50 ms after its last answer; others get a page that publishes nothing, or
/healthz, every 20 ms. All are threads of this process with a new connection for each request. The figures:

pages       the time of a page that publishes nothing, during the outage and a second after it
/healthz    likewise, and the problem that it reported
failures    the time within the application that a publish took to fail; the "first" ones were begun before the first
            failure
back        from nsqd's start (or SIGCONT) until a publish succeeded in each worker

Run it as: python benchmarks/outage.py [--site flask|django] [--fault kill|stop] [--seconds 20] [--slow]. --slow turns
fail_fast off, with a timeout of 10 s. NSQ's nsqd on PATH is used, or that of gnsq_like.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
_BEFORE, _AFTER = 3.0, 4.0
_PATIENCE = 60.0


class Request(NamedTuple):
    """One request: when it began and how long it took, in monotonic seconds, and its answer."""

    began: float
    seconds: float
    answer: Any


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


class Nsqd:
    """An nsqd that can be started again on the same ports."""

    def __init__(self, directory: str, *options: str) -> None:
        own = shutil.which("nsqd")
        self.port = free_port()
        flags = [f"--tcp-address=127.0.0.1:{self.port}", f"--http-address=127.0.0.1:{free_port()}"]
        program = [own] if own else [sys.executable, "-m", "gnsq_like", "nsqd"]
        self._command = [*program, *flags, f"--data-path={directory}", *options]
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(self.port)
        return self.process


@contextmanager
def gunicorn(site: str, port: int, environment: dict[str, str]) -> Iterator[None]:
    command = [sys.executable, "-m", "gunicorn", "-k", "gthread", "-w", "2", "--threads", "8", "--no-control-socket"]
    command += ["-b", f"127.0.0.1:{port}", "--log-level=error", f"_sites:{site}_site()"]
    server = subprocess.Popen(command, cwd=HERE, env={**os.environ, **environment})
    try:
        wait_for_port(port)
        yield
    finally:
        server.terminate()
        server.wait(_PATIENCE)


class Client(threading.Thread):
    """Makes one kind of request again and again until ``stopped`` is set."""

    def __init__(self, port: int, method: str, path: str, pause: float, stopped: threading.Event) -> None:
        super().__init__(daemon=True)
        self._port, self._method, self._path, self._pause, self._stopped = port, method, path, pause, stopped
        self.done: list[Request] = []

    def run(self) -> None:
        while not self._stopped.wait(self._pause):
            began = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE)
            try:
                connection.request(self._method, self._path)
                body = connection.getresponse().read()
            except OSError as exc:
                body = json.dumps(repr(exc)).encode()
            finally:
                connection.close()
            answer = json.loads(body) if self._path != "/page" else None
            self.done.append(Request(began, time.monotonic() - began, answer))


def in_ms(seconds: list[float]) -> str:
    """Median, 99th percentile, maximum and count."""
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    p50, p99 = (1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))
    return f"p50 {p50:7.1f} ms  p99 {p99:7.1f} ms  max {1000 * ordered[-1]:7.1f} ms  ({len(ordered)})"


def gather(clients: list[Client], wanted: Callable[[Request], bool] = lambda request: True) -> list[Request]:
    return sorted(request for client in clients for request in client.done if wanted(request))


def run(site: str, fault: str, seconds: float, slow: bool) -> None:
    stopped = threading.Event()
    slowly = {"NSQ_FAIL_FAST": "false", "NSQ_PUBLISH_TIMEOUT": "10"} if slow else {}
    with tempfile.TemporaryDirectory() as directory:
        nsqd = Nsqd(directory)
        port = free_port()
        try:
            with gunicorn(site, port, {"NSQ_NSQD_TCP_ADDRESSES": f"127.0.0.1:{nsqd.port}", **slowly}):
                posting = [Client(port, "POST", "/publish", 0.05, stopped) for _ in range(20)]
                pages = [Client(port, "GET", "/page", 0.02, stopped) for _ in range(2)]
                health = [Client(port, "GET", "/healthz", 0.02, stopped)]
                for client in (*posting, *pages, *health):
                    client.start()
                time.sleep(_BEFORE)
                began = time.monotonic()
                nsqd.process.send_signal(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
                time.sleep(seconds)
                ended = time.monotonic()
                if fault == "kill":
                    nsqd.process.wait()
                    nsqd.start()
                    ended = time.monotonic()
                else:
                    nsqd.process.send_signal(signal.SIGCONT)
                time.sleep(_AFTER)
                stopped.set()
                for client in (*posting, *pages, *health):
                    client.join(_PATIENCE)
        finally:
            nsqd.process.kill()
    report(posting, pages, health, began, ended)


def report(posting: list[Client], pages: list[Client], health: list[Client], began: float, ended: float) -> None:
    def during(request: Request) -> bool:
        return began <= request.began < ended + 1

    print("pages, before  ", in_ms([each.seconds for each in gather(pages, lambda request: request.began < began)]))
    print("pages          ", in_ms([each.seconds for each in gather(pages, during)]))
    print("/healthz       ", in_ms([each.seconds for each in gather(health, during)]))
    problems = {each["problem"] for request in gather(health, during) for each in request.answer["producers"]}
    print("                ", *(problem for problem in sorted(map(str, problems)) if problem != "None"))
    failed = gather(posting, lambda request: request.began < ended and bool(request.answer["error"]))
    if failed:
        first = min(request.began + request.seconds for request in failed)
        print("first failures ", in_ms([each.answer["seconds"] for each in failed if each.began < first]))
        print("failures       ", in_ms([each.answer["seconds"] for each in failed if each.began >= first]))
        for error in sorted({each.answer["error"].partition(":")[0] for each in failed}):
            count = sum(each.answer["error"].startswith(error) for each in failed)
            print(f"                 {error}: {count}")
    late = gather(posting, lambda request: request.began >= ended and bool(request.answer["error"]))
    good = gather(posting, lambda request: request.began >= ended and not request.answer["error"])
    back = good[0].began + good[0].seconds - ended if good else float("nan")
    last = late[-1].began - ended if late else 0.0
    print(f"back            first success after {back:.2f} s, last failure begun after {last:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", choices=["flask", "django"], default="flask")
    parser.add_argument("--fault", choices=["kill", "stop"], default="kill")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--slow", action="store_true")
    arguments = parser.parse_args()
    run(arguments.site, arguments.fault, arguments.seconds, arguments.slow)


if __name__ == "__main__":
    main()
