"""What the admin costs in CPU time: 500 topics with 4 channels each on 20 nsqds, and viewers.

    PYTHONPATH=. python benchmarks/admin.py [--seconds 60] [--viewers 3]

The nsqds are stubs in this process, and the admin is a process of its own. Each viewer asks for the page of topics
every five seconds, as its script does, and sends the ETag that it has. The figures: a page that is ready, for a viewer
who has none (ms of the admin's CPU time, over 100 of them); the part of a core that the admin uses with these viewers,
of which polls may be 3.5 %; and how often it asked the nsqds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import gevent

from tests.support import raw
from tests.support.large_cluster import NODES, stub_nsqds
from tests.support.web import Server, running

#: Seconds between two requests of a viewer.
EVERY = 5.0
_PAGES = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which viewers look (default: %(default)s)")
    parser.add_argument("--viewers", type=int, default=3, help="(default: %(default)s)")
    given = parser.parse_args()
    if not Path("/proc/self/stat").exists():
        sys.exit("admin.py: CPU time of another process is read from /proc, which is not here")
    with stub_nsqds() as stubs, tempfile.TemporaryDirectory() as directory:
        flags = [f"--nsqd-http-address={stub.address}" for stub in stubs]
        command = ["-m", "gnsq_like", "admin", "--http-address=127.0.0.1:0", *flags]
        with running(command, Path(directory), r"HTTP: listening on 127\.0\.0\.1:(\d+)") as server:
            page(server)
            used = cpu_seconds(server)
            for _ in range(_PAGES):
                page(server)
            print(f"{(cpu_seconds(server) - used) / _PAGES * 1000:.1f} ms of CPU a page")

            polls = sum(stub.asked for stub in stubs)
            used, begun, etags = cpu_seconds(server), time.monotonic(), [""] * given.viewers
            while (now := time.monotonic()) < begun + given.seconds:
                etags = [page(server, etag) for etag in etags]
                gevent.sleep(max(0.0, min(now + EVERY, begun + given.seconds) - time.monotonic()))
            share = (cpu_seconds(server) - used) / (time.monotonic() - begun)
            polls = (sum(stub.asked for stub in stubs) - polls) // NODES
            print(f"{share:.1%} of a core with {given.viewers} viewers, {polls} polls in {given.seconds:.0f} s")


def page(server: Server, etag: str = "") -> str:
    """Get the page of topics, unless it is this one, and return its ETag."""
    address = f"127.0.0.1:{server.port}"
    answer = raw.http(address, "GET", "/topics", Accept_Encoding="gzip", If_None_Match=etag or '"none"')
    if answer.status not in (200, 304):
        sys.exit(f"admin.py: the admin answers {answer.status}: {answer.body[:200]!r}")
    return answer.headers["etag"]


def cpu_seconds(server: Server) -> float:
    """CPU time that a server's process has used."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
