"""``gnsq-like pub`` as a process."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import open_terminal, read_to_the_end, terminal_environment
from tests.support.daemons import KINDS, running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.scripts import run_beside
from tests.support.tools import (
    COMMAND,
    counts,
    fill,
    go_tool,
    lines,
    numbered,
    run_tool,
    running_tool,
    taken,
)

pytestmark = pytest.mark.commands

both = pytest.mark.parametrize("kind", KINDS)


@both
def test_lines_of_stdin(kind: Any) -> None:
    bodies = numbered(20_000)
    with running_nsqd(kind) as nsqd:
        done = run_tool("pub", "-topic=t", f"-nsqd-tcp-address={nsqd.tcp_address}", data=lines(bodies))
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert sorted(taken(nsqd, "t", len(bodies))) == bodies


@both
def test_messages_on_the_command_line(kind: Any) -> None:
    """The first word is the topic; with --topic, all of them are messages."""
    with running_nsqd(kind) as nsqd:
        for arguments in (
            ["t", "one", "two\nlines"],
            ["--topic=t", "three", "--", "-four", b"\xff".decode(errors="surrogateescape")],
        ):
            done = run_tool("pub", "-d", nsqd.tcp_address, *arguments, data=b"not read")
            assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert sorted(taken(nsqd, "t", 5)) == [b"-four", b"one", b"three", b"two\nlines", b"\xff"]


@both
def test_delimiters_and_topics_by_a_field(kind: Any) -> None:
    with running_nsqd(kind) as nsqd:
        arguments = ["--topic-field", "to", "--topic", "rest", "--delimiter", r"\0"]
        data = b'{"to": "a"}\0\0{"to": "b"}\0{"n": 1}\0'
        done = run_tool("pub", "--nsqd-tcp-address", nsqd.tcp_address, *arguments, data=data)
        assert (done.returncode, done.stderr) == (0, b"")
        assert taken(nsqd, "a", 1) == [b'{"to": "a"}']
        assert taken(nsqd, "b", 1) == [b'{"to": "b"}']
        assert taken(nsqd, "rest", 1) == [b'{"n": 1}']


@pytest.mark.real_nsqd
def test_the_same_input_gives_the_messages_of_to_nsq() -> None:
    """But for a last record without delimiter, of which to_nsq drops the last byte."""
    data = b"one\n\ntwo\n  three \n\xff\x00\n" + b"x" * 100_000 + b"\n"
    to_nsq = go_tool("to_nsq")
    with running_nsqd("real") as nsqd:
        arguments = [f"-nsqd-tcp-address={nsqd.tcp_address}", "-delimiter=\n", "-producer-opt=snappy,true"]
        theirs = run_tool("-topic=theirs", *arguments, data=data, command=[to_nsq])
        ours = run_tool("pub", "-topic=ours", *arguments, data=data)
        assert (ours.returncode, theirs.returncode) == (0, 0)
        assert sorted(taken(nsqd, "ours", 5)) == sorted(taken(nsqd, "theirs", 5))


def test_to_all_nsqds_or_to_one() -> None:
    with running_nsqd() as one, running_nsqd() as two:
        addresses = [f"--nsqd-tcp-address={nsqd.tcp_address}" for nsqd in (one, two)]
        assert run_tool("pub", "--topic=all", *addresses, data=b"a\nb\n").returncode == 0
        assert [sorted(taken(nsqd, "all", 2)) for nsqd in (one, two)] == [[b"a", b"b"]] * 2
        assert run_tool("pub", "--topic=one", "--to=one", *addresses, data=lines(numbered(100))).returncode == 0
        depths = [depth(nsqd.http_address, "one") for nsqd in (one, two)]
        assert sum(depths) == 100


def depth(http_address: str, topic: str) -> int:
    with NsqdHTTPClient(http_address) as http:
        topics = http.stats(topic)["topics"]
    return sum(each["depth"] for each in topics)


def test_nsqlookupd_finds_the_nsqd() -> None:
    with (
        running_nsqlookupd() as lookupd,
        running_nsqd(lookupd_tcp_addresses=(lookupd.tcp_address,), broadcast_address="127.0.0.1") as nsqd,
    ):
        done = run_tool("pub", "--topic=t", data=b"a\n", NSQ_LOOKUPD_HTTP_ADDRESSES=lookupd.http_address)
        assert (done.returncode, done.stderr) == (0, b"")
        assert taken(nsqd, "t", 1) == [b"a"]


@both
def test_a_signal_in_the_middle(kind: Any) -> None:
    """What was read is published, nothing of it twice; the status says that it is not all."""
    with running_nsqd(kind) as nsqd:
        arguments = ["pub", "--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}"]
        with running_tool(*arguments, stdin=subprocess.PIPE) as tool:
            assert tool.process.stdin is not None
            tool.process.stdin.write(lines(numbered(1000)))
            tool.process.stdin.flush()
            wait_for(lambda: depth(nsqd.http_address, "t") == 1000)
            tool.process.stdin.write(b"half a record")
            tool.process.stdin.flush()
            assert tool.end(signal.SIGINT) == 130
            assert (tool.out, tool.err) == (b"", "")
        found = taken(nsqd, "t", 1000)
        assert sorted(found)[-1000:] == numbered(1000)
        assert len(found) in (1000, 1001)


def test_a_rate(tmp_path: Path) -> None:
    with running_nsqd() as nsqd:
        began = time.monotonic()
        arguments = ["--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}", "--rate=5"]
        assert run_tool("pub", *arguments, data=b"x\n" * 11).returncode == 0
        # The first goes at once, and each of the others a fifth of a second after the one before: longer in all than
        # the command takes to start.
        assert time.monotonic() - began > 2
        assert depth(nsqd.http_address, "t") == 11


def test_deferred_messages() -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, "t", [], "c")
        arguments = ["--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}", "--defer=1h"]
        assert run_tool("pub", *arguments, data=b"x\n").returncode == 0
        assert counts(nsqd, "t", "c")["deferred"] == 1


# -- errors -----------------------------------------------------------------------------------------


# -- on a terminal ----------------------------------------------------------------------------------


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_shows_the_progress(tmp_path: Path, no_color: bool) -> None:
    path = tmp_path / "lines"
    path.write_bytes(lines(numbered(1000)))
    ours, theirs = open_terminal(80, 24)
    environment = terminal_environment(**({"NO_COLOR": "1"} if no_color else {}))
    with running_nsqd() as nsqd:
        command = [*COMMAND, "pub", "--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}"]
        with path.open() as stdin:
            done = run_beside(command, capture_output=False, stdin=stdin, stderr=theirs, env=environment)
        word = run_beside([*command, "x"], capture_output=False, stderr=theirs, env=environment)
    os.close(theirs)
    written = read_to_the_end(ours).decode()
    os.close(ours)
    assert (done.returncode, word.returncode) == (0, 0)
    assert "1,000 messages" in written
    assert written.endswith("1 message published\r\n")
    assert ("\x1b[3" in written) is not no_color
