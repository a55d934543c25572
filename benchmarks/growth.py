"""What more connections cost, and what a start costs: medians of interleaved rounds, in seconds of CPU.

    make bench BENCH=growth [BENCH_ARGS="--only plan"]

``start``: whole commands: an import of gnsq_like, and a first publish; gevent alone for comparison. Bytecode is there,
as after an installation, and what an editable one does at each start of Python (some 15 ms) is left out.

``plan``: an RDY plan for 1,000 connections, the dearest of five situations.

``idle``: a Reader with 1,000 connections on which nothing happens: resident memory beyond that of an empty process, and
the part of a core that it uses, with places for all of them, and for a fifth.

``few``: a Reader with many connections and few places, each connection with a topic of its own or three to a topic: the
part of a core that it uses while messages come at random, and how long these wait from publish to handler.

``nsqds``: consuming and publishing with 64 connections beside one, by the client's CPU time for each message, and by
the clock; "bare" is what the minimum with gevent and sockets pays for it: smaller reads and writes, and more of them.

Every figure is from a process of its own. There is one nsqd, the one on PATH or ``--nsqd``, and each connection uses
another address of it: all of 127.0.0.0/8 are this machine's. So the nsqd's side is the same with one and with 64.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random

import _consumers
import _publishers
from _nsqd import CHANNEL, Nsqd, connect, publish_command, running_nsqd
from _processes import resident

ROOT = Path(__file__).resolve().parent.parent
NSQDS = 64
#: (topics, connections of each, places, messages a second)
FEW = ((1000, 1, 50, 0.0), (1000, 1, 50, 18.0), (600, 1, 250, 50.0), (200, 3, 250, 50.0))
#: Greenlets that publish one message at a time.
PUBLISHERS = 100
MAX_IN_FLIGHT = 2500
#: For which the bare loop publishes.
BARE_SECONDS = 2.0
_BODY = b"x" * 100
_PATIENCE = 300.0

#: The limits of the project, by the figure's name: at most that, or at least where the number is negative.
LIMITS = {
    "import, ms": 60.0,
    "first publish, ms": 120.0,
    "plan, ms": 3.0,
    "idle, MB": 60.0,
    "idle, % of a core": 1.0,
    "consuming, 64 by 1": -0.8,
    "publishing, 64 by 1": -0.8,
}

COMMANDS = {
    "an empty command, ms": "pass",
    "gevent alone, ms": "import gevent.socket; gevent.get_hub()",
    "import, ms": "import gnsq_like",
    "first publish, ms": """
import sys
from gnsq_like import Producer
with Producer(sys.argv[1]) as producer:
    producer.publish("first", b"x")
""",
}


def addresses(nsqd_address: str, count: int) -> list[str]:
    """So many addresses of one nsqd, which listens on all of this machine's."""
    port = nsqd_address.rpartition(":")[2]
    return [f"127.1.{number // 250}.{number % 250 + 1}:{port}" for number in range(count)]


# --- what runs in processes of its own: each prints its figures as JSON


def plan_child(connections: str) -> dict[str, float]:
    """A Reader's usual cases; the dearest is the figure."""
    from gnsq_like.policy.level import Level
    from gnsq_like.policy.line import Line
    from gnsq_like.policy.places import Places, Settings

    dearest = 0.0
    for busy, max_in_flight in ((1000, 2500), (500, 2500), (100, 5000), (10, 200), (1, 1000)):
        places: Places[int] = Places(Settings())
        places.most = max_in_flight
        lines = [Line(number, Level(), 0.0) for number in range(int(connections))]
        for line in lines:
            places.opened(line)
        now = 0.0
        for _ in range(200):
            now += 0.01
            places.plan(now, {})
            for line in lines[:busy]:
                if line.rdy and not line.in_flight:
                    places.received(line, 1, now, 0.0)
        count = 50
        began = time.process_time()
        for _ in range(count):
            places.plan(now, {})
        dearest = max(dearest, (time.process_time() - began) / count)
    return {"plan, ms": 1000 * dearest}


def idle_child(address: str, connections: str, places: str, seconds: str) -> dict[str, float]:
    empty = resident(os.getpid())
    import gevent

    from gnsq_like import Reader

    with Reader(
        "idle",
        CHANNEL,
        lambda message: None,
        nsqd_tcp_addresses=addresses(address, int(connections)),
        max_in_flight=int(places),
    ) as reader:
        while len(reader.stats()["connections"]) < int(connections):
            gevent.sleep(0.1)
        gevent.sleep(float(seconds) / 2)  # until each had its first turn
        used, began = time.process_time(), time.monotonic()
        gevent.sleep(float(seconds))
        part = (time.process_time() - used) / (time.monotonic() - began)
        memory = resident(os.getpid()) - empty
    return {"MB": memory, "%": 100 * part}


