"""What a process holds: descriptors, threads, greenlets, objects of gnsq_like, memory."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from greenlet import greenlet

#: How many more of each a client may hold in the end than in the beginning: hubs keep threads for DNS.
ALLOWED = {"descriptors": 0, "threads": 10, "greenlets": 0}


def kept(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What a process holds more than it should."""
    found = [
        f"{after[name]} {name}, {before[name]} before"
        for name, allowed in ALLOWED.items()
        if after[name] > before[name] + allowed
    ]
    grown = Counter(after["objects"]) - Counter(before["objects"])
    return found + [f"{count} more {name}" for name, count in grown.items()]


def own_resources() -> dict[str, Any]:
    """Those of this process."""
    for _ in range(3):
        gc.collect()
    things = gc.get_objects()
    names = [f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in things]
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "greenlets": sum(isinstance(thing, greenlet) and not thing.dead for thing in things),
        "objects": Counter(name for name in names if name.startswith("gnsq_like.")),
        "peak_mib": peak_memory(os.getpid()),
    }


def peak_memory(pid: int) -> float:
    """MiB, since the process began; 0 for one that has ended."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def time_waited(pid: int) -> float:
    """Seconds in which its threads could have run, and others ran; 0 for a process that has ended.

    All threads: NSQ's own nsqd, in Go, does nothing in its first one.
    """
    waited = 0
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):  # it has ended
                waited += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1])
    return waited / 1e9


def sockets(pid: int) -> list[str]:
    """The open sockets of a process: for TCP the two ports, in hexadecimal, and the state's number."""
    tcp = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *rest = line.split()
        tcp[f"socket:[{rest[5]}]"] = f"{local.partition(':')[2]} {remote.partition(':')[2]} {state}"
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:"):
            found.append(tcp.get(target, target))
    return found
