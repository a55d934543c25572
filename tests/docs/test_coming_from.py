"""docs/coming-from.rst: the ported programs run, names of ours exist, and those of the others are refused."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from gnsq_like import Message, Producer, Reader
from gnsq_like.options import ProducerOptions, ReaderOptions
from gnsq_like.server import Nsqd
from gnsq_like.testing import RunningNsqd
from tests.support.pages import blocks, page, section
from tests.support.scripts import ROOT, run_beside

PAGE = page("coming-from.rst")
OPTIONS = {option.name for option in (*fields(ReaderOptions), *fields(ProducerOptions))}


def test_the_ported_program_runs_as_it_stands(tmp_path: Path) -> None:
    [program] = blocks(section(PAGE, "The same program"))
    path = tmp_path / "ported.py"
    path.write_text(program)
    with Nsqd(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0") as nsqd:
        done = run_beside([sys.executable, "-W", "error", str(path), nsqd.tcp_address], cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'/home'\n", "")


@contextmanager
def running(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program that ends at SIGTERM, with status 0."""
    command = [sys.executable, "-u", "-W", "error", "-c", program, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
            process.terminate()
            assert process.wait(timeout=100) == 0
        finally:
            process.kill()


def test_a_connection_of_ones_own_gets_and_finishes_a_message(nsqd: RunningNsqd) -> None:
    [program] = blocks(section(PAGE, "From gnsq"))
    nsqd.publish("clicks", b"/home")
    done = run_beside([sys.executable, "-W", "error", "-c", program, nsqd.tcp_address], cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'/home'\n", "")
    nsqd.wait_until("clicks", "archive", messages=1, left=0)


def test_the_loop_of_nsq_py_handles_a_message(nsqd: RunningNsqd) -> None:
    [program] = blocks(section(PAGE, "From nsq-py"))
    nsqd.publish("clicks", b"/home")
    done = run_beside([sys.executable, "-W", "error", "-c", program, nsqd.tcp_address], cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'/home'\n", "")
    nsqd.wait_until("clicks", "archive", messages=1, left=0)


def test_the_relay_of_pynsqs_examples_relays(nsqd: RunningNsqd) -> None:
    program, _ = blocks(section(PAGE, "From pynsq"))
    nsqd.publish("clicks", b"/home")
    arguments = ["--topic", "clicks", "--channel", "relay", "--destination-topic", "copies"]
    addresses = ["--nsqd-tcp-address", nsqd.tcp_address, "--destination-nsqd-tcp-address", nsqd.tcp_address]
    with running(program, *arguments, *addresses):
        [copy] = nsqd.messages("copies", "look", count=1, timeout=100)
    assert copy.body == b"/home"
    nsqd.wait_until("clicks", "relay", left=0)


def test_the_batches_of_pynsqs_example_are_handled(nsqd: RunningNsqd) -> None:
    _, program = blocks(section(PAGE, "From pynsq"))
    nsqd.multi_publish("nsq_reader", [b"1", b"2", b"3"])
    with running(program, nsqd.tcp_address) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in range(3)) == [f"b'{number}'\n" for number in (1, 2, 3)]
        nsqd.wait_until("nsq_reader", "async", left=0, timeout=100)


def test_each_name_of_ours_exists() -> None:
    for title in ("From gnsq", "From pynsq", "From nsq-py", "From go-nsq"):
        for right in re.findall(r"^``.*?``[^`]*?   +(.*)$", section(PAGE, title), re.MULTILINE):
            for name in re.findall(r"``(\w+)=[^`]*``", right):
                assert name in OPTIONS or name in Reader.__init__.__annotations__, name
            for owner, name in re.findall(r"``(reader|producer|message)\.(\w+)", right):
                assert hasattr({"reader": Reader, "producer": Producer, "message": Message}[owner], name), name
