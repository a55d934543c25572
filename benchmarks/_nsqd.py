"""An nsqd for a benchmark, and the requests a benchmark makes without any client.

These are plain blocking code of the standard library, so that no client is measured by itself.
"""

from __future__ import annotations

import json
import shlex
import signal
import socket
import struct
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

CHANNEL = "bench"
OK_FRAME = b"\0\0\0\6\0\0\0\0OK"
#: Seconds for an answer, or for a consumer to subscribe.
_PATIENCE = 20.0
#: Messages and bytes in one MPUB, far below nsqd's limit of 5 MiB.
_BATCH = 1000
_BATCH_BYTES = 1_000_000


class Nsqd:
    """A running nsqd."""

    def __init__(self, tcp_address: str, http_address: str, pid: int) -> None:
        self.tcp_address = tcp_address
        self.http_address = http_address
        self.pid = pid

    def make_topic(self, topic: str) -> None:
        """Create the topic and the channel, so that messages go straight to the channel."""
        self._post(f"/topic/create?topic={topic}")
        self._post(f"/channel/create?topic={topic}&channel={CHANNEL}")

    def delete_topic(self, topic: str) -> None:
        self._post(f"/topic/delete?topic={topic}")

    def fill(self, topic: str, bodies: Iterable[bytes]) -> None:
        """Publish, and wait until all messages are in the channel."""
        batch: list[bytes] = []
        total = 0
        with connect(self.tcp_address) as sock:
            answers = sock.makefile("rb")
            for body in bodies:
                batch.append(body)
                total += 1
                if len(batch) == _BATCH or len(batch) * len(body) >= _BATCH_BYTES:
                    multi_publish(sock, topic, batch)
                    _expect_ok(answers.read(10))
                    batch = []
            if batch:
                multi_publish(sock, topic, batch)
                _expect_ok(answers.read(10))
        self._wait(lambda channel: channel["depth"] == total, topic)

    def wait_for_consumer(self, topic: str) -> None:
        """Wait until a consumer is subscribed and has sent RDY."""
        self._wait(lambda channel: any(client["ready_count"] for client in channel["clients"] or []), topic)

    def channel(self, topic: str) -> Any:
        """The figures of the topic's channel; None if it does not exist."""
        topics = json.loads(self._get(f"/stats?format=json&topic={topic}&channel={CHANNEL}"))["topics"]
        return topics[0]["channels"][0] if topics and topics[0]["channels"] else None

    def _wait(self, condition, topic: str) -> None:  # type: ignore[no-untyped-def]
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            found = self.channel(topic)
            if found and condition(found):
                return
            time.sleep(0.02)
        raise SystemExit(f"{topic} did not come to the expected state in {_PATIENCE:g} s")

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://{self.http_address}{path}", timeout=_PATIENCE) as answer:
            return bytes(answer.read())

    def _post(self, path: str) -> None:
        request = urllib.request.Request(f"http://{self.http_address}{path}", data=b"", method="POST")
        with urllib.request.urlopen(request, timeout=_PATIENCE):
            pass


@contextmanager
def running_nsqd(command: str, mem_queue_size: int, *flags: str) -> Iterator[Nsqd]:
    """Start ``command`` on free loopback ports with a data path of its own; stop it at the end, after SIGTERM too."""
    # Not at the top: the Pythons of other clients, which import this, have no gevent.
    from gnsq_like.server.daemon_process import DaemonFailed, DaemonProcess

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as directory:
        options = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={directory}"]
        options += [f"--mem-queue-size={mem_queue_size}", *flags]
        process = DaemonProcess("nsqd", options, program=shlex.split(command))
        try:
            process.start()
            process.wait_until_listening()
            yield Nsqd(process.tcp_address, process.http_address, process.pid)
        except DaemonFailed as exc:
            sys.exit(f"{exc}: put nsqd on PATH or give --nsqd\n{process.log}")
        finally:
            process.signal(signal.SIGTERM)
            process.end(_PATIENCE)


def connect(address: str, heartbeats: bool = False) -> socket.socket:
    """A plain socket to nsqd's TCP port, after IDENTIFY; subscribing needs heartbeats."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    fields = json.dumps({} if heartbeats else {"heartbeat_interval": -1}).encode()
    sock.sendall(b"  V2IDENTIFY\n" + struct.pack(">i", len(fields)) + fields)
    _expect_ok(sock.recv(10, socket.MSG_WAITALL))
    return sock


def publish_command(topic: str, body: bytes) -> bytes:
    """A PUB."""
    return b"PUB %b\n%b%b" % (topic.encode(), struct.pack(">i", len(body)), body)


def multi_publish(sock: socket.socket, topic: str, bodies: list[bytes]) -> None:
    """Send an MPUB; the caller reads the answer."""
    body = struct.pack(">i", len(bodies)) + b"".join([struct.pack(">i", len(each)) + each for each in bodies])
    sock.sendall(b"MPUB %b\n%b%b" % (topic.encode(), struct.pack(">i", len(body)), body))


def _expect_ok(answer: bytes) -> None:
    if answer != OK_FRAME:
        raise SystemExit(f"nsqd answered {answer!r}")