def few_child(address: str, topics: str, each: str, places: str, seconds: str) -> dict[str, float]:
    import gevent

    from gnsq_like import Reader

    names = [f"few-{number}" for number in range(int(topics))]
    waits: list[float] = []
    with Reader(
        names,
        CHANNEL,
        lambda message: waits.append(time.monotonic() - float(message.body)),
        nsqd_tcp_addresses=addresses(address, int(each)),
        max_in_flight=int(places),
    ) as reader:
        while len(reader.stats()["connections"]) < int(topics) * int(each):
            gevent.sleep(0.1)
        gevent.sleep(float(seconds) / 2)  # until each had its first turn
        waits.clear()
        used, began = time.process_time(), time.monotonic()
        gevent.sleep(float(seconds))
        part = (time.process_time() - used) / (time.monotonic() - began)
    found = {"%": 100 * part}
    if waits:
        found |= {"p50, s": statistics.median(waits), "longest, s": max(waits)}
    return found


def publish_at_random_child(address: str, rate: str, topics: str) -> dict[str, float]:
    random, sock = Random(1), connect(address)
    while True:
        time.sleep(random.expovariate(float(rate)))
        sock.sendall(publish_command(f"few-{random.randrange(int(topics))}", repr(time.monotonic()).encode()))
        sock.recv(100)


class Meter:
    """Measures the messages after the first tenth."""

    def __init__(self, messages: str) -> None:
        from gevent.event import Event

        self._first, self._last = int(messages) // 10, int(messages)
        self._seen = 0
        self._cpu = self._clock = 0.0
        self.done = Event()

    def __call__(self, _message: object) -> None:
        self._seen += 1
        if self._seen == self._first:
            self._cpu, self._clock = time.process_time(), time.monotonic()
        elif self._seen == self._last:
            self._cpu, self._clock = time.process_time() - self._cpu, time.monotonic() - self._clock
            self.done.set()

    @property
    def figures(self) -> dict[str, float]:
        count = self._last - self._first
        return {"us": 1e6 * self._cpu / count, "rate": count / self._clock}


def consume_child(address: str, nsqds: str, topic: str, messages: str) -> dict[str, float]:
    from gnsq_like import Reader

    meter = Meter(messages)
    with Reader(topic, CHANNEL, meter, nsqd_tcp_addresses=addresses(address, int(nsqds)), max_in_flight=MAX_IN_FLIGHT):
        meter.done.wait()
    return meter.figures


def bare_consume_child(address: str, nsqds: str, topic: str, messages: str) -> dict[str, float]:
    import gevent

    meter = Meter(messages)
    share = MAX_IN_FLIGHT // int(nsqds)
    for each in addresses(address, int(nsqds)):
        gevent.spawn(_consumers.bare, each, topic, share, meter, 0.0)
    meter.done.wait()
    return meter.figures


