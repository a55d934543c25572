"""``gnsq-like demo``: its counting, and the command as a process of its own, whatever ends it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gnsq_like.cli.numbered_messages import NUMBER_BYTES, Tally, Verdict, body_of, number_of
from tests.support.commands import (
    PATIENCE,
    daemons_of,
    gnsq_like,
    needs_proc,
    open_terminal,
    read_to_the_end,
    run_python,
    runs,
    terminal_environment,
)
from tests.support.daemons import wait_for

DEMO = [sys.executable, "-m", "gnsq_like", "demo"]


@contextmanager
def running(work: float = 10.0) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    """A demo that has published everything and consumes, in a process group of its own, and its daemons.

    :param work: seconds that each message takes, a hundred at once: long enough to be ended in the middle
    """
    daemons: dict[str, int] = {}
    command = [*DEMO, "--messages=1000", "--readers=1", f"--work={work}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            assert any("published 1,000 of" in line for line in process.stdout), process.stderr.read()
            daemons = daemons_of(process.pid)
            assert set(daemons) == {"nsqlookupd", "nsqd 1", "nsqd 2"}
            yield process, daemons
        finally:
            process.kill()
            for pid in filter(runs, daemons.values()):
                os.kill(pid, signal.SIGKILL)


def with_interpreter(path: str) -> str:
    """Code that runs the command, whose daemons are run by another interpreter."""
    return f"import sys; sys.executable = {path!r}; import gnsq_like.cli as c; c.main()"


# -- counting ---------------------------------------------------------------------------------------


def tally_of(*numbers: int, size: int = 10) -> Tally:
    tally = Tally(size)
    for number in numbers:
        tally.count(number)
    return tally


def test_nothing_is_lost_when_every_published_number_was_counted_once() -> None:
    verdict = Verdict.of(tally_of(*range(10)), {"archive": tally_of(*range(10)), "mail": tally_of(*range(9, -1, -1))})
    assert str(verdict) == "0 lost, 0 delivered twice (archive 0 and 0, mail 0 and 0)."
    assert verdict.exit_status == 0


def test_a_hole_in_the_numbers_of_one_channel_is_a_loss() -> None:
    verdict = Verdict.of(tally_of(*range(10)), {"archive": tally_of(*range(10)), "mail": tally_of(0, 1, 2, 4, 5, 9)})
    assert str(verdict) == "4 lost, 0 delivered twice (archive 0 and 0, mail 4 and 0)."
    assert verdict.exit_status == 1


def test_a_number_counted_again_was_delivered_twice_and_makes_up_for_no_other() -> None:
    verdict = Verdict.of(tally_of(*range(4)), {"archive": tally_of(0, 1, 1, 1, 2), "mail": tally_of(*range(4), 3)})
    assert str(verdict) == "1 lost, 2 delivered twice (archive 1 and 1, mail 0 and 1)."
    assert verdict.exit_status == 1


def test_delivered_twice_alone_is_no_loss() -> None:
    assert Verdict.of(tally_of(0, 1), {"archive": tally_of(0, 1, 1)}).exit_status == 0


def test_what_nsqd_did_not_confirm_is_not_lost() -> None:
    assert Verdict.of(tally_of(0, 2), {"archive": tally_of(2, 0), "mail": tally_of(0, 1, 2)}).exit_status == 0


def test_many_deliveries_of_one_number_are_one_message_delivered_twice() -> None:
    assert tally_of(*[3] * 1000).twice == 1


@pytest.mark.parametrize("size", [NUMBER_BYTES, NUMBER_BYTES + 1, 100])
def test_a_body_carries_its_number(size: int) -> None:
    body = body_of(123456, size)
    assert len(body) == size
    assert number_of(body) == 123456


@pytest.mark.parametrize("body", [b"hello", b"000000000001.x", b"", b"1" + b"." * 20])
def test_another_body_has_no_number(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a body|invalid literal"):
        number_of(body)


# -- a run to the end -------------------------------------------------------------------------------


def test_a_small_run_loses_nothing() -> None:
    done = gnsq_like("demo", "--messages", "2000", "--fail-every", "100")
    assert (done.returncode, done.stderr) == (0, "")
    *_, sums, last = done.stdout.splitlines()
    assert last == "0 lost, 0 delivered twice (archive 0 and 0, mail 0 and 0)."
    # The planned failures were requeued and delivered again, and do not count otherwise.
    assert sums.startswith("2,000 messages published, 4,000 handled, 20 requeued in ")


@pytest.mark.commands
@pytest.mark.parametrize("args", [["--fail-every", "1", "--nsqds", "3"], ["--fail-every", "0", "--nsqds", "1"]])
def test_quiet_prints_the_result_only(args: list[str]) -> None:
    done = gnsq_like("demo", "--messages", "100", "--readers", "1", "--body-bytes", "12", "--quiet", *args)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0 lost, 0 delivered twice (archive 0 and 0, mail 0 and 0).\n"


@pytest.mark.commands
@needs_proc
def test_messages_lost_with_an_nsqd_are_counted_and_the_exit_status_is_1() -> None:
    with running(work=2.0) as (process, daemons):
        os.kill(daemons["nsqd 1"], signal.SIGKILL)
        stdout, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
        assert "nsqd 1 is gone: it was killed by SIGKILL." in stdout
        last = stdout.splitlines()[-1].replace(",", "")
        lost, _, archive, _, mail, _ = map(int, re.findall(r"\d+", last))
        assert lost == archive + mail
        assert archive > 0
        assert mail > 0


# -- ended in the middle ----------------------------------------------------------------------------


@pytest.mark.commands
@needs_proc
def test_a_signal_ends_it_with_status_130_and_leaves_no_process() -> None:
    with running() as (process, daemons):
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert stderr == "Ended by SIGTERM; no process is left.\n"
        assert not any(map(runs, daemons.values()))


@pytest.mark.commands
@needs_proc
def test_ctrl_c_goes_to_the_whole_group_and_more_than_once() -> None:
    with running() as (process, daemons):
        for _ in range(3):
            os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE)
        assert (process.returncode, stderr) == (130, "Ended by SIGINT; no process is left.\n")
        assert not any(map(runs, daemons.values()))


@needs_proc
def test_a_signal_while_the_daemons_start(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"  # of daemons that are not ready before the signal, whenever that comes
    interpreter.write_text("#!/bin/sh\nexec sleep 1000\n")
    interpreter.chmod(0o755)
    command = [sys.executable, "-c", with_interpreter(str(interpreter)), "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Starting")
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    # The pipes have ended, so no process holds them any more.
    assert (process.returncode, stdout, stderr) == (130, "", "Ended by SIGINT; no process is left.\n")


@pytest.mark.commands
@needs_proc
def test_its_daemons_end_when_it_is_killed() -> None:
    with running() as (process, daemons):
        process.kill()
        process.wait(timeout=PATIENCE)
        wait_for(lambda: not any(map(runs, daemons.values())))


# -- errors -----------------------------------------------------------------------------------------


def demo_with_interpreter(path: str) -> subprocess.CompletedProcess[str]:
    """A demo whose daemons are run by another interpreter."""
    return run_python("-c", with_interpreter(path), "demo", "--quiet")


def test_a_daemon_that_cannot_be_started_is_a_sentence() -> None:
    done = demo_with_interpreter("/nowhere/python")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: nsqlookupd did not start: /nowhere/python: No such file or directory.\n"


def test_a_daemon_that_ends_at_once_is_a_sentence() -> None:
    done = demo_with_interpreter("/bin/false")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: nsqlookupd did not start: it ended with status 1.\n"


# -- on a terminal ----------------------------------------------------------------------------------


def on_a_terminal(columns: int, lines: int) -> str:
    """The output of a small run on a terminal of this size."""
    ours, theirs = open_terminal(columns, lines)
    environment = terminal_environment()
    with subprocess.Popen([*DEMO, "--messages", "2000"], stdin=theirs, stdout=theirs, env=environment) as process:
        os.close(theirs)
        written = read_to_the_end(ours)
        os.close(ours)
    assert process.returncode == 0, written.decode()
    return written.decode()


def last_line(written: str) -> str:
    return written.rstrip().splitlines()[-1]


@pytest.mark.commands
@pytest.mark.parametrize(("columns", "has_bars"), [(80, True), (64, False)])
def test_a_terminal_shows_a_table(columns: int, has_bars: bool) -> None:
    written = on_a_terminal(columns, 24)
    assert "in flight" in written
    assert "Ctrl-C" in written
    assert ("━" in written) is has_bars
    # The cursor is back.
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    assert last_line(written) == "0 lost, 0 delivered twice (archive 0 and 0, mail 0 and 0)."


@pytest.mark.commands
def test_a_small_terminal_shows_lines() -> None:
    columns = 40
    written = on_a_terminal(columns, 24)
    assert "\x1b" not in written
    words = " ".join(written.split())
    assert " s: published 2,000 of 2,000; archive 2,000, " in words
    assert words.endswith("s. 0 lost, 0 delivered twice (archive 0 and 0, mail 0 and 0).")
    assert not [line for line in written.splitlines()[:-1] if len(line) > columns]
    assert last_line(written) == "0 lost, 0 delivered twice (archive 0 and 0, mail 0 and 0)."
