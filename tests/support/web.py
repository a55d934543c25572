"""Web servers as processes, and clients for them."""

import math
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import gevent
import pytest
from gevent import socket
from gevent.pool import Pool

from gnsq_like import Message
from gnsq_like.http.nsqd import ChannelStats
from gnsq_like.testing import RunningNsqd
from tests.support.daemons import Running, wait_for
from tests.support.notes import Note, open_gate, read_notes
from tests.support.patient import NsqdHTTPClient
from tests.support.scale import PROFILE

ROOT = Path(__file__).resolve().parent.parent.parent
#: Seconds for a server to come up: one that does not, and has not ended, is found by the limit of the test.
START_TIMEOUT = math.inf
#: Seconds for a server to end, on a busy machine.
STOP_TIMEOUT = 100.0

#: Whether to run rare cases too, and all requests of every test: in the profile that also searches longest.
IS_THOROUGH = PROFILE == "thorough"
thorough = pytest.mark.skipif(not IS_THOROUGH, reason="runs with GNSQ_LIKE_HYPOTHESIS=thorough")

#: gunicorn's gthread as a parameter, where its workers drop no requests when they stop.
GTHREAD = pytest.param(
    "gthread",
    marks=pytest.mark.skipif(
        find_spec("gunicorn") is None or int(version("gunicorn").split(".")[0]) < 25,
        reason="gthread workers of gunicorn before 25 drop accepted requests when they stop",
    ),
)
#: For parameters: gevent, and gthread for all kinds that are not patched; sync differs little from it.
WORKER_KINDS = ["gevent", GTHREAD, pytest.param("sync", marks=thorough)]

APP = "tests.support.clicks_app:create_app()"

#: gunicorn's worker classes, with the flags they need for 50 clients at once.
WORKERS = {
    "gevent": ["-k", "gevent", "-w", "2"],
    "gthread": ["-k", "gthread", "-w", "2", "--threads", "25"],
    "sync": ["-k", "sync", "-w", "2"],
}

CONF = """
from gnsq_like.contrib.gunicorn import WorkerReaders
readers = WorkerReaders()
post_worker_init = readers.post_worker_init
worker_int = readers.worker_int
worker_exit = readers.worker_exit
"""


_S = TypeVar("_S", bound="Server")


def with_patience(environment: dict[str, str]) -> dict[str, str]:
    """An environment in which a publish waits for a busy machine, unless the test sets its time.

    By default a web application's publish fails after two seconds, which the first one may take: it starts the
    Producer and connects.
    """
    if "NSQ_PUBLISH_TIMEOUT" in environment or "NSQ_TIMEOUT" in environment:
        return environment
    return {**environment, "NSQ_PUBLISH_TIMEOUT": "100"}


