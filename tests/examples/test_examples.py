"""The examples, run as processes against daemons that are processes too."""

import ast
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gnsq_like import Producer
from tests.support.daemons import Kind, running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import LookupdClient
from tests.support.raw import get

pytestmark = pytest.mark.commands

ROOT = Path(__file__).resolve().parents[2]
#: The examples in the README.
EXAMPLES = [ROOT / "examples" / name for name in ("producer.py", "reader.py")]


#: With it the examples, which are not in the package, find the package even if it is not installed.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def command(example: str, *args: str) -> list[str]:
    return [sys.executable, str(ROOT / "examples" / example), *args]


def statements(path: Path) -> str:
    """The source without its docstring."""
    source = path.read_text()
    docstring = ast.parse(source).body[0]
    assert docstring.end_lineno is not None
    return "\n".join(source.splitlines()[docstring.end_lineno :]).strip()


def test_several_readers_run_as_one() -> None:
    with (
        running_nsqlookupd("process") as lookupd,
        running_nsqd("process", lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd,
        Producer(nsqd.tcp_address) as producer,
    ):
        for topic in ("clicks", "views", "other"):
            producer.publish(topic, b"one")
        with LookupdClient(lookupd.http_address) as client:
            for topic in ("clicks", "views"):
                wait_for(lambda topic=topic: client.lookup(topic, missing_ok=True).producers)  # type: ignore[misc]
        with socket.create_server(("127.0.0.1", 0)) as free:
            pages = f"127.0.0.1:{free.getsockname()[1]}"
        with subprocess.Popen(
            command("several_readers.py", lookupd.http_address, pages),
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        ) as process:
            try:
                assert process.stdout is not None
                lines = sorted(process.stdout.readline() for _ in range(2))
                wait_for(lambda: get(pages, "/healthz").status == 200, "all Readers to be connected")
                health, metrics = get(pages, "/healthz"), get(pages, "/metrics")
                process.send_signal(signal.SIGINT)
                assert process.wait() == 0
            finally:
                process.kill()
    # The first channel of a topic gets what waits there; the other one begins empty.
    assert [line.split()[-1] for line in lines] == ["b'one'"] * 2
    assert {line.split()[0] for line in lines} <= {"archive", "mail"}
    assert health.status == 200
    assert b"nsq_reader" in metrics.body


def test_messages_stay_in_their_zone() -> None:
    done = subprocess.run(command("two_zones.py"), capture_output=True, text=True, check=True, env=ENVIRONMENT)
    usual, aware = [int(line.split(": ")[1].split()[0]) for line in done.stdout.splitlines()]
    assert aware == 0 < usual


@pytest.mark.parametrize("kind", ["process", pytest.param("real", marks=pytest.mark.real_nsqd)])
def test_the_reader_prints_the_published_messages(kind: Kind) -> None:
    with (
        running_nsqlookupd(kind) as lookupd,
        running_nsqd(kind, lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd,
    ):
        done = subprocess.run(
            command("producer.py", nsqd.tcp_address),
            capture_output=True,
            text=True,
            check=False,
            env=ENVIRONMENT,
        )
        assert (done.returncode, done.stderr) == (0, "")
        with LookupdClient(lookupd.http_address) as client:
            wait_for(lambda: client.lookup("clicks", missing_ok=True).producers, "the topic at nsqlookupd")
        with subprocess.Popen(
            command("reader.py", lookupd.http_address), stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        ) as reader:
            try:
                assert reader.stdout is not None
                lines = [reader.stdout.readline() for _ in range(10)]
                reader.send_signal(signal.SIGINT)
                rest, _ = reader.communicate()
            finally:
                reader.kill()
        assert sorted(line.split(maxsplit=1)[1] for line in lines) == [
            f"b'click {number}' {nsqd.tcp_address}\n" for number in range(10)
        ]
        assert (reader.returncode, rest) == (0, "")


def test_the_default_addresses_are_nsqs_ports():
    assert '"127.0.0.1:4150"' in (ROOT / "examples/producer.py").read_text()
    assert '"127.0.0.1:4161"' in (ROOT / "examples/reader.py").read_text()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_readme_shows_the_example_as_it_is(path):
    assert textwrap.indent(statements(path), "    ") in (ROOT / "README.rst").read_text()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_has_ten_lines_at_most(path):
    assert len([line for line in statements(path).splitlines() if line]) <= 10
