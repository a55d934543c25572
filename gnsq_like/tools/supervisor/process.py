"""Worker processes as the master sees them, and the way of starting clean processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from gnsq_like.tools.supervisor.pipes import LineReader, LineWriter
from gnsq_like.tools.supervisor.plan import Plan

#: Variables for the master itself: a worker must not speak to systemd in its place.
_ONLY_OURS = {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "", "WATCHDOG_PID": ""}

_BOOT = str(Path(__file__).with_name("boot.py"))


def command(label: str) -> list[str]:
    """The command line of a process of a supervisor; ``ps`` shows the label. See :func:`environment`."""
    return [sys.executable, "-P", _BOOT, label]


def environment(module: str, task: Mapping[str, Any], **more: str) -> dict[str, str]:
    """Our environment, with the task for a process that calls ``main(task)`` of this module.

    :param more: variables to add; an empty value removes one
    """
    paths = [path or os.getcwd() for path in [*filter(None, [task["plan"]["app_dir"]]), *sys.path]]
    whole = {"sys_path": paths, "patch": False, "module": module, **task}
    changed = {**os.environ, "GNSQ_LIKE_TASK": json.dumps(whole), **more}
    return {name: value for name, value in changed.items() if value or name not in more}


def supervise(plan: Plan) -> NoReturn:
    """Run a supervisor in place of this process, which keeps its process id and its terminal.

    For commands that have loaded an application, and with it gevent, threads and connections: the master is better off
    without them. Its exit statuses are those of ``Supervisor.run``, and 2 after one line on stderr for what it cannot
    run.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    task = environment("gnsq_like.tools.supervisor.master", {"plan": plan.to_json()})
    os.execve(sys.executable, command(" ".join(plan.arguments) or plan.loader), task)


class WorkerProcess:
    """A worker, from its start to its end.

    :param number: its number among the supervisor's workers
    :param metrics_directory: for prometheus-client's multiprocess mode; empty for none
    """

    def __init__(self, number: int, plan: Plan, metrics_directory: str = "") -> None:
        self.number = number
        self.started_at = time.time()
        #: Content of its reports: one line about its failure, and the messages left when it was stopped.
        self.failure = ""
        self.left = 0
        command_end, ours = os.pipe()
        self.reports, report_end = map(int, os.pipe())
        self.commands = LineWriter(ours)
        self.reader = LineReader(self.reports)
        os.set_blocking(self.reports, False)
        task = {
            "plan": plan.to_json(),
            "number": number,
            "patch": plan.patch,
            "commands": command_end,
            "reports": report_end,
        }
        label = f"worker {number}: {' '.join(plan.arguments) or plan.loader}"
        try:
            self._process = subprocess.Popen(
                command(label),
                stdin=subprocess.DEVNULL,
                env=environment(
                    "gnsq_like.tools.supervisor.worker",
                    task,
                    PROMETHEUS_MULTIPROC_DIR=metrics_directory,
                    **_ONLY_OURS,
                ),
                pass_fds=(command_end, report_end),
                # Ctrl-C reaches the master alone; and its own children are killed with it.
                process_group=0,
            )
        except OSError:
            self.close()
            raise
        finally:
            os.close(command_end)
            os.close(report_end)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def how_it_ended(self) -> str:
        """In words; only for one that has ended."""
        if self.failure:
            return self.failure
        status = self.status
        if status is not None and status < 0:
            with suppress(ValueError):
                return f"it was killed by {signal.Signals(-status).name}"
        return f"it ended with status {status}"

    def read(self) -> list[dict[str, Any]]:
        """The reports that have come."""
        messages = self.reader.read()
        for message in messages:
            if message["is"] == "failed":
                self.failure = str(message["why"])
            elif message["is"] == "stopped":
                self.left = int(message["left"])
        return messages

    def dump_stacks(self) -> None:
        """Let it write its threads' stacks to stderr, even if it is blocked. Next: :meth:`kill`, a moment later."""
        if self.status is None:
            self._process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        """End it and its own children at once."""
        if self.status is None:
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.kill()

    def wait(self) -> None:
        """Wait for its end, and read its last reports."""
        self._process.wait()
        self.read()

    def close(self) -> None:
        """Close the pipes; a worker that still runs drains and ends."""
        self.commands.close()
        self.reader.close()


def memory_bytes(pid: int | str = "self") -> int:
    """The resident memory of a process; 0 where there is no /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