def publish_child(address: str, nsqds: str, topic: str, messages: str) -> dict[str, float]:
    import gevent

    from gnsq_like import Producer

    with Producer(addresses(address, int(nsqds))) as producer:

        def publish(count: int) -> None:
            for _ in range(count):
                producer.publish(topic, _BODY)

        published = int(messages) // 4
        for count in (published // 10, published):
            cpu, clock = time.process_time(), time.monotonic()
            gevent.joinall([gevent.spawn(publish, count // PUBLISHERS) for _ in range(PUBLISHERS)], raise_error=True)
            cpu, clock = time.process_time() - cpu, time.monotonic() - clock
    return {"us": 1e6 * cpu / published, "rate": published / clock}


def bare_publish_child(address: str, nsqds: str, _topic: str, _messages: str) -> dict[str, float]:
    publishers = itertools.cycle([_publishers.greenlet_publisher(each) for each in addresses(address, int(nsqds))])
    done = _publishers.in_greenlets(lambda: next(publishers)(), PUBLISHERS, BARE_SECONDS)
    return {"us": 1e6 * done.cpu / done.messages, "rate": done.messages / done.seconds}


CHILDREN: dict[str, Callable[..., dict[str, float]]] = {
    "plan": plan_child,
    "idle": idle_child,
    "few": few_child,
    "publish at random": publish_at_random_child,
    "consume": consume_child,
    "publish": publish_child,
    "bare consume": bare_consume_child,
    "bare publish": bare_publish_child,
}


# --- the rounds


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _child(name: str, *arguments: object) -> dict[str, float]:
    words = [sys.executable, __file__, "--child", name, *map(str, arguments)]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, timeout=_PATIENCE, env=_environment())
    return dict(json.loads(done.stdout))


def _command(source: str, *arguments: str) -> float:
    """Milliseconds of CPU of a whole command."""
    words = [sys.executable, "-S", "-c", f"import site\n{source}", *arguments]
    path = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, timeout=_PATIENCE, env={**_environment(), "PYTHONPATH": path})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def start(nsqd: Nsqd, _name: str, _given: argparse.Namespace) -> Iterator[tuple[str, float]]:
    for name, source in COMMANDS.items():
        yield name, statistics.median(_command(source, nsqd.tcp_address) for _ in range(5))


def plan(_nsqd: Nsqd, _name: str, given: argparse.Namespace) -> Iterator[tuple[str, float]]:
    yield from _child("plan", given.connections).items()


def idle(nsqd: Nsqd, _name: str, given: argparse.Namespace) -> Iterator[tuple[str, float]]:
    found = _child("idle", nsqd.tcp_address, given.connections, 2 * given.connections, given.seconds)
    yield "idle, MB", found["MB"]
    yield "idle, % of a core", found["%"]
    few = _child("idle", nsqd.tcp_address, given.connections, given.connections // 5, given.seconds)
    yield "idle, a fifth, %", few["%"]


def few(nsqd: Nsqd, _name: str, given: argparse.Namespace) -> Iterator[tuple[str, float]]:
    for topics, each, places, rate in FEW:
        words = [sys.executable, __file__, "--child", "publish at random", nsqd.tcp_address, str(rate), str(topics)]
        with subprocess.Popen(words) if rate else nullcontext() as publisher:
            found = _child("few", nsqd.tcp_address, topics, each, places, given.seconds)
            if publisher is not None:
                publisher.kill()
        for name, value in found.items():
            yield f"{topics * each} on {places}, {rate:g}/s: {name}", value
        for number in range(topics):
            nsqd.delete_topic(f"few-{number}")


def nsqds(nsqd: Nsqd, name: str, given: argparse.Namespace) -> Iterator[tuple[str, float]]:
    for what, kind in (
        *(("consuming", "consume"), ("bare consuming", "bare consume")),
        *(("publishing", "publish"), ("bare publishing", "bare publish")),
    ):
        spent, rates = {}, {}
        for count in (1, NSQDS):
            topic = f"{name}-{kind}-{count}".replace(" ", "-")
            nsqd.make_topic(topic)
            if kind.endswith("consume"):
                nsqd.fill(topic, [_BODY] * (given.messages + 10_000))
            found = _child(kind, nsqd.tcp_address, count, topic, given.messages)
            nsqd.delete_topic(topic)
            spent[count], rates[count] = found["us"], found["rate"]
            yield f"{what}, {count}, us", spent[count]
        yield f"{what}, {NSQDS} by 1", spent[1] / spent[NSQDS]
        yield f"{what}, by the clock", rates[NSQDS] / rates[1]


PARTS = {"start": start, "plan": plan, "idle": idle, "few": few, "nsqds": nsqds}


def table(figures: dict[str, list[float]]) -> str:
    lines = [f"{'':<31}{'median':>10}{'least':>10}{'most':>10}{'limit':>10}"]
    for name, values in figures.items():
        limit = LIMITS.get(name)
        lines.append(
            f"{name:<31}{statistics.median(values):>10.3g}{min(values):>10.3g}{max(values):>10.3g}"
            + ("" if limit is None else f"{abs(limit):>10g}")
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nsqd", default="nsqd", help="the nsqd to start (default: the one on PATH)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which a Reader is idle (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=1000, help="idle ones (default: %(default)s)")
    parser.add_argument("--messages", type=int, default=200_000, help="of a consuming run (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=PARTS, help="may be repeated")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * given.connections)), hard))
    if given.child:
        print(json.dumps(CHILDREN[given.child[0]](*given.child[1:])))
        return
    figures: dict[str, list[float]] = {}
    with running_nsqd(given.nsqd, 2 * given.messages + 100_000, "--tcp-address=0.0.0.0:0") as started:
        nsqd = Nsqd(addresses(started.tcp_address, 1)[0], started.http_address, started.pid)
        for number in range(given.rounds):
            for part in given.only or PARTS:
                for name, value in PARTS[part](nsqd, f"growth-{number}", given):
                    figures.setdefault(name, []).append(value)
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
    print(table(figures))


if __name__ == "__main__":
    main()
