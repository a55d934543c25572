"""Programs of their own, for states that a test process cannot have: unpatched without greenlets, patched, forked."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gevent
from gevent import monkey

ROOT = Path(__file__).resolve().parent.parent.parent


#: Seconds after which a child ends that hangs: beyond the limit of a test, which says where that was.
_MOST_TIME = 150.0


#: The beginning of a program in which a signal handler raises; it has imported nothing that would be patched too late.
RAISING = """
import logging, os, random, signal, sys, traceback
from gnsq_like.errors import NSQError

logging.disable()
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # gevent reports what is raised in its hub
sys.excepthook = lambda *raised: traceback.print_exception(*raised, file=sys.stdout)

class Late(Exception):
    pass

def handler(*_):
    global raised
    if armed:
        raised += 1
        raise Late

signal.signal(signal.SIGALRM, handler)
armed = False
raised = 0
draw = random.Random(1).random

def interrupt(work, seconds):
    "Call work(), with an alarm within so many seconds that raises; returns whether work was interrupted or failed."
    global armed
    armed = True
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + seconds * draw())
        work()
        return False
    except (Late, NSQError):  # an exception in the hub is gevent's, and ends no publish
        return True
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
"""


def run_beside(command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """``subprocess.run`` while this thread's greenlets go on; text by default, and no exception for a bad status.

    Not gevent's subprocess: once a process has used that, the standard library's reads 0 for every child's status.
    """
    options = {"capture_output": True, "text": True, "timeout": _MOST_TIME, "check": False, **options}
    if monkey.is_module_patched("subprocess"):
        return subprocess.run(command, **options)
    done: subprocess.CompletedProcess[Any] = gevent.get_hub().threadpool.apply(subprocess.run, (command,), options)
    return done


def run_script(code: str, *arguments: str) -> list[str]:
    """The lines that the program prints; it must end with status 0 and write nothing to stderr."""
    # Python 3.12 and later warn of every fork beside threads, which is what some of these programs are for.
    flags = ["-W", "error::ResourceWarning", "-W", "ignore:This process:DeprecationWarning"]
    # Warnings in the log count as well, but for that of a busy machine: the hub was late.
    late = "logging.getLogger('gnsq_like.runtime.control_loop').setLevel('ERROR')"
    code = f"import logging\nlogging.basicConfig()\n{late}\n{textwrap.dedent(code)}"
    command = [sys.executable, *flags, "-c", code, *arguments]
    done = run_beside(command, cwd=ROOT)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == "", done.stderr
    return done.stdout.splitlines()
