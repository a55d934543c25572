"""The tools of ``gnsq-like``, in the test's own process and as processes, beside NSQ's own; and what topics hold.

All of it waits the gevent way, so daemons may run in the test's own process.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gnsq_like import Reader
from gnsq_like.cli.app import app
from gnsq_like.testing import wait_until
from tests.support.commands import PATIENCE
from tests.support.daemons import Running, wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.scripts import run_beside

COMMAND = [sys.executable, "-m", "gnsq_like"]
#: An address at which nobody listens: port 1 is reserved for a service that no machine runs.
NOBODY = "127.0.0.1:1"


def go_tool(name: str) -> str:
    """The path of one of NSQ's own utilities; the test is skipped where it is missing."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} on PATH")
    return path


def clean_environment(**changed: str) -> dict[str, str]:
    """This environment without settings of NSQ."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NSQ_")}
    return {**kept, **changed}


def run_tool(
    *arguments: str, data: bytes = b"", command: list[str] = COMMAND, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a tool to its end."""
    return run_beside([*command, *arguments], input=data, env=clean_environment(**environment), text=False)


def invoke(*arguments: str, data: bytes = b"") -> Result:
    """Run a tool to its end in this process, in a tenth of the time of another one."""
    settings = {name: None for name in os.environ if name.startswith("NSQ_")}
    done = CliRunner(env=settings).invoke(app, arguments, input=data, prog_name="gnsq-like")
    assert isinstance(done.exception, SystemExit | None), done.exc_info
    return done


def printed(*arguments: str) -> str:
    """What a tool prints, which succeeds and has nothing to say besides."""
    done = invoke(*arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def failed(*arguments: str, data: bytes = b"", status: int = 1) -> str:
    """What a tool says that ends with this status."""
    done = invoke(*arguments, data=data)
    assert done.exit_code == status, done.stderr
    return done.stderr


class Tool:
    """A tool that runs; its output is read as it is written."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._out = bytearray()
        self._err = bytearray()
        assert process.stdout is not None
        assert process.stderr is not None
        self._descriptors = [(process.stdout.fileno(), self._out), (process.stderr.fileno(), self._err)]
        for descriptor, _ in self._descriptors:
            os.set_blocking(descriptor, False)

    def _read(self) -> None:
        for descriptor, buffer in self._descriptors:
            try:
                while data := os.read(descriptor, 1 << 16):
                    buffer += data
            except BlockingIOError:
                pass

    @property
    def out(self) -> bytes:
        """What it has written to stdout."""
        self._read()
        return bytes(self._out)

    @property
    def err(self) -> str:
        """What it has written to stderr."""
        self._read()
        return self._err.decode()

    def wait_for_line(self, pattern: str) -> None:
        """Wait until stderr has a match."""
        wait_until(lambda: re.search(pattern, self.err), PATIENCE, lambda: f"{pattern!r} in {self.err!r}")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal; returns its exit status, negative if the signal killed it."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; returns its exit status."""

        def ended() -> bool:
            self._read()
            return self.process.poll() is not None

        wait_for(ended, "the tool's end")
        self._read()
        return int(self.process.returncode)


@contextmanager
def running_tool(
    *arguments: str, command: list[str] = COMMAND, stdin: Any = subprocess.DEVNULL, **environment: str
) -> Iterator[Tool]:
    """A tool that runs, and is killed in the end if it still does."""
    with subprocess.Popen(
        [*command, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(**environment),
    ) as process:
        tool = Tool(process)
        try:
            yield tool
        finally:
            process.kill()


def numbered(count: int, prefix: str = "message") -> list[bytes]:
    """Bodies that are all different."""
    return [f"{prefix} {number:06d}".encode() for number in range(count)]


def lines(bodies: Iterable[bytes]) -> bytes:
    """Each body, and the end of a line."""
    return b"".join(body + b"\n" for body in bodies)


def fill(nsqd: Running, topic: str, bodies: list[bytes], *channels: str) -> None:
    """Publish messages to a topic whose channels exist before, and wait until those have them."""
    with NsqdHTTPClient(nsqd.http_address) as http:
        http.create_topic(topic)
        for channel in channels:
            http.create_channel(topic, channel)
        step = max(1, 2_000_000 // max(map(len, bodies), default=1))  # below nsqd's max-body-size
        for start in range(0, len(bodies), step):
            http.multi_publish(topic, bodies[start : start + step])
    if bodies:
        wait_until_in_channels(nsqd, topic)


def wait_until_in_channels(nsqd: Running, topic: str) -> None:
    """Wait until the channels have each message of a topic; at once if it has none.

    nsqd confirms a message when its topic has it, and hands it to the channels afterwards. Each of them must be as old
    as the topic's first message, or ephemeral, and the topic must not be paused.
    """
    with NsqdHTTPClient(nsqd.http_address) as http:

        def all_have_come() -> bool:
            [found] = http.stats(topic)["topics"]
            lasting = [each for each in found["channels"] if not each["channel_name"].endswith("#ephemeral")]
            return all(each["message_count"] == found["message_count"] for each in lasting)

        wait_for(all_have_come, f"all messages of {topic} in its channels")


def taken(nsqd: Running, topic: str, count: int, channel: str = "check") -> list[bytes]:
    """The bodies of at least ``count`` messages of a channel, which are then finished."""
    bodies: list[bytes] = []
    reader = Reader(
        topic, channel, lambda m: bodies.append(m.body), nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=500
    )
    with reader:
        wait_for(lambda: len(bodies) >= count, f"{count} messages of {topic}/{channel}", PATIENCE)
    return bodies


def counts(nsqd: Running, topic: str, channel: str) -> dict[str, int]:
    """What nsqd counts for a channel: depth, in_flight, deferred, requeued, timed_out, message, clients, or 0.

    And "finished", by the consumers that are connected. A test that waits for the last message needs it: between the
    queue and the consumer a message is nowhere else, neither waiting nor in flight.
    """
    with NsqdHTTPClient(nsqd.http_address) as http:
        topics = http.stats(topic, channel)["topics"]
    found: list[Any] = [each for each in (topics[0]["channels"] if topics else []) if each["channel_name"] == channel]
    names = {"depth": "depth", "in_flight": "in_flight_count", "deferred": "deferred_count"}
    names |= {"requeued": "requeue_count", "timed_out": "timeout_count"}
    names |= {"message": "message_count", "clients": "client_count"}
    clients = (found[0]["clients"] or []) if found else []
    finished = {"finished": sum(each["finish_count"] for each in clients)}
    return {name: found[0][key] if found else 0 for name, key in names.items()} | finished


def unfinished(nsqd: Running, topic: str, channel: str) -> int:
    """The messages that a channel still has."""
    found = counts(nsqd, topic, channel)
    return found["depth"] + found["in_flight"] + found["deferred"]


def files_below(directory: Path) -> dict[str, bytes]:
    """The content of each file, by its path below the directory."""
    found = {}
    for path in directory.rglob("*"):
        with suppress(IsADirectoryError, FileNotFoundError):  # a file may be moved meanwhile
            found[str(path.relative_to(directory))] = path.read_bytes()
    return found
