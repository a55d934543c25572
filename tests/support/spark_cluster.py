"""A Spark cluster of processes for tests: a standalone master with workers; and a Python without gnsq_like.

::

    with standalone(tmp_path, workers=2) as master:          # "spark://127.0.0.1:41234"
        ...
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.support.daemons import wait_for
from tests.support.spark_sessions import environment

#: The modules that Spark's Python needs beside gnsq_like, and the modules that those need.
_NEEDED = ["gevent", "greenlet", "zope", "requests", "urllib3", "idna", "certifi", "charset_normalizer", "snappy"]
_NEEDED += ["cramjam", "pyarrow", "pyspark", "py4j"]


def make_bare_python(directory: Path) -> str:
    """Make a Python with everything that gnsq_like needs on an executor, and without gnsq_like; returns its path."""
    venv.create(directory, with_pip=False, symlinks=True)
    [packages] = directory.glob("lib/python*/site-packages")
    for name in _NEEDED:
        spec = find_spec(name)
        if spec is None:
            continue
        source = Path(str(next(iter(spec.submodule_search_locations or [str(spec.origin)]))))
        if source.parent != packages and not (packages / source.name).exists():
            (packages / source.name).symlink_to(source)
    return str(directory / "bin" / "python")


@contextmanager
def standalone(directory: Path, workers: int) -> Iterator[str]:
    """Run a master and workers with one core each; yields the master's URL."""
    with ExitStack() as stack:
        log = stack.enter_context(_daemon(directory, "master.Master", "--webui-port", "0"))
        pattern = re.compile(r"Starting Spark master at (spark://\S+)\n")
        wait_for(lambda: pattern.search(log.read_text()), "Spark's master", 120)
        [master] = pattern.findall(log.read_text())
        for number in range(workers):
            place = directory / f"worker{number}"
            place.mkdir()
            options = ["--webui-port", "0", "-c", "1", "-m", "1g", "-d", str(place / "work"), master]
            stack.enter_context(_daemon(place, "worker.Worker", *options))
        wait_for(lambda: log.read_text().count("Registering worker") == workers, "Spark's workers", 120)
        yield master


@contextmanager
def _daemon(directory: Path, name: str, *options: str) -> Iterator[Path]:
    """Run one of Spark's daemons; yields its log."""
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    log = directory / f"{name}.log"
    environ = {**os.environ, **environment(), "SPARK_HOME": str(program.parents[1]), "PYTHONPATH": ""}
    with open(log, "w") as output:
        process = subprocess.Popen(
            [str(program), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--port", "0", *options],
            cwd=directory,
            env=environ,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # executors are in the worker's session, too
        process.wait()
