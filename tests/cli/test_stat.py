"""``gnsq-like stat`` as a process, against daemons of both kinds."""

import json
import os
import re
import signal
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.cli.stat import fitting, heading, row
from tests.support.commands import open_terminal, read_to_the_end, terminal_environment
from tests.support.daemons import KINDS, running_nsqd, wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.scripts import run_beside
from tests.support.tools import COMMAND, NOBODY, fill, go_tool, run_tool, running_tool

commands = pytest.mark.commands
#: The least time between two reports: a test waits for reports, and not for this.
SOON = "--interval=50ms"


def reports_of(out: bytes) -> list[dict[str, Any]]:
    """The JSON objects of the lines that are complete."""
    return [json.loads(line) for line in out.split(b"\n")[:-1]]


@commands
@pytest.mark.parametrize("kind", KINDS)
def test_the_figures_of_a_channel_on_two_nsqds(kind: Any) -> None:
    with running_nsqd(kind) as one, running_nsqd(kind) as two:
        fill(one, "clicks", [b"1", b"2"], "archive")
        fill(two, "clicks", [b"3"], "archive", "other")
        where = [f"--nsqd-http-address={each.http_address}" for each in (one, two)]
        with NsqdHTTPClient(one.http_address) as http:
            wait_for(lambda: http.stats("clicks")["topics"][0]["channels"][0]["depth"] == 2)
        with NsqdHTTPClient(two.http_address) as http:
            wait_for(lambda: http.stats("clicks", "archive")["topics"][0]["channels"][0]["depth"] == 1)

        names = ["--topic", "clicks", "--channel", "archive"]
        [once] = reports_of(run_tool("stat", *names, "--once", "--json", *where).stdout)
        assert (once["depth"], once["message_count"], once["client_count"]) == (3, 3, 0)
        assert (once["ingress"], once["egress"], len(once["nodes"])) == (None, None, 2)

        with running_tool("stat", *names, "--json", SOON, *where) as tool:
            wait_for(lambda: reports_of(tool.out))
            fill(two, "clicks", [b"4"], "archive")
            wait_for(lambda: any(each["ingress"] for each in reports_of(tool.out)))
            [came] = [each for each in reports_of(tool.out) if each["ingress"]]
            assert came["message_count"] == 4
            assert tool.end(signal.SIGTERM) == 0
            assert tool.err == ""

        done = run_tool("stat", "-topic=clicks", "-channel=archive", "-count=2", "-interval=50ms", *where)
        assert (done.returncode, done.stderr) == (0, b"")
        top, names_line, *rows = done.stdout.decode().splitlines()
        assert top == "------rate------+----------------depth----------------+--------------metadata---------------"
        assert [line.split() for line in rows] == [
            ["0", "0", "|", "4", "4", "0", "0", "0", "|", "0", "0", "4", "0"],
        ] * 2
        assert names_line.split()[:2] == ["ingress", "egress"]


@commands
def test_the_lines_are_those_of_nsq_stat() -> None:
    theirs = go_tool("nsq_stat")
    with running_nsqd() as nsqd:
        fill(nsqd, "clicks", [b"1", b"2"], "archive")
        arguments = ["-topic=clicks", "-channel=archive", "-interval=50ms", "-count=2"]
        arguments.append(f"-nsqd-http-address={nsqd.http_address}")
        assert run_tool("stat", *arguments).stdout == run_tool(*arguments, command=[theirs]).stdout


@commands
def test_an_nsqd_that_goes_away_and_comes_back() -> None:
    with running_nsqd() as one, running_nsqd() as two:
        for nsqd in (one, two):
            fill(nsqd, "clicks", [b"1"], "archive")
        where = [f"--nsqd-http-address={each.http_address}" for each in (one, two)]
        with running_tool("stat", "--topic=clicks", "--channel=archive", "--json", SOON, *where) as tool:
            wait_for(lambda: reports_of(tool.out))
            two.kill()
            tool.wait_for_line(rf"Warning: http://{re.escape(two.http_address)}/")
            wait_for(lambda: reports_of(tool.out)[-1]["nodes"] == [one.http_address])
            seen = len(reports_of(tool.out))
            two.start()
            fill(two, "clicks", [], "archive")
            wait_for(lambda: len(reports_of(tool.out)[-1]["nodes"]) == 2)
            assert tool.end(signal.SIGINT) == 0
            # It counts from 0 again, which is no negative rate.
            assert all((each["ingress"] or 0) >= 0 for each in reports_of(tool.out)[seen:])


@commands
@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal(columns: int) -> None:
    with running_nsqd() as nsqd, ExitStack() as stack:
        fill(nsqd, "clicks", [b"1"], "archive")
        ours, theirs = open_terminal(columns, 24)
        stack.callback(os.close, ours)
        command = [*COMMAND, "stat", "--topic=clicks", "--channel=archive", "--count=2", SOON]
        command.append(f"--nsqd-http-address={nsqd.http_address}")
        try:
            run_beside(command, capture_output=False, stdout=theirs, env=terminal_environment(NO_COLOR="1"))
        finally:
            os.close(theirs)
        text = read_to_the_end(ours).decode()
        assert "\x1b" not in text
        lines = text.splitlines()
        assert len(lines) == 4
        assert len({*map(len, lines)}) == 1
        assert len(lines[0]) <= columns
        assert ("disk" in text) == (columns == 120)


@commands
def test_whoever_reads_has_seen_enough() -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, "clicks", [b"1"], "archive")
        where = f"--nsqd-http-address={nsqd.http_address}"
        with running_tool("stat", "--topic=clicks", "--channel=archive", SOON, where) as tool:
            wait_for(lambda: tool.out)
            assert tool.process.stdout is not None
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_NONBLOCK)
            os.dup2(nothing, tool.process.stdout.fileno())
            os.close(nothing)
            assert tool.wait() == 0
            assert tool.err == ""


@commands
def test_failures_are_one_line() -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, "clicks", [], "archive")
        for names, address, words in [
            (["clicks", "other"], nsqd.http_address, "there is no channel clicks/other"),
            (["other", "archive"], nsqd.http_address, "there is no topic other"),
            (["clicks", "archive"], NOBODY, f"http://{NOBODY}/"),
        ]:
            topic, channel = names
            done = run_tool("stat", f"--topic={topic}", f"--channel={channel}", f"--nsqd-http-address={address}")
            assert (done.returncode, done.stdout) == (1, b"")
            [line] = done.stderr.decode().splitlines()
            assert line.startswith("Error: ")
            assert words in line


@given(st.integers(1, 200), st.lists(st.integers(0, 99_999), min_size=11, max_size=11))
def test_a_table_fits_where_all_that_may_go_is_gone(width: int, figures: list[int]) -> None:
    names = [name for columns in fitting(None).values() for name in columns]
    groups = fitting(width)
    lines = [*heading(groups), row(groups, dict(zip(names, map(str, figures), strict=True)))]
    assert len({*map(len, lines)}) == 1
    assert len(lines[0]) <= max(width, 60)