class Server:
    """A Python process that takes notes of what it does; its output is in ``log``."""

    def __init__(self, command: Sequence[str], directory: Path, **environment: str) -> None:
        self._notes = directory / "notes"
        self._notes.touch()
        self._log = directory / "log"
        self.command = command
        environment = with_patience(environment)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NOTES": str(self._notes), **environment}
        environment["PYTHONFAULTHANDLER"] = "1"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], cwd=directory, stdout=log, stderr=log, env=environment
            )
        self.port = 0

    @property
    def log(self) -> str:
        return self._log.read_text()

    def listening(self, pattern: str) -> None:
        """Wait until it has logged its port."""

        def look() -> int:
            assert self.process.poll() is None, self.log
            # Of a line that is half written the port may be, too.
            found = re.search(pattern, self.log.rpartition("\n")[0])
            return int(found[1]) if found else 0

        self.port = wait_for(look, "the server to listen", START_TIMEOUT)

    @property
    def notes(self) -> list[Note]:
        """All that it has noted so far."""
        return read_notes(self._notes)

    def noted(self, what: str) -> list[str]:
        """The names in its notes of this kind."""
        return [note.name for note in self.notes if note.what == what]

    def pids(self, what: str) -> set[str]:
        """The processes that have taken notes of this kind."""
        return {note.pid for note in self.notes if note.what == what}

    def open_gate(self) -> None:
        """Let its work end that waits for the gate."""
        open_gate(self._notes)

    def end(self, number: int = signal.SIGTERM, timeout: float = STOP_TIMEOUT) -> int:
        """Send a signal, wait for the end, and return the process's status."""
        self.process.send_signal(number)
        return self.wait_for_end(timeout)

    def wait_for_end(self, timeout: float = STOP_TIMEOUT) -> int:
        """Wait for the end, and return the process's status. If it does not come, the log gets all stacks."""
        try:
            wait_for(lambda: self.process.poll() is not None, "the end", timeout)
        except BaseException as exc:
            self._signal_all(signal.SIGABRT)
            self.process.wait()
            exc.add_note(f"{self.command} did not end: {self.log}")
            raise
        return self.process.returncode

    def close(self) -> None:
        """End it if it runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(AssertionError):
                wait_for(lambda: self.process.poll() is not None, "the end", 5)
            self._signal_all(signal.SIGKILL)
            self.process.wait()

    def _signal_all(self, number: int) -> None:
        """Send a signal to the process and to those that it has started."""
        mine = f"NOTES={self._notes}".encode()
        for each in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mine in each.read_bytes().split(b"\0"):
                    os.kill(int(each.parent.name), number)
        self.process.send_signal(number)


def running(
    command: Sequence[str], directory: Path, listening: str = "", **environment: str
) -> AbstractContextManager[Server]:
    """Context manager: a Python process, ended after the block.

    :param listening: pattern of the log with the port in its group, which is waited for; "" to wait for nothing
    """
    return closing(Server(command, directory, **environment), listening)


@contextmanager
def closing(server: _S, listening: str = "") -> Iterator[_S]:
    """Context manager: a process that has been started, ended after the block."""
    try:
        if listening:
            server.listening(listening)
        yield server
    except BaseException as exc:
        exc.add_note(f"The server's log:\n{server.log}")
        raise
    finally:
        server.close()


#: A worker that boots still has the master's signal handlers, and ignores a SIGTERM. So tests that send signals wait
#: until all workers have logged this.
UP = "This worker is up"

#: The times are for those tests alone that set them by flags: a busy machine needs seconds for a worker to boot, and to
#: end.
UP_CONF = f"""
control_socket_disable = True
timeout = graceful_timeout = 600
_also = globals().get("post_worker_init", lambda worker: None)

def post_worker_init(worker):
    _also(worker)
    worker.log.info("{UP}")
"""


@contextmanager
def gunicorn(directory: Path, *flags: str, conf: str = "", app: str = APP, **environment: str) -> Iterator[Server]:
    """Context manager: gunicorn on a free port, with all its workers up, or ended."""
    (directory / "conf.py").write_text(conf + UP_CONF)
    command = ["-m", "gunicorn", "-c", "conf.py", "-b", "127.0.0.1:0", *flags, app]
    count = int(flags[flags.index("-w") + 1]) if "-w" in flags else 1
    with running(command, directory, r"Listening at: http://127\.0\.0\.1:(\d+)", **environment) as server:
        wait_for(
            lambda: server.log.count(UP) == count or server.process.poll() is not None, "the workers", START_TIMEOUT
        )
        yield server


def flask(
    directory: Path, *arguments: str, listening: str = "", patched: bool = False, **environment: str
) -> AbstractContextManager[Server]:
    """Context manager: a flask command."""
    patch = ["-m", "gevent.monkey", "--module"] if patched else ["-m"]
    return running([*patch, "flask", "--app", APP, *arguments], directory, listening, **environment)


@dataclass
class Answers:
    """The names in clients' requests, by outcome."""

    ok: list[str] = field(default_factory=list)
    #: Answered, but not with 200: (name, answer).
    other: list[tuple[str, str]] = field(default_factory=list)
    #: Not connected.
    refused: list[str] = field(default_factory=list)
    #: Connected, but not answered, or only in part: (name, reason).
    broken: list[tuple[str, str]] = field(default_factory=list)

    def ask(self, port: int, name: str, path: str, method: str = "POST") -> None:
        """One request with Connection: close; its name is added to the list for its outcome.

        One that is never answered is found by the limit of the test: how long workers take to start is up to the
        machine.
        """
        try:
            sock = socket.create_connection(("127.0.0.1", port))
        except OSError:
            self.refused.append(name)
            return
        answer = b""
        try:
            with sock:
                request = f"{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                sock.sendall(request.encode())
                while data := sock.recv(65536):
                    answer += data
        except OSError as exc:
            self.broken.append((name, f"{exc!r} after {answer!r}"))
            return
        head, end, body = answer.partition(b"\r\n\r\n")
        if not end or b"content-length: %d\r\n" % len(body) not in head.lower() + b"\r\n":
            self.broken.append((name, f"answered {answer!r}"))
        elif head.split()[1] == b"200":
            self.ok.append(name)
        else:
            self.other.append((name, answer.decode(errors="replace")))


