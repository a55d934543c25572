"""Runs modes in processes of their own, in rounds that are interleaved (A B C A B C ...)."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

from _consumers import start_script
from _modes import PEERS, Mode
from _nsqd import Nsqd
from _publishers import Done

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
#: Seconds for one run; slower clients count as broken.
_RUN_LIMIT = 300.0
#: About how many messages of a topic nsqd keeps in memory while it is filled.
MEM_QUEUE_SIZE = 10_000_000


class Failed(Exception):
    """A client did not do its run."""


def python_of(client: str) -> str:
    """The Python that runs a client; a peer's environment is made at first use."""
    if client not in PEERS:
        return sys.executable
    home = ROOT / ".venv" / "bench" / client
    stamp = home / " ".join(PEERS[client])
    if not stamp.exists():
        print(f"installing {client}", file=sys.stderr)
        venv.create(home, clear=True, with_pip=True)
        subprocess.run([home / "bin" / "pip", "install", "--quiet", "--quiet", *PEERS[client]], check=True)
        stamp.touch()
    return str(home / "bin" / "python")


def run(mode: Mode, nsqd: Nsqd, topic: str, seconds: float, count: int, tree: Path = ROOT) -> Done:
    """One run of a mode with the gnsq_like of ``tree``; ``topic`` is a new one, for a consumer.

    A full channel gets some more messages than are counted, so that no client waits for the timeout of nsqd's output
    buffer at its end; at a rate, as many come as are counted in ``seconds``.
    """
    arguments: list[object] = ["--seconds", seconds]
    if mode.publish is None:
        nsqd.make_topic(topic)
        if mode.rate:
            count = int(mode.rate * seconds)
        else:
            nsqd.fill(topic, [b"x" * mode.size] * (count + 10_000))
        arguments = ["--topic", topic, "--count", count]
    child = start_script(
        python_of(mode.client), HERE / "_modes.py", mode.name, nsqd.tcp_address, *arguments, tree=tree, stderr=True
    )
    started = [child]
    try:
        if mode.rate:
            nsqd.wait_for_consumer(topic)
            # Two more seconds than are counted: the first message comes before the count begins.
            publish = ["--publish", nsqd.tcp_address, topic, mode.rate, count + int(2 * mode.rate)]
            started.append(start_script(sys.executable, HERE / "latency.py", *publish))
        answer, errors = child.communicate(timeout=_RUN_LIMIT)
    except subprocess.TimeoutExpired:
        answer, errors = b"", b"not done in time"
    finally:
        for process in started:
            process.kill()
            process.communicate()
        if mode.publish is None:
            nsqd.delete_topic(topic)
    if not answer.strip():
        raise Failed(f"{mode.name}: {errors.decode(errors='replace')[-500:]}")
    return Done(*json.loads(answer.splitlines()[-1]))
