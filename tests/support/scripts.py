"""Programs of their own, for what a test process cannot be: unpatched and without greenlets, patched, or forked."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from gevent import subprocess

ROOT = Path(__file__).resolve().parent.parent.parent


def run_script(code: str, *arguments: str, timeout: float = 60) -> list[str]:
    """The lines that the program prints; it must end well and say nothing on stderr."""
    # Python 3.12 and later warn of every fork beside threads; what is tested here is that ours bear it.
    flags = ["-W", "error::ResourceWarning", "-W", "ignore:This process:DeprecationWarning"]
    done = subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == "", done.stderr
    return done.stdout.splitlines()