def get(port: int, path: str) -> tuple[int, str]:
    """Status and body of a GET."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while data := sock.recv(65536):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def channel_of(nsqd: Running | RunningNsqd, topic: str) -> ChannelStats:
    """nsqd's stats of the topic's only channel."""
    with NsqdHTTPClient(nsqd.http_address) as client:
        [channel] = client.stats(topic=topic)["topics"][0]["channels"]
    return channel


def wait_until_all_is_finished(nsqd: Running, topic: str, timeout: float = 30) -> None:
    """Wait until the topic's only channel holds nothing: no message can be delivered again."""

    def is_empty() -> bool:
        channel = channel_of(nsqd, topic)
        return not (channel["depth"] or channel["in_flight_count"] or channel["deferred_count"])

    wait_for(is_empty, f"the end of all messages of {topic}", timeout)


#: The state, in nsqd's stats, of a client that has sent CLS.
CLOSING = 4


def client_states(nsqd: Running, topic: str) -> list[int]:
    """The states of the consumers of the topic's only channel."""
    return [client["state"] for client in channel_of(nsqd, topic)["clients"] or ()]


def publish_from(clients: int, port: int, names: Iterable[str], topic: str = "clicks", query: str = "") -> Answers:
    """POST the names from this many clients, each of which sends its next when the last is answered."""
    answers = Answers()
    pool = Pool(clients)
    for name in names:
        pool.spawn(answers.ask, port, name, f"/publish/{topic}/{name}{query}")
    pool.join()
    return answers


class Load:
    """Clients that send requests until :meth:`stop`, or until a connection is refused."""

    def __init__(self, clients: int, port: int, topic: str = "clicks") -> None:
        self.answers = Answers()
        self._port = port
        self._topic = topic
        self._stopped = False
        self._clients = [gevent.spawn(self._ask, number) for number in range(clients)]

    def _ask(self, client: int) -> None:
        number = 0
        while not self._stopped and not self.answers.refused:
            number += 1
            name = f"{client}.{number}"
            self.answers.ask(self._port, name, f"/publish/{self._topic}/{name}")

    def stop(self) -> Answers:
        """Send no more requests, and wait for the answers."""
        self._stopped = True
        return self.join()

    def join(self) -> Answers:
        """Wait for the end of all clients."""
        gevent.joinall(self._clients)
        return self.answers


class Consumed(Counter[str]):
    """How many times each body was delivered."""

    def handle(self, message: Message) -> None:
        self[message.body.decode()] += 1


# -- times of a web application's Producer that bear a busy machine; for tests that have it in their own process

#: For Django's setting NSQ; Flask has the same names with NSQ_ before them.
PATIENT = {"PUBLISH_TIMEOUT": 100.0, "CONNECT_TIMEOUT": 100.0}
