"""A Spark Connect server as a process, and a Python with what its clients need.

::

    python = connect_python()
    with connect_server(tmp_path, python) as remote:         # "sc://127.0.0.1:41234"
        ...

The server finds the format by itself, as where gnsq_like is installed.

Those packages have an environment of their own, ``.venv/connect``, made at first use: one is pandas, and pyarrow
imports it wherever it is installed, which takes half a second in each of Spark's processes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnsq_like.testing.kinds import reserve
from tests.support.daemons import wait_for
from tests.support.spark_sessions import CONF, ROOT, environment


def connect_python() -> str:
    """A Python with the packages of ``pyspark[pipelines]``, and all of this one's; returns its path."""
    import pyspark

    requirement = f"pyspark[pipelines]=={pyspark.__version__}"
    home = ROOT / ".venv" / "connect"
    stamp = home / f"installed {requirement}"
    python = str(home / "bin" / "python")
    with open(home.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests in other processes need it at the same time
        if not stamp.exists():
            venv.create(home, clear=True, with_pip=False, symlinks=True)
            [packages] = home.glob("lib/python*/site-packages")
            (packages / "shared.pth").write_text(f"{Path(pyspark.__file__).parents[1]}\n")
            command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
            command.append(requirement)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"
            stamp.touch()
    return python


def connect_environment(python: str, python_path: str = str(ROOT)) -> dict[str, str]:
    """The variables for a server and its clients."""
    return {**environment(python, python_path), "PYSPARK_DRIVER_PYTHON": python}


@contextmanager
def connect_server(directory: Path, python: str) -> Iterator[str]:
    """Run a server in a directory, which gets its tables; yields its address for clients."""
    import pyspark

    address, reserved = reserve()
    port = reserved.getsockname()[1]
    settings = {**CONF, "spark.connect.grpc.binding.port": str(port)}
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    installed = directory / "installed"
    installed.mkdir()
    shutil.copy(ROOT / "gnsq_like" / "spark" / "found_by_spark" / "pyspark_nsq.py", installed)
    log = directory / "server.log"
    with open(log, "w") as output:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            cwd=directory,
            env={**os.environ, **connect_environment(python, f"{ROOT}{os.pathsep}{installed}")},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def listens() -> bool:
        assert process.poll() is None, log.read_text()[-10_000:]
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(listens, "Spark's Connect server", float("inf"))  # the limit is the test's
        yield f"sc://{address}"
    finally:
        reserved.close()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
