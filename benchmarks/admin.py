"""What the admin costs in CPU time: 500 topics with 4 channels each on 20 nsqds, and viewers.

    PYTHONPATH=. python benchmarks/admin.py [--seconds 60] [--viewers 3]

The nsqds are stubs in this process, and the admin is a process of its own. Each viewer asks for the page of topics
every five seconds, as its script does, and sends the ETag that it has. The figures: a page that is ready, for a viewer
who has none (ms of the admin's CPU time, over 100 of them); the part of a core that the admin uses with these viewers,
of which polls may be 3.5 %; and how often it asked the nsqds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import gevent
from _processes import cpu_of

from gnsq_like.admin.web.rendering import EVERY
from tests.support.large_cluster import NODES, admin_of, stub_nsqds, topics_page
from tests.support.web import Server

_PAGES = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which viewers look (default: %(default)s)")
    parser.add_argument("--viewers", type=int, default=3, help="(default: %(default)s)")
    given = parser.parse_args()
    if not Path("/proc/self/stat").exists():
        sys.exit("admin.py: CPU time of another process is read from /proc, which is not here")
    with (
        stub_nsqds() as stubs,
        tempfile.TemporaryDirectory() as directory,
        admin_of(stubs, Path(directory)) as server,
    ):
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
    answer = topics_page(server, etag)
    if answer.status not in (200, 304):
        sys.exit(f"admin.py: the admin answers {answer.status}: {answer.body[:200]!r}")
    return answer.headers["etag"]


def cpu_seconds(server: Server) -> float:
    """CPU time that the admin has used."""
    used = cpu_of(server.process.pid)
    if used is None:
        sys.exit(f"admin.py: the admin has ended: {server.log}")
    return used


if __name__ == "__main__":
    main()
