"""``gnsq-like top`` as a process with a terminal."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gnsq_like import NsqdHTTPClient
from gnsq_like.testing import wait_until
from tests.support.commands import PATIENCE, needs_proc, open_terminal, terminal_environment
from tests.support.daemons import KINDS, running_nsqd
from tests.support.tools import COMMAND, NOBODY, counts, fill

pytestmark = pytest.mark.commands


class OnATerminal:
    """A command whose output is read as it is written."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self._terminal = terminal
        self._out = bytearray()
        os.set_blocking(terminal, False)

    @property
    def out(self) -> str:
        try:
            while data := os.read(self._terminal, 1 << 16):
                self._out += data
        except OSError:  # nothing now, or never again
            pass
        return self._out.decode(errors="replace")

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def wait(self) -> int:
        wait_until(lambda: (self.out, self.process.poll())[1] is not None, PATIENCE, lambda: self.out)
        return int(self.process.returncode)


@contextmanager
def on_a_terminal(*arguments: str, columns: int = 120, **environment: str) -> Iterator[OnATerminal]:
    ours, theirs = open_terminal(columns, 24)
    try:
        process = subprocess.Popen(
            [*COMMAND, "top", "--http-client-request-timeout=1m", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=terminal_environment(TERM="xterm-256color", **environment),
            # As a shell does it. Where the tests were started by what has ended since, theirs is an orphaned process
            # group, in which SIGTSTP stops nobody.
            process_group=0,
        )
    finally:
        os.close(theirs)
    with process:
        try:
            yield OnATerminal(process, ours)
        finally:
            process.kill()
            os.close(ours)


def is_restored(out: str) -> bool:
    """Whether the terminal has its own screen and cursor again."""
    return out.rindex("\x1b[?1049l") > out.rindex("\x1b[?1049h") and out.rindex("\x1b[?25h") > out.rindex("\x1b[?25l")


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [80, 200])
def test_topics_are_shown_until_q(kind: object, columns: int) -> None:
    with running_nsqd(kind) as nsqd:  # type: ignore[arg-type]
        fill(nsqd, "clicks", [b"1"], "archive")
        address = f"--nsqd-http-address={nsqd.http_address}"
        with on_a_terminal(address, "--interval=100ms", columns=columns, NO_COLOR="1") as top:
            wait_until(lambda: "clicks" in top.out and "DRAIN" in top.out, PATIENCE, lambda: top.out)
            assert ("CHANNELS" in top.out) == (columns == 200)
            top.type("2")
            wait_until(lambda: "clicks/archive" in top.out, PATIENCE, lambda: top.out)
            top.type("q")
            assert top.wait() == 0
            assert is_restored(top.out)


@pytest.mark.parametrize("kind", KINDS)
def test_a_channel_is_paused_emptied_and_its_topic_shown(kind: object) -> None:
    with running_nsqd(kind) as nsqd:  # type: ignore[arg-type]
        fill(nsqd, "clicks", [b"1"], "archive")
        address = f"--nsqd-http-address={nsqd.http_address}"
        with on_a_terminal(address, "--interval=100ms", "--view=channels", NO_COLOR="1") as top:
            wait_until(lambda: "clicks/archive" in top.out, PATIENCE, lambda: top.out)
            top.type("p")
            wait_until(lambda: "Pause channel clicks/archive? y/n" in top.out, PATIENCE, lambda: top.out)
            top.type("y")
            wait_until(lambda: "channel clicks/archive: paused at 1 nsqd" in top.out, PATIENCE, lambda: top.out)
            wait_until(lambda: "paused, no consumers" in top.out, PATIENCE, lambda: top.out)
            top.type("py")
            wait_until(lambda: "channel clicks/archive: unpaused at 1 nsqd" in top.out, PATIENCE, lambda: top.out)
            top.type("ey")
            wait_until(lambda: "channel clicks/archive: emptied at 1 nsqd" in top.out, PATIENCE, lambda: top.out)
            assert counts(nsqd, "clicks", "archive")["depth"] == 0
            top.type("ty")
            with NsqdHTTPClient(nsqd.http_address) as http:
                wait_until(lambda: "#ephemeral" in str(http.stats("clicks")), PATIENCE, lambda: top.out)
                http.publish("clicks", b"a message")
            wait_until(lambda: "a message" in top.out, PATIENCE, lambda: top.out)
            screens = top.out.count("\x1b[?1049h")
            # As a terminal does it for Ctrl-C: to all of its foreground processes.
            os.killpg(top.process.pid, signal.SIGINT)
            wait_until(lambda: top.out.count("\x1b[?1049h") > screens, PATIENCE, lambda: top.out)
            top.type("q")
            assert top.wait() == 0
            assert is_restored(top.out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_terminal_as_it_was(number: int) -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, "clicks", [], "archive")
        with on_a_terminal(f"--nsqd-http-address={nsqd.http_address}") as top:
            wait_until(lambda: "clicks" in top.out, PATIENCE, lambda: top.out)
            top.process.send_signal(number)
            assert top.wait() == 0
            assert is_restored(top.out)


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP])
def test_it_goes_on_after_it_was_stopped(number: int) -> None:
    with running_nsqd() as nsqd:
        fill(nsqd, "clicks", [b"1"], "archive")
        with on_a_terminal(f"--nsqd-http-address={nsqd.http_address}", "--interval=100ms") as top:
            wait_until(lambda: "clicks" in top.out, PATIENCE, lambda: top.out)
            top.process.send_signal(number)
            wait_until(lambda: is_stopped(top.process.pid), PATIENCE)
            assert number == signal.SIGSTOP or is_restored(top.out)
            top.process.send_signal(signal.SIGCONT)
            top.type("2")
            wait_until(lambda: "clicks/archive" in top.out, PATIENCE, lambda: top.out)
            top.type("q")
            assert top.wait() == 0
            assert is_restored(top.out)


@pytest.mark.parametrize("flag", ["--nsqd-http-address", "--lookupd-http-address"])
def test_nobody_answers(flag: str) -> None:
    with on_a_terminal(f"{flag}={NOBODY}", columns=300) as top:
        assert top.wait() == 1
        [line] = top.out.splitlines()
        assert line.startswith(f"Error: http://{NOBODY}/")
