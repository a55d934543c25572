"""A home of Spark whose Pythons import pyspark from its package, and not from ``python/lib/pyspark.zip``.

Spark puts that file first on the path of every Python that it starts, about eight a session. Python keeps no compiled
form of a module from a zip file, so each of them compiles pyspark again: 1.4 s of CPU time. Without the zip file they
import the installed package, if they run this same Python; Python ignores path entries that do not exist.

:func:`can_replace` says whether that is so; ``session`` sets SPARK_HOME to the home that :func:`make_home` makes.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

#: The parts of its home that Spark reads on one machine, besides the Python packages.
_PARTS = ("bin", "conf", "jars", "sbin")


def make_home(directory: Path) -> str:
    """Make a home of Spark from the installed pyspark, in an empty directory or one with such a home.

    :returns: the directory, for SPARK_HOME
    """
    package = _package("pyspark")
    assert package is not None
    directory.mkdir(parents=True, exist_ok=True)
    for name in _PARTS:
        if (package / name).exists():
            with suppress(FileExistsError):
                (directory / name).symlink_to(package / name)
    return str(directory)


def can_replace(environ: Mapping[str, str], executable: str = sys.executable) -> bool:
    """Whether Spark's Pythons find the same pyspark without Spark's own home.

    They do not if they are another Python, if another Spark was chosen, or if this process has found pyspark where only
    it looks.

    :param environ: the variables that Spark will have
    :param executable: this Python
    """
    package, py4j = _package("pyspark"), _package("py4j")
    if "SPARK_HOME" in environ or package is None or py4j is None:
        return False
    # For tasks; and for planning, where the first one counts that is set.
    chosen = environ.get("PYSPARK_PYTHON"), environ.get("PYSPARK_DRIVER_PYTHON", executable)
    if set(chosen) != {executable}:
        return False
    if not (package / "bin" / "spark-submit").exists() or (package / "spark-distribution").exists():
        return False  # a Spark whose home is elsewhere
    if Path(environ.get("SPARK_CONF_DIR", package / "conf"), "spark-env.sh").exists():
        return False  # it may choose anything
    known = {*site.getsitepackages(), sysconfig.get_path("purelib"), *environ.get("PYTHONPATH", "").split(os.pathsep)}
    if site.ENABLE_USER_SITE:
        known.add(site.getusersitepackages())
    return {str(package.parent), str(py4j.parent)} <= known


def _package(name: str) -> Path | None:
    spec = find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None
