"""The clients of a run: what each does, and its processes, one after the other where one is killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gevent

from tests.faults.client import Spec
from tests.faults.resources import peak_memory
from tests.faults.schedule import Fault
from tests.faults.stage import Stage
from tests.support.processes import no_descriptors, stopped
from tests.support.scripts import ROOT

#: Clients' numbers are this far apart.
_NUMBERS = 1_000_000_000
#: Seconds for a client to end.
END_TIMEOUT = 180.0

#: What the clients of a run do, in turn: the way they wait, options of their Producers, options of their Readers, and
#: the most messages of a batch.
WAYS: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("hub", {}, {}, 1),
    ("threads", {"retry_unknown": True}, {"max_backoff_duration": 0}, 1),
    ("patched", {"batching": True}, {"spawn": "thread", "max_backoff_duration": 0}, 1),
    ("hub", {"own_thread": False, "replicas": 2}, {"adaptive_rdy": False}, 1),
    ("patched", {}, {}, 10),
]

_CONNECTION = {"heartbeat_interval": 1.0, "connect_timeout": 2.0, "write_timeout": 2.0}
_DISCOVERY = {"lookupd_poll_interval": 1.0, "lookupd_timeout": 1.5}


def make_spec(seed: int, index: int, life: int, stage: Stage, msg_timeout: float) -> Spec:
    """What a client does; ``life`` counts those that were killed before it, from 0."""
    way, producer, reader, batch = WAYS[index % len(WAYS)]
    name = f"c{index}.{life}"
    draw = random.Random(f"{seed} {name}")
    known = [link.address for link in stage.links]
    return Spec(
        name=name,
        seed=f"{seed} {name}",
        way=way,
        first=(index * 1000 + life) * _NUMBERS,
        notes=str(stage.directory / f"{name}.notes"),
        lookupds=stage.lookupd_http_addresses,
        nsqds=known if "replicas" in producer or draw.random() < 0.5 else [],
        rate=40.0,
        publishers=draw.choice([1, 5, 20, 100]),
        producer=_CONNECTION | _DISCOVERY | {"max_redial_delay": 0.5} | producer,
        reader=_CONNECTION
        | _DISCOVERY
        | {
            "max_in_flight": draw.choice([1, 2, 5, 20, 100]) if index else 50,
            "msg_timeout": msg_timeout,
            "max_attempts": 0,
            "default_requeue_delay": 0.1,
            "max_requeue_delay": 0.5,
            "max_redial_delay": 0.5,
            "low_rdy_idle_timeout": 2.0,
            "low_rdy_timeout": 3.0,
            "backoff_multiplier": 0.02,
            "max_backoff_duration": 0.5,
        }
        | reader,
        batch=batch,
        hang=1.5 * msg_timeout,
    )


class Actor:
    """One client, which is started again after it was killed."""

    def __init__(self, seed: int, index: int, stage: Stage, msg_timeout: float) -> None:
        self._seed = seed
        self._index = index
        self._stage = stage
        self._msg_timeout = msg_timeout
        self._process: subprocess.Popen[bytes] | None = None
        #: Of all its processes.
        self.specs: list[Spec] = []
        #: What went wrong.
        self.errors: list[str] = []
        self.peak_mib = 0.0

    @property
    def spec(self) -> Spec:
        """Of the present process."""
        return self.specs[-1]

    def start(self) -> Spec:
        """Start a process."""
        spec = make_spec(self._seed, self._index, len(self.specs), self._stage, self._msg_timeout)
        self.specs.append(spec)
        with self._path("out").open("wb") as out, self._path("log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.client", spec.dumps()],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=log,
                bufsize=0,
            )
        return spec

    def _path(self, suffix: str) -> Path:
        return self._stage.directory / f"{self.spec.name}.{suffix}"

    @property
    def is_working(self) -> bool:
        """Whether it publishes and reads.

        :raises RuntimeError: if it has ended
        """
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.spec.name} ended with {self._process.returncode}: {self.log}")
        return b"running" in self._path("out").read_bytes()

    def has_said(self, word: str) -> bool:
        """Whether its present process has written this; or has ended, which :meth:`command` notes."""
        assert self._process is not None
        return self._process.poll() is not None or word.encode() in self._path("out").read_bytes()

    @property
    def log(self) -> str:
        """What its present process wrote to stderr."""
        return self._path("log").read_text(errors="replace")

    def command(self, word: str) -> None:
        """Tell it something; see ``client``."""
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(f"{word}\n".encode())
        except BrokenPipeError:
            self.errors.append(f"{self.spec.name} ended with {self._process.poll()}: {self.log[-2000:]}")

    def do(self, fault: Fault) -> Spec | None:
        """Do a fault to it; returns what a new process does. Switches."""
        process = self._process
        assert process is not None
        if process.poll() is not None:
            self.errors.append(f"{self.spec.name} ended with {process.returncode}: {self.log[-2000:]}")
            return self.start()
        self.peak_mib = max(self.peak_mib, peak_memory(process.pid))
        if fault.kind == "kill":
            process.kill()
            process.wait()
            process.stdin.close()  # type: ignore[union-attr]
            gevent.sleep(fault.lasts)
            return self.start()
        # Python itself cannot start without descriptors.
        while not self.is_working:
            gevent.sleep(0.1)
        if fault.kind == "fork":
            # It is over before the next fault: libev cannot go on in a child that has no descriptors.
            count = self._path("out").read_bytes().count(b"forked")
            self.command("fork")
            while self._path("out").read_bytes().count(b"forked") == count and process.poll() is None:
                gevent.sleep(0.05)
        else:
            with (stopped if fault.kind == "stop" else no_descriptors)(process.pid):
                gevent.sleep(fault.lasts)
        return None

    def end(self) -> None:
        """Wait for its end. Switches."""
        process = self._process
        assert process is not None
        self.peak_mib = max(self.peak_mib, peak_memory(process.pid))
        self.command("stop")
        with gevent.Timeout(END_TIMEOUT, False):
            while process.poll() is None:
                gevent.sleep(0.05)
        if process.poll() is None:
            process.send_signal(signal.SIGABRT)
            process.wait()
            self.errors.append(f"{self.spec.name} did not end: {self.log[-5000:]}")
        elif process.returncode:
            self.errors.append(f"{self.spec.name} ended with {process.returncode}: {self.log[-5000:]}")
        process.stdin.close()  # type: ignore[union-attr]

    def kill(self) -> None:
        """End it at once; fine if it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
