"""The command ``gnsq-like`` as processes: run to the end, with a terminal of a size, and with its own child processes.

Child processes, and whether they have ended, are read in /proc.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

#: Seconds for whatever must happen on a busy machine.
PATIENCE = 60.0

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")

# Runs `python -m gnsq_like` in a process where the module named first cannot be found.
_WITHOUT = """
import runpy
import sys

missing = sys.argv.pop(1)


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocker())
runpy.run_module("gnsq_like", run_name="__main__", alter_sys=True)
"""


def run_python(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python to its end. If it hangs, the limit of the test ends it."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def gnsq_like(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return run_python("-m", "gnsq_like", *arguments, cwd=cwd)


def gnsq_like_without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end where ``module`` cannot be found."""
    return run_python("-c", _WITHOUT, module, *arguments)


def open_terminal(columns: int, lines: int) -> tuple[int, int]:
    """The two ends of a terminal: ours, and the one for a process."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    return ours, theirs


def read_to_the_end(terminal: int) -> bytes:
    """All that processes have written to a terminal, whose own end must be closed everywhere, here too."""
    written = b""
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # no process has it open any more
            return written
        if not data:
            return written
        written += data


def terminal_environment(**changed: str) -> dict[str, str]:
    """An environment in which only the terminal itself says how large it is."""
    environment = {**os.environ, "TERM": "xterm", **changed}
    return {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}


def runs(pid: int) -> bool:
    """Whether a process exists that is not a zombie."""
    stat = _stat(pid)
    return stat is not None and stat[0] not in "ZX"


def daemons_of(pid: int) -> dict[str, int]:
    """The pids of a command's daemons by name and node id: "nsqlookupd", "nsqd 1", ..."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        stat = _stat(int(path.name))
        if stat is not None and stat[1] == pid:
            command = (path / "cmdline").read_text().split("\0")
            number = "".join(word.removeprefix("--node-id=") for word in command if word.startswith("--node-id="))
            found[f"{command[3]} {number}".strip()] = int(path.name)
    return found


def _stat(pid: int) -> tuple[str, int] | None:
    """State and parent of a process; None if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1])
