"""``gnsq-like tail`` as a process."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.commands import PATIENCE, open_terminal, read_to_the_end
from tests.support.daemons import KINDS, Running, running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import LookupdClient, NsqdHTTPClient
from tests.support.scripts import run_beside
from tests.support.tools import (
    COMMAND,
    NOBODY,
    clean_environment,
    counts,
    fill,
    go_tool,
    numbered,
    run_tool,
    running_tool,
    taken,
    unfinished,
)

pytestmark = pytest.mark.commands

both = pytest.mark.parametrize("kind", KINDS)


def at(nsqd: Running) -> list[str]:
    """The flags for an nsqd, whose HTTP port is not the one after its TCP port here."""
    return [f"-nsqd-tcp-address={nsqd.tcp_address}", f"--nsqd-http-address={nsqd.http_address}"]


@both
def test_messages_as_they_come(kind: Any) -> None:
    with running_nsqd(kind) as nsqd:
        fill(nsqd, "t", [], "real")
        with running_tool("tail", "-topic=t", *at(nsqd)) as tool:
            wait_for(lambda: "#ephemeral" in channels_of(nsqd, "t"))
            fill(nsqd, "t", [b"one", b"\xff\x00"])
            wait_for(lambda: tool.out.count(b"\n") == 2)
            assert sorted(tool.out.splitlines()) == [b"one", b"\xff\x00"]
            assert tool.end(signal.SIGINT) == 0
            assert tool.err == ""
        # The other channel has them as well, and the ephemeral one goes with its consumer.
        assert unfinished(nsqd, "t", "real") == 2
        wait_for(lambda: "#ephemeral" not in channels_of(nsqd, "t"))


def is_registered(lookupd: Running, topic: str) -> bool:
    with LookupdClient(lookupd.http_address) as client:
        return bool(client.lookup(topic, missing_ok=True).producers)


def channels_of(nsqd: Running, topic: str) -> str:
    with NsqdHTTPClient(nsqd.http_address) as http:
        topics = http.stats(topic)["topics"]
    return " ".join(each["channel_name"] for each in topics[0]["channels"]) if topics else ""


@both
def test_a_format_has_the_fields_of_a_message(kind: Any) -> None:
    with running_nsqd(kind) as nsqd:
        fill(nsqd, "t", [b"caf\xc3\xa9 \xff"], "c")
        line = r"{topic}/{channel}\t{id} {timestamp:%Y} {timestamp_ns:d} {attempts:02d} {nsqd} {{}} {body}"
        done = run_tool("tail", "t", "--channel=c", "-n1", "--format", line, *at(nsqd))
        assert (done.returncode, done.stderr) == (0, b"")
        names, rest = done.stdout.split(b"\t")
        identity, year, nanoseconds, attempts, address, braces, *body = rest.split(b" ")
        assert (names, len(identity), attempts, braces) == (b"t/c", 16, b"01", b"{}")
        assert time.localtime(int(nanoseconds) / 1e9).tm_year == int(year)
        assert (address.decode(), body) == (nsqd.tcp_address, [b"caf\xc3\xa9", b"\xff\n"])


@both
def test_a_number_of_messages_and_no_more_are_finished(kind: Any) -> None:
    with running_nsqd(kind) as nsqd:
        fill(nsqd, "t", numbered(100), "c")
        done = run_tool("tail", "--topic=t", "--channel=c", "-n", "7", *at(nsqd))
        assert (done.returncode, done.stderr) == (0, b"")
        shown = done.stdout.splitlines()
        assert len(shown) == 7
        rest = taken(nsqd, "t", 93, "c")
        assert sorted([*shown, *rest]) == numbered(100)


@pytest.mark.parametrize("kind", ["process", pytest.param("real", marks=pytest.mark.real_nsqd)])
def test_a_signal_in_the_middle_loses_nothing(kind: Any) -> None:
    """Its output is read no further, so it is in the middle of a write; what has come is read without the hub."""
    bodies = [body.ljust(1000, b".") for body in numbered(3000)]
    with running_nsqd(kind, mem_queue_size=5000) as nsqd:
        fill(nsqd, "t", bodies, "c")
        command = [*COMMAND, "tail", "--topic=t", "--channel=c", *at(nsqd)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=clean_environment()) as process:
            assert process.stdout is not None
            shown = [process.stdout.readline() for _ in range(100)]
            wait_for(lambda: counts(nsqd, "t", "c")["in_flight"] > 100)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
            shown += process.stdout.readlines()
        left = unfinished(nsqd, "t", "c")
        assert len(bodies) - left <= len(shown) < len(bodies)
        rest = taken(nsqd, "t", left, "c")
        assert {*rest, *(line.rstrip() for line in shown if line.endswith(b"\n"))} == set(bodies)


def test_a_reader_that_has_seen_enough() -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, "t", numbered(2000), "c")
        command = " ".join([*COMMAND, "tail", "--topic=t", "--channel=c", *at(nsqd)])
        script = f"{command} | head -n 2; exit ${{PIPESTATUS[0]}}"
        done = run_beside(["bash", "-c", script])
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) == 2


def test_json() -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, "t", ["ä\n".encode(), b"\xff"], "c")
        done = run_tool("tail", "--topic=t", "--channel=c", "--json", "-n2", *at(nsqd))
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert [each.get("body", each.get("body_base64")) for each in found] == ["ä\n", "/w=="]
        first = found[0]
        assert (first["topic"], first["channel"], first["attempts"]) == ("t", "c", 1)
        assert (first["nsqd"], len(first["id"])) == (nsqd.tcp_address, 16)
        assert first["timestamp_ns"] > 10**18


HOSTILE = "red \x1b[31m, clear \x1b[2J, title \x1b]0;x\a, \x9b2J, back\b, \u202e ä\tline\nline"


@pytest.mark.parametrize("flags", [[], ["--format={body}"], ["--print-topic"], ["--json"]])
def test_messages_do_not_control_a_terminal(flags: list[str]) -> None:
    with running_nsqd("process") as nsqd:  # what the terminal shows is read in the hub
        fill(nsqd, "t", [HOSTILE.encode(), b"\xff\x1b[2J"], "c")
        ours, theirs = open_terminal(200, 50)
        command = [*COMMAND, "tail", "--topic=t", "--channel=c", "-n2", *flags, *at(nsqd)]
        process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=clean_environment())
        os.close(theirs)
        shown = read_to_the_end(ours).decode().replace("\r\n", "\n")
        os.close(ours)
        assert process.communicate()[1] == b""
        assert process.returncode == 0
        assert not [each for each in shown if not each.isprintable() and each not in "\n\t"]
        if flags == ["--json"]:
            assert json.loads(shown.splitlines()[0])["body"] == HOSTILE
        else:
            assert "red ?[31m, clear ?[2J, title ?]0;x?, ?2J, back?, ? ä\tline\nline\n" in shown
        # Elsewhere a body is what it is.
        fill(nsqd, "t", [HOSTILE.encode()])
        done = run_tool("tail", "--topic=t", "--channel=c", "-n1", *at(nsqd))
        assert done.stdout == HOSTILE.encode() + b"\n"


def test_grep_and_topics() -> None:
    with running_nsqd() as nsqd:
        for topic in ("a", "b"):
            fill(nsqd, topic, [], "c")
        with running_tool("tail", "--topic=a", "--topic=b", "--grep=^x+$", "--print-topic", *at(nsqd)) as tool:
            wait_for(lambda: all("#ephemeral" in channels_of(nsqd, each) for each in "ab"))
            fill(nsqd, "a", [b"y", b"xy", b"xx"])
            wait_for(lambda: tool.out == b"a | xx\n")
            fill(nsqd, "b", [b"x", b"z"])
            wait_for(lambda: tool.out == b"a | xx\nb | x\n")
            assert tool.end() == 0


def test_grep_would_finish_the_messages_of_others() -> None:
    done = run_tool("tail", "--topic=t", "--channel=c", "--grep=x", f"--nsqd-tcp-address={NOBODY}")
    assert done.returncode == 2
    assert b"--grep" in done.stderr


@pytest.mark.real_nsqd
def test_the_same_messages_give_the_output_of_nsq_tail() -> None:
    bodies = [*numbered(50), b"\xff\x00", b" x \r"]
    nsq_tail = go_tool("nsq_tail")
    with running_nsqd("real") as nsqd:
        fill(nsqd, "t", bodies, "ours", "theirs")
        arguments = ["-topic=t", f"-nsqd-tcp-address={nsqd.tcp_address}", "-print-topic", f"-n={len(bodies)}"]
        theirs = run_tool(*arguments, "-channel=theirs", command=[nsq_tail])
        ours = run_tool("tail", *arguments, "-channel=ours", f"--nsqd-http-address={nsqd.http_address}")
        assert (ours.returncode, theirs.returncode) == (0, 0)
        assert sorted(ours.stdout.split(b"\n")) == sorted(theirs.stdout.split(b"\n"))


# -- channels that nobody asked for -----------------------------------------------------------------


@contextmanager
def found_by_lookupd(kind: Any) -> Iterator[tuple[Running, Running, list[str]]]:
    """An nsqd, its nsqlookupd, and the flags to find it."""
    with (
        running_nsqlookupd(kind) as lookupd,
        running_nsqd(kind, lookupd_tcp_addresses=(lookupd.tcp_address,), broadcast_address="127.0.0.1") as nsqd,
    ):
        yield nsqd, lookupd, [f"--lookupd-http-address={lookupd.http_address}"]


@both
@pytest.mark.parametrize("by_lookupd", [False, True])
def test_the_backlog_of_a_topic_without_channel_stays(kind: Any, by_lookupd: bool) -> None:
    with found_by_lookupd(kind) as (nsqd, lookupd, found):
        flags = found if by_lookupd else at(nsqd)
        fill(nsqd, "t", numbered(100))
        wait_for(lambda: is_registered(lookupd, "t"))
        done = run_tool("tail", "--topic=t", *flags)
        assert (done.returncode, done.stdout) == (1, b"")
        (line,) = done.stderr.decode().splitlines()
        assert line.startswith("Error: topic t: it has no channel at ")
        assert "--create" in line
        assert sorted(taken(nsqd, "t", 100)) == numbered(100)


def test_create_takes_the_backlog() -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, "t", numbered(100))
        done = run_tool("tail", "--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}", "--create", "-n100")
        assert done.returncode == 0
        assert sorted(done.stdout.splitlines()) == numbered(100)


def test_an_nsqd_that_comes_later_with_a_topic_without_channel_is_left_out() -> None:
    with running_nsqlookupd() as lookupd:
        options: dict[str, Any] = {"lookupd_tcp_addresses": (lookupd.tcp_address,), "broadcast_address": "127.0.0.1"}
        with running_nsqd(**options) as one, running_nsqd() as two:
            fill(one, "t", [], "c")
            fill(two, "t", numbered(10))
            arguments = ["--topic=t", f"--lookupd-http-address={lookupd.http_address}", "--lookupd-poll-interval=100ms"]
            wait_for(lambda: is_registered(lookupd, "t"))
            with running_tool("tail", *arguments) as tool:
                wait_for(lambda: "#ephemeral" in channels_of(one, "t"))
                with NsqdHTTPClient(two.http_address) as http:
                    http.config_set("nsqlookupd_tcp_addresses", [lookupd.tcp_address])
                tool.wait_for_line("is left out: topic t: it has no channel")
                assert channels_of(two, "t") == ""
                assert tool.end() == 0


def test_a_durable_channel_is_made_only_when_asked_for() -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, "t", [b"x"], "c")
        done = run_tool("tail", "--topic=t", "--channel=d", *at(nsqd))
        assert done.returncode == 1
        assert b"it has no channel d" in done.stderr
        assert channels_of(nsqd, "t") == "c"


@both
def test_an_unknown_topic(kind: Any) -> None:
    with found_by_lookupd(kind) as (nsqd, _, found):
        for flags in (found, at(nsqd)):
            done = run_tool("tail", "--topic=unknown", *flags)
            assert (done.returncode, done.stdout) == (1, b"")
            assert done.stderr.decode() == "Error: topic unknown: no nsqd has it; --create waits for it, or makes it\n"
        assert channels_of(nsqd, "unknown") == ""


def test_an_nsqd_that_cannot_be_asked() -> None:
    with running_nsqd() as nsqd:
        done = run_tool("tail", "--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}")
        assert done.returncode == 1
        (line,) = done.stderr.decode().splitlines()
        assert "--nsqd-http-address" in line


# -- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--nsqd-tcp-address", "--lookupd-http-address"])
@pytest.mark.parametrize("more", [[], ["--create"]])
def test_nobody_listens(flag: str, more: list[str]) -> None:
    done = run_tool("tail", "--topic=t", flag, NOBODY, *more)
    assert (done.returncode, done.stdout) == (1, b"")
    *_, line = done.stderr.decode().splitlines()
    assert NOBODY in line
    assert b"Traceback" not in done.stderr


def test_a_full_disk_is_an_error_and_nothing_is_finished() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with running_nsqd() as nsqd, open("/dev/full", "wb") as full:
        fill(nsqd, "t", numbered(10), "c")
        command = [*COMMAND, "tail", "--topic=t", "--channel=c", *at(nsqd)]
        done = run_beside(command, capture_output=False, stdout=full, stderr=subprocess.PIPE)
        assert (done.returncode, done.stderr) == (1, "Error: No space left on device\n")
        assert unfinished(nsqd, "t", "c") == 10
