"""The cost of TLS, snappy and deflate, and the memory for a hundred megabytes through each of them.

    python benchmarks/upgrades.py [--size 100] [--megabytes 100] [--rounds 3] [--nsqd PATH]

An nsqd with a certificate is started on free loopback ports. For each way of connecting a process publishes
that many megabytes from a hundred greenlets, each waiting for nsqd's OK, then another consumes them with a
handler that counts. Bodies are lines of text of ``--size`` bytes that compress to about a third. The ways
take turns within a round; the table shows medians. "memory" is the rise of the process's peak from before it
connected: a few MiB at most, whatever the amount of data. Bytes on the wire are not measured here.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trustme
from _consumers import start_script
from _nsqd import CHANNEL, Nsqd, running_nsqd

GREENLETS = 100
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tls": {"tls_v1": True},
    "snappy": {"snappy": True},
    "deflate 1": {"deflate": True, "deflate_level": 1},
    "deflate 6": {"deflate": True, "deflate_level": 6},
    "tls, snappy": {"tls_v1": True, "snappy": True},
    "tls, deflate 6": {"tls_v1": True, "deflate": True, "deflate_level": 6},
}
_WORDS = [bytes(random.Random(0).choices(b"abcdefghijklmnopqrstuvwxyz", k=n)) for n in range(3, 12) for _ in range(40)]


def body_of(size: int, seed: int) -> bytes:
    words = random.Random(seed).choices(_WORDS, k=size // 4 + 1)
    return b" ".join(words)[:size].ljust(size, b".")


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def publish(address: str, topic: str, size: int, count: int, options: dict[str, Any]) -> tuple[float, int]:
    """Seconds, and the bytes by which the peak of memory rose."""
    import gevent

    from gnsq_like import Producer

    bodies = [body_of(size, seed) for seed in range(200)]
    producer = Producer(address, own_thread=False, **options)
    producer.publish(topic, bodies[0])  # connects
    before = peak_bytes()
    left = count - 1

    def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            producer.publish(topic, bodies[left % len(bodies)])

    started = time.monotonic()
    gevent.joinall([gevent.spawn(work) for _ in range(GREENLETS)], raise_error=True)
    return time.monotonic() - started, peak_bytes() - before


def consume(address: str, topic: str, size: int, count: int, options: dict[str, Any]) -> tuple[float, int]:
    """The same, from the first message to the last."""
    from gnsq_like import Reader

    left = count
    started = 0.0
    before = 0

    def handler(message: Any) -> None:
        nonlocal left, started, before
        if left == count:
            started, before = time.monotonic(), peak_bytes()
        assert len(message.body) == size
        left -= 1
        if not left:
            reader.stop()

    reader = Reader(topic, CHANNEL, handler, nsqd_tcp_addresses=address, max_in_flight=200, **options)
    reader.run()
    return time.monotonic() - started, peak_bytes() - before


def measure(nsqd: Nsqd, what: str, topic: str, size: int, count: int, options: dict[str, Any]) -> tuple[float, int]:
    child = start_script(
        sys.executable, __file__, "--run", what, nsqd.tcp_address, topic, json.dumps(options), "--size", size,
        "--count", count,
    )  # fmt: skip
    try:
        answer, _ = child.communicate(timeout=600)
    finally:
        child.kill()
        child.wait()
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, what)
    seconds, memory = json.loads(answer)
    return count / seconds, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nsqd", default="nsqd", help="the nsqd to start (default: the one on PATH)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--megabytes", type=float, default=100, help="of bodies, for each way (default: %(default)s)")
    parser.add_argument("--size", type=int, default=10_000, help="bytes of a body (default: %(default)s)")
    parser.add_argument("--count", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        what, address, topic, options = given.run
        work = publish if what == "publish" else consume
        print(json.dumps(work(address, topic, given.size, given.count, json.loads(options))))
        return
    count = int(given.megabytes * 1_000_000 / given.size)
    found: dict[str, list[tuple[float, int, float, int]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as directory:
        authority = trustme.CA()
        ca_file, certificate = str(Path(directory, "ca.pem")), str(Path(directory, "nsqd.pem"))
        authority.cert_pem.write_to_path(ca_file)
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
        with running_nsqd(given.nsqd, 2 * count, f"--tls-cert={certificate}", f"--tls-key={certificate}") as nsqd:
            for number in range(given.rounds):
                for position, (way, options) in enumerate(WAYS.items()):
                    topic = f"upgrades-{number}-{position}"
                    if "tls_v1" in options:
                        options = {**options, "tls_root_ca_file": ca_file}
                    nsqd.make_topic(topic)
                    sent = measure(nsqd, "publish", topic, given.size, count, options)
                    found[way].append((*sent, *measure(nsqd, "consume", topic, given.size, count, options)))
                    nsqd.delete_topic(topic)
    print(f"{count} bodies of {given.size} bytes, medians of {given.rounds} rounds; MiB: the most of them")
    print(f"{'':<16}{'published/s':>12}{'MB/s':>8}{'MiB':>6}{'consumed/s':>14}{'MB/s':>8}{'MiB':>6}")
    for way, rounds in found.items():
        line = f"{way:<16}"
        for at, width in ((0, 12), (2, 14)):
            rate = statistics.median(each[at] for each in rounds)
            memory = max(each[at + 1] for each in rounds) / 2**20
            line += f"{rate:>{width},.0f}{rate * given.size / 1e6:>8.0f}{memory:>6.1f}"
        print(line)


if __name__ == "__main__":
    main()
