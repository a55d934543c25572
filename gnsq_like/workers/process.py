"""Shared by master and workers: starting processes, the pipes between them, and the log.

A worker is started by exec and connected to the master by two pipes, one for commands and one for reports, each message
a line of JSON. Their ends also show deaths: a worker whose commands end has lost its master. Writing never blocks: the
master must not wait for a worker, nor a worker's hub for a master that is stopped.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from gnsq_like.errors import NSQError
from gnsq_like.workers.plan import Plan

#: Variables for the master itself: a worker must not speak to systemd in its place.
_ONLY_OURS = {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "", "WATCHDOG_PID": ""}
_BOOT = str(Path(__file__).with_name("boot.py"))
#: Largest backlog of a pipe that is not read; further messages are dropped.
_MAX_BACKLOG = 1 << 20
_READ_BYTES = 65536
#: The name of the supervisor in the log.
MASTER = "master"
#: Level names of commands.
LEVELS = ("debug", "info", "warning", "error")


# -- starting -------------------------------------------------------------------------------------


def command(label: str) -> list[str]:
    """The command line of a process of a supervisor; ``ps`` shows the label. See :func:`environment`."""
    return [sys.executable, "-P", _BOOT, label]


def environment(module: str, plan: Plan, task: Mapping[str, Any], **more: str) -> dict[str, str]:
    """Our environment, with the task for a process that calls ``main(task)`` of this module.

    :param more: variables to add; an empty value removes one
    """
    paths = [path or os.getcwd() for path in [*filter(None, [plan.app_dir]), *sys.path]]
    whole = {"sys_path": paths, "patch": False, "module": module, "plan": plan.to_json(), **task}
    changed = {**os.environ, "GNSQ_LIKE_TASK": json.dumps(whole), **more}
    return {name: value for name, value in changed.items() if value or name not in more}


def supervise(plan: Plan) -> NoReturn:
    """Run a supervisor in place of this process, which keeps its process id and its terminal.

    For commands that have loaded an application, and with it gevent, threads and connections, which the master should
    not have. Its exit statuses are those of ``Supervisor.run``, and 2 after one line on stderr if it cannot run.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    task = environment("gnsq_like.workers.master", plan, {})
    os.execve(sys.executable, command(plan.label), task)


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
        reports, report_end = os.pipe()
        os.set_blocking(reports, False)
        self.commands = LineWriter(ours)
        self.reports = LineReader(reports)
        task = {"number": number, "patch": plan.patch, "commands": command_end, "reports": report_end}
        more = {"PROMETHEUS_MULTIPROC_DIR": metrics_directory, **_ONLY_OURS}
        try:
            self._process = subprocess.Popen(
                command(f"worker {number}: {plan.label}"),
                stdin=subprocess.DEVNULL,
                env=environment("gnsq_like.workers.worker", plan, task, **more),
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
        status = self.status or 0
        if status < 0 and not self.failure:
            with suppress(ValueError):
                return f"it was killed by {signal.Signals(-status).name}"
        return self.failure or f"it ended with status {status}"

    def read(self) -> list[dict[str, Any]]:
        """The reports that have come."""
        messages = self.reports.read()
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
        self.reports.close()


# -- the pipes ------------------------------------------------------------------------------------


class _End:
    """An end of a pipe; closes it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def close(self) -> None:
        """Close the descriptor; twice is fine."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class LineReader(_End):
    """The reading end of a pipe."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        #: Whether the other end is closed.
        self.is_over = False
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """The messages that have come, maybe none. Blocks if the descriptor does.

        Other lines are ignored: a worker's code may write to any descriptor.
        """
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.is_over = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages = list(_messages(lines))
        # There may be more, and the last read of a process's reports must return them.
        return messages + self.read() if len(data) == _READ_BYTES else messages


def _messages(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        with suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict) and isinstance(message.get("is"), str):
                yield message


class LineWriter(_End):
    """The writing end of a pipe."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._backlog = bytearray()
        os.set_blocking(descriptor, False)

    @property
    def is_behind(self) -> bool:
        """Whether messages wait to be written."""
        return bool(self._backlog)

    def send(self, kind: str, **content: Any) -> None:
        """Send a message, or keep it for :meth:`flush` if the pipe is full. Never blocks, never raises."""
        if len(self._backlog) < _MAX_BACKLOG:
            self._backlog += json.dumps({"is": kind, **content}).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Write as much of the backlog as the pipe takes."""
        try:
            while self._backlog:
                del self._backlog[: os.write(self.descriptor, self._backlog)]
        except BlockingIOError:
            pass
        except OSError:  # the other side has gone, which is noticed elsewhere
            self._backlog.clear()


# -- the log --------------------------------------------------------------------------------------


def make_formatter(who: str, *, as_json: bool) -> logging.Formatter:
    """A formatter for one process.

    :param who: its name, as "worker 1"
    :raises NSQError: when the package for JSON is not installed
    """
    if not as_json:
        return _TextFormatter(who, on_terminal=sys.stderr.isatty())
    try:
        from pythonjsonlogger.json import JsonFormatter
    except ModuleNotFoundError as exc:
        raise NSQError("python-json-logger is not installed: install the extra [cli]") from exc
    return JsonFormatter(
        "{levelname}{name}{process}{message}",
        style="{",
        rename_fields={"levelname": "level", "name": "logger", "process": "pid"},
        static_fields={"worker": who},
        timestamp="time",
    )


class _TextFormatter(logging.Formatter):
    """Lines for people: time, level, process, logger, text; on a terminal without the date."""

    def __init__(self, who: str, *, on_terminal: bool) -> None:
        line = f"%(asctime)s %(levelname)-7s {who:<9} %(message)s"
        super().__init__(line, "%H:%M:%S" if on_terminal else None)
        # The master writes only its own lines, so the logger need not be shown.
        self._unnamed = ("gnsq_like.",) if on_terminal or who == MASTER else ()

    def formatMessage(self, record: logging.LogRecord) -> str:
        if not record.name.startswith(self._unnamed):
            record.message = f"{record.name}: {record.message}"
        return super().formatMessage(record)


def configure(formatter: logging.Formatter, level: str) -> None:
    """Log to stderr from now on. Modules that configure logging afterwards may replace this."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def memory_bytes(pid: int | str = "self") -> int:
    """The resident memory of a process; 0 where there is no /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
