"""``gnsq-like demo``: its counting, and the command as a process of its own, whatever ends it.

Which daemons a demo has, and whether they are gone, is read in /proc.
"""

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gnsq_like.cli.tally import NUMBER_BYTES, Tally, Verdict, body_of, number_of

DEMO = [sys.executable, "-m", "gnsq_like", "demo"]
#: Seconds for a small run on a busy machine.
RUN_TIMEOUT = 60
#: Long enough to be ended in the middle: its 4,000 messages take ten seconds.
LONG = ["--messages", "4000", "--readers", "1", "--work", "0.25"]

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")


def run(*args: str, command: list[str] = DEMO) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *args], capture_output=True, text=True, timeout=RUN_TIMEOUT, check=False)


def wait_for(condition: Callable[[], object], timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stat_of(pid: int) -> tuple[str, int] | None:
    """State and parent of a process; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1])


def runs(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat[0] not in "ZX"


def daemons_of(pid: int) -> dict[str, int]:
    """The pids of a demo's children, by their first two arguments: "nsqlookupd", "nsqd 1", ..."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        stat = stat_of(int(path.name))
        if stat is not None and stat[1] == pid:
            command = (path / "cmdline").read_text().split("\0")
            number = "".join(word.removeprefix("--node-id=") for word in command if word.startswith("--node-id="))
            found[f"{command[3]} {number}".strip()] = int(path.name)
    return found


@contextmanager
def running() -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    """A demo that has published all and consumes, in a process group of its own, and its daemons."""
    daemons: dict[str, int] = {}
    with subprocess.Popen(
        [*DEMO, *LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        try:
            assert process.stdout is not None
            assert any("published 4,000 of" in line for line in process.stdout)
            daemons = daemons_of(process.pid)
            assert set(daemons) == {"nsqlookupd", "nsqd 1", "nsqd 2"}
            yield process, daemons
        finally:
            process.kill()
            for pid in filter(runs, daemons.values()):
                os.kill(pid, signal.SIGKILL)


# -- counting ---------------------------------------------------------------------------------------


def tally_of(*numbers: int, size: int = 10) -> Tally:
    tally = Tally(size)
    for number in numbers:
        tally.count(number)
    return tally


def test_nothing_is_lost_when_every_published_number_was_counted_once():
    verdict = Verdict.of(tally_of(*range(10)), {"archive": tally_of(*range(10)), "mail": tally_of(*range(9, -1, -1))})
    assert str(verdict) == "0 lost, 0 delivered twice (archive 0 and 0, mail 0 and 0)."
    assert verdict.exit_status == 0


def test_a_hole_in_the_numbers_of_one_channel_is_a_loss():
    verdict = Verdict.of(tally_of(*range(10)), {"archive": tally_of(*range(10)), "mail": tally_of(0, 1, 2, 4, 5, 9)})
    assert str(verdict) == "4 lost, 0 delivered twice (archive 0 and 0, mail 4 and 0)."
    assert verdict.exit_status == 1


def test_a_number_counted_again_was_delivered_twice_and_makes_up_for_no_other():
    verdict = Verdict.of(tally_of(*range(4)), {"archive": tally_of(0, 1, 1, 1, 2), "mail": tally_of(*range(4), 3)})
    assert str(verdict) == "1 lost, 2 delivered twice (archive 1 and 1, mail 0 and 1)."
    assert verdict.exit_status == 1


def test_delivered_twice_alone_is_no_loss():
    assert Verdict.of(tally_of(0, 1), {"archive": tally_of(0, 1, 1)}).exit_status == 0


def test_what_nsqd_did_not_confirm_is_not_lost():
    assert Verdict.of(tally_of(0, 2), {"archive": tally_of(2, 0), "mail": tally_of(0, 1, 2)}).exit_status == 0


def test_many_deliveries_of_one_number_are_one_message_delivered_twice():
    assert tally_of(*[3] * 1000).twice == 1


@pytest.mark.parametrize("size", [NUMBER_BYTES, NUMBER_BYTES + 1, 100])
def test_a_body_carries_its_number(size):
    body = body_of(123456, size)
    assert len(body) == size
    assert number_of(body) == 123456


@pytest.mark.parametrize("body", [b"hello", b"000000000001.x", b"", b"1" + b"." * 20])
def test_another_body_has_no_number(body):
    with pytest.raises(ValueError, match=r"not a body|invalid literal"):
        number_of(body)


# -- a run to the end -------------------------------------------------------------------------------


def test_a_small_run_loses_nothing():
    done = run("--messages", "2000", "--fail-every", "100")
    assert (done.returncode, done.stderr) == (0, "")
    *_, sums, last = done.stdout.splitlines()
    assert last == "0 lost, 0 delivered twice (archive 0 and 0, mail 0 and 0)."
    # The planned failures were requeued, came again, and count as nothing else.
    assert sums.startswith("2,000 messages published, 4,000 handled, 20 requeued in ")


@pytest.mark.parametrize("args", [["--fail-every", "1", "--nsqds", "3"], ["--fail-every", "0", "--nsqds", "1"]])
def test_quiet_prints_the_result_only(args):
    done = run("--messages", "100", "--readers", "1", "--body-bytes", "12", "--quiet", *args)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0 lost, 0 delivered twice (archive 0 and 0, mail 0 and 0).\n"


@needs_proc
def test_messages_lost_with_an_nsqd_are_counted_and_the_exit_status_is_1():
    with running() as (process, daemons):
        os.kill(daemons["nsqd 1"], signal.SIGKILL)
        stdout, _ = process.communicate(timeout=RUN_TIMEOUT)
        assert process.returncode == 1
        assert "nsqd 1 is gone: it was killed by SIGKILL." in stdout
        last = stdout.splitlines()[-1].replace(",", "")
        lost, _, archive, _, mail, _ = map(int, re.findall(r"\d+", last))
        assert lost == archive + mail
        assert archive > 0
        assert mail > 0


# -- ended in the middle ----------------------------------------------------------------------------


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_status_130_and_leaves_no_process(number):
    with running() as (process, daemons):
        process.send_signal(number)
        _, stderr = process.communicate(timeout=RUN_TIMEOUT)
        assert process.returncode == 130
        assert stderr == f"Ended by {number.name}; no process is left.\n"
        assert not any(map(runs, daemons.values()))


@needs_proc
def test_ctrl_c_goes_to_the_whole_group_and_more_than_once():
    with running() as (process, daemons):
        for _ in range(3):
            os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=RUN_TIMEOUT)
        assert (process.returncode, stderr) == (130, "Ended by SIGINT; no process is left.\n")
        assert not any(map(runs, daemons.values()))


@needs_proc
def test_a_signal_while_the_daemons_start():
    with subprocess.Popen([*DEMO], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Starting")
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=RUN_TIMEOUT)
        finally:
            process.kill()
    # The pipes are at their end, so nobody holds them any more.
    assert (process.returncode, stdout, stderr) == (130, "", "Ended by SIGINT; no process is left.\n")


@needs_proc
def test_its_daemons_end_when_it_is_killed():
    with running() as (process, daemons):
        process.kill()
        process.wait(timeout=RUN_TIMEOUT)
        wait_for(lambda: not any(map(runs, daemons.values())))


# -- what can go wrong ------------------------------------------------------------------------------


def demo_with_interpreter(path: str) -> list[str]:
    """The demo, whose daemons are to be run by another interpreter."""
    return [sys.executable, "-c", f"import sys; sys.executable = {path!r}; import gnsq_like.cli as c; c.main()", "demo"]


def test_a_daemon_that_cannot_be_started_is_a_sentence():
    done = run("--quiet", command=demo_with_interpreter("/nowhere/python"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: nsqlookupd did not start: /nowhere/python: No such file or directory.\n"


def test_a_daemon_that_ends_at_once_is_a_sentence():
    done = run("--quiet", command=demo_with_interpreter("/bin/false"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: nsqlookupd did not start: it ended with status 1.\n"


@pytest.mark.parametrize("args", [["--messages", "0"], ["--nsqds", "none"], ["--body-bytes", "3"], ["--speed", "9"]])
def test_a_wrong_option_exits_2(args):
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert args[0] in done.stderr


# -- on a terminal ----------------------------------------------------------------------------------


def on_a_terminal(columns: int, lines: int, **environment: str) -> str:
    """What a small run writes to a terminal of that size."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", **environment}
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    with subprocess.Popen([*DEMO, "--messages", "2000"], stdin=theirs, stdout=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        try:
            while data := os.read(ours, 65536):
                written += data
        except OSError:
            pass  # how a terminal says that the last one has left
        finally:
            os.close(ours)
    assert process.returncode == 0, written.decode()
    return written.decode()


def last_line(written: str) -> str:
    return written.rstrip().splitlines()[-1]


@pytest.mark.parametrize(("columns", "has_bars"), [(120, True), (80, True), (64, False)])
def test_a_terminal_shows_a_table(columns, has_bars):
    written = on_a_terminal(columns, 24)
    assert "in flight" in written
    assert "Ctrl-C" in written
    assert ("━" in written) is has_bars
    # The cursor is back.
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    assert last_line(written) == "0 lost, 0 delivered twice (archive 0 and 0, mail 0 and 0)."


@pytest.mark.parametrize(("columns", "lines", "term"), [(40, 24, "xterm"), (80, 5, "xterm"), (80, 24, "dumb")])
def test_a_small_or_dumb_terminal_shows_lines(columns, lines, term):
    written = on_a_terminal(columns, lines, TERM=term)
    assert "\x1b" not in written
    words = " ".join(written.split())
    assert " s: published 2,000 of 2,000; archive 2,000, " in words
    assert words.endswith("s. 0 lost, 0 delivered twice (archive 0 and 0, mail 0 and 0).")
    assert not [line for line in written.splitlines()[:-1] if len(line) > columns]
    assert last_line(written) == "0 lost, 0 delivered twice (archive 0 and 0, mail 0 and 0)."
