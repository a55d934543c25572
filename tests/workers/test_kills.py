"""Nothing is lost, whichever process is killed. GNSQ_LIKE_HYPOTHESIS=thorough runs twenty times as many messages."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.commands import needs_proc, runs
from tests.support.daemons import KINDS, Kind, Running, running_nsqd, wait_for
from tests.support.supervised import Supervised, kill, publish, supervised, wait_until_ended
from tests.support.web import IS_THOROUGH, wait_until_all_is_finished

pytestmark = [needs_proc, pytest.mark.commands]

MESSAGES = 200_000 if IS_THOROUGH else 10_000
PROCESSES = 4
#: What happens while each part of the messages is handled.
EVENTS = ["worker", "worker", "reload", "worker", "supervisor", "worker", "reload", "worker"]
PART = MESSAGES // len(EVENTS)


class Notes:
    """The messages that were begun, and those that have been handled, read from the notes as they grow."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._path = path
        self._read_bytes = 0
        self.counts: dict[str, Counter[str]] = {"handling": Counter(), "handled": Counter()}

    def read(self, what: str) -> int:
        """Read on; returns how many different messages have a note of this kind."""
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            complete, end, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(complete + end)
        for line in complete.decode().splitlines():
            kind, _, name = line.split(maxsplit=2)
            if kind in self.counts:
                self.counts[kind][name] += 1
        return len(self.counts[what])

    def wait_for(self, what: str, count: int) -> None:
        """Wait until so many different messages have a note of this kind."""
        wait_for(lambda: self.read(what) >= count, f"{count} messages {what}", 900)


@contextmanager
def running(directory: Path, nsqd: Running) -> Iterator[Supervised]:
    """A supervisor with all its workers."""
    flags = [f"--processes={PROCESSES}", "--patch"]
    with supervised(directory, nsqd.tcp_address, *flags, MAX_IN_FLIGHT="200", MSG_TIMEOUT="2") as server:
        server.wait_for_workers(PROCESSES)
        yield server


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["process", KINDS[1]])
def test_each_message_is_handled_whichever_process_is_killed(tmp_path: Path, kind: Kind) -> None:
    names = [f"0.05-{number}" for number in range(MESSAGES)]
    chance = random.Random(4)
    notes = Notes(tmp_path / "notes")
    with running_nsqd(kind) as nsqd, ExitStack() as stack:
        server = stack.enter_context(running(tmp_path, nsqd))
        died = 0
        for number, event in enumerate(EVENTS):
            publish(nsqd, names[number * PART : (number + 1) * PART])
            notes.wait_for("handling", number * PART + PART // 10)
            if event == "worker":
                died += 1
                kill(chance.choice(sorted(server.running_pids)), signal.SIGKILL)
                wait_for(lambda: server.metric('nsq_worker_restarts_total{reason="died"}') == died, "a restart", 60)  # noqa: B023
            elif event == "reload":
                pids = server.wait_for_workers(PROCESSES)
                server.process.send_signal(signal.SIGHUP)
                server.wait_for_workers(PROCESSES, pids)
            else:
                server.process.kill()
                wait_until_ended(int(pid) for pid in server.pids("loaded"))
                (tmp_path / "log").unlink()
                server = stack.enter_context(running(tmp_path, nsqd))
                died = 0
        notes.wait_for("handled", MESSAGES)
        wait_until_all_is_finished(nsqd, "work")
        server.wait_for_workers(PROCESSES)
        assert server.metric("nsq_supervisor_memory_bytes") > 1e6
        assert server.end(signal.SIGTERM, 60) == 0
        notes.read("handled")
        assert set(notes.counts["handled"]) == set(names)
        assert not [pid for pid in server.pids("loaded") if runs(int(pid))]
        # The kills hit handlers.
        again = notes.counts["handling"].total() - MESSAGES
        assert 0 < again < MESSAGES // 2
        print(f"{MESSAGES} messages, {again} begun twice")
