"""Fuzzing with atheris: ``python -m tests.fuzz --runs 1000000 frames session``; all targets, if none is named.

Coverage guides the choice of inputs. An input that fails is written to the current directory, as ``NAME-crash-...``;
put it into ``tests/fuzz/corpus/NAME``, where ``test_targets.py`` tries it from then on.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import subprocess
import sys
import tempfile
from typing import Any

#: Seconds for one input, and MiB for the process: what hangs, or grows, fails.
_TIMEOUT = 20
_MEMORY = 1024


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Random input, guided by coverage.")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs for each target (default: 1,000,000)")
    parser.add_argument("--seconds", type=int, default=0, help="at most, for each target (default: no limit)")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        _fuzz(given.here, given.runs, given.seconds)
    from tests.fuzz.streams import SCRATCH
    from tests.fuzz.targets import TARGETS

    if unknown := set(given.targets) - TARGETS.keys():
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    failed = []
    for name in given.targets or TARGETS:
        print(f"== {name}", flush=True)
        limits = [f"--runs={given.runs}", f"--seconds={given.seconds}"]
        # libFuzzer ends its process at once: what that leaves behind is removed here.
        with tempfile.TemporaryDirectory(prefix="gnsq_like-fuzz-", dir=SCRATCH) as scratch:
            command = [sys.executable, "-m", "tests.fuzz", f"--here={name}", *limits]
            if subprocess.run(command, env={**os.environ, "TMPDIR": scratch}).returncode:
                failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "nothing failed")
    return 1 if failed else 0


def _fuzz(name: str, runs: int, seconds: int) -> None:
    """Does not return."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["gnsq_like"]):
        from tests.fuzz.targets import CORPUS, TARGETS
    logging.disable(logging.WARNING)  # nearly every input causes some; errors reach the targets' own handlers
    logging.getLogger().addHandler(logging.NullHandler())
    flags = [
        f"-runs={runs}",
        f"-max_total_time={seconds}",
        f"-timeout={_TIMEOUT}",
        f"-rss_limit_mb={_MEMORY}",
        f"-artifact_prefix={name}-",
        "-max_len=4096",
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    atheris.Setup([sys.argv[0], *flags, tempfile.mkdtemp(), str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
