"""The cost of TLS, snappy and deflate, and the memory for a hundred megabytes through each of them.

    python benchmarks/upgrades.py [--size 100] [--megabytes 100] [--rounds 3] [--nsqd PATH]

An nsqd with a certificate is started on free loopback ports. For each way of connecting a process publishes
that many megabytes from a hundred greenlets, each waiting for nsqd's OK, then two others consume as many: a Reader
with a handler that counts, and a bare loop with the same codec (no Message, no flow control, no checks of its input).
Bodies are lines of text of ``--size`` bytes that compress to about a third. The ways take turns within a round; the
table shows medians. "us" is the consumer's CPU time for each message; "bare" that of the bare loop by the Reader's.
"MiB" is the rise of the process's peak from before it connected: a few at most, whatever the amount of data. Bytes on
the wire are not measured here.
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
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import trustme
from _consumers import cut, start_script
from _nsqd import CHANNEL, Nsqd, running_nsqd

GREENLETS = 100
MAX_IN_FLIGHT = 2000
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


class Done(NamedTuple):
    """What a run took: seconds, those of CPU, and the bytes by which the peak of memory rose."""

    seconds: float
    cpu: float
    memory: int


class Run:
    """A run that has begun."""

    def __init__(self) -> None:
        self._began, self._cpu, self._peak = time.monotonic(), time.process_time(), peak_bytes()

    def done(self) -> Done:
        return Done(time.monotonic() - self._began, time.process_time() - self._cpu, peak_bytes() - self._peak)


def publish(address: str, topic: str, size: int, count: int, options: dict[str, Any]) -> Done:
    """From the first answer to the last."""
    import gevent

    from gnsq_like import Producer

    bodies = [body_of(size, seed) for seed in range(200)]
    producer = Producer(address, own_thread=False, **options)
    producer.publish(topic, bodies[0])  # connects
    run = Run()
    left = count - 1

    def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            producer.publish(topic, bodies[left % len(bodies)])

    gevent.joinall([gevent.spawn(work) for _ in range(GREENLETS)], raise_error=True)
    return run.done()


def consume(address: str, topic: str, size: int, count: int, options: dict[str, Any]) -> Done:
    """From the first message to the last."""
    from gnsq_like import Reader

    left = count
    run = Run()
    done: list[Done] = []

    def handler(message: Any) -> None:
        nonlocal left, run
        if left == count:
            run = Run()
        assert len(message.body) == size
        left -= 1
        if not left:
            done.append(run.done())
            reader.stop()

    reader = Reader(topic, CHANNEL, handler, nsqd_tcp_addresses=address, max_in_flight=MAX_IN_FLIGHT, **options)
    reader.run()
    return done[0]


def skip_frame(sock: Any) -> None:
    """No more than that: what follows may be encoded."""
    left = 4
    size = b""
    while left:
        data = sock.recv(left)
        left -= len(data)
        if len(size) < 4 and len(size := size + data) == 4:
            left = int.from_bytes(size, "big")


def consume_bare(address: str, topic: str, size: int, count: int, options: dict[str, Any]) -> Done:
    """The minimum with gevent: receive, decode, cut, call, one write with the FINs of what was received."""
    from gevent import socket, ssl

    host, _, port = address.rpartition(":")
    sock: Any = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    asked = {name: value for name, value in options.items() if name != "tls_root_ca_file"}
    fields = {"feature_negotiation": True, "output_buffer_size": 65536, "output_buffer_timeout": 25, **asked}
    body = json.dumps(fields).encode()
    sock.sendall(b"  V2IDENTIFY\n" + len(body).to_bytes(4, "big") + body)
    skip_frame(sock)
    encode: Callable[[bytes], bytes] = bytes
    decode: Callable[[bytes], bytes] = bytes
    if "tls_v1" in options:
        sock = ssl.create_default_context(cafile=options["tls_root_ca_file"]).wrap_socket(sock, server_hostname=host)
        skip_frame(sock)
    if "snappy" in options:
        import snappy

        encode, decode = snappy.StreamCompressor().compress, snappy.StreamDecompressor().decompress
    if "deflate" in options:
        packer = zlib.compressobj(options["deflate_level"], zlib.DEFLATED, -zlib.MAX_WBITS)

        def deflate(data: bytes) -> bytes:
            return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)

        encode, decode = deflate, zlib.decompressobj(-zlib.MAX_WBITS).decompress

    if "snappy" in options or "deflate" in options:
        while not decode(sock.recv(65536)):
            pass

    left = count
    run: Run | None = None

    def note(body: bytes) -> None:
        nonlocal left, run
        run = run or Run()
        assert len(body) == size
        left -= 1

    sock.sendall(encode(b"SUB %b %b\nRDY %d\n" % (topic.encode(), CHANNEL.encode(), MAX_IN_FLIGHT)))
    rest = b""
    while left > 0:
        rest, answers = cut(rest + decode(sock.recv(65536)), note)
        if answers:
            sock.sendall(encode(b"".join(answers)))
    assert run is not None
    return run.done()


RUNS = {"publish": publish, "consume": consume, "bare": consume_bare}


def measure(nsqd: Nsqd, what: str, topic: str, size: int, count: int, options: dict[str, Any]) -> Done:
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
    return Done(*json.loads(answer))


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
        print(json.dumps(RUNS[what](address, topic, given.size, given.count, json.loads(options))))
        return
    count = int(given.megabytes * 1_000_000 / given.size)
    found: dict[str, list[tuple[Done, Done, Done]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as directory:
        authority = trustme.CA()
        ca_file, certificate = str(Path(directory, "ca.pem")), str(Path(directory, "nsqd.pem"))
        authority.cert_pem.write_to_path(ca_file)
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
        with running_nsqd(given.nsqd, 4 * count, f"--tls-cert={certificate}", f"--tls-key={certificate}") as nsqd:
            for number in range(given.rounds):
                for position, (way, options) in enumerate(WAYS.items()):
                    topic = f"upgrades-{number}-{position}"
                    if "tls_v1" in options:
                        options = {**options, "tls_root_ca_file": ca_file}
                    nsqd.make_topic(topic)
                    sent = measure(nsqd, "publish", topic, given.size, count, options)
                    taken = measure(nsqd, "consume", topic, given.size, count, options)
                    nsqd.fill(topic, [body_of(given.size, seed) for seed in range(200)] * (count // 200 + 50))
                    found[way].append((sent, taken, measure(nsqd, "bare", topic, given.size, count, options)))
                    nsqd.delete_topic(topic)
    print(f"{count} bodies of {given.size} bytes, medians of {given.rounds} rounds; MiB: the most of them")
    head = f"{'published/s':>12}{'MB/s':>8}{'MiB':>6}{'consumed/s':>14}{'MB/s':>8}{'MiB':>6}{'us':>7}{'bare':>7}"
    print(f"{'':<16}{head}")
    for way, rounds in found.items():
        line = f"{way:<16}"
        for at, width in ((0, 12), (1, 14)):
            rate = statistics.median(count / each[at].seconds for each in rounds)
            memory = max(each[at].memory for each in rounds) / 2**20
            line += f"{rate:>{width},.0f}{rate * given.size / 1e6:>8.0f}{memory:>6.1f}"
        spent = statistics.median(taken.cpu for _, taken, _ in rounds) / count
        print(f"{line}{1e6 * spent:>7.2f}{statistics.median(bare.cpu / taken.cpu for _, taken, bare in rounds):>7.2f}")


if __name__ == "__main__":
    main()
