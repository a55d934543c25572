"""Few places among several nsqds, and a network that becomes slower, with real nsqds; docs/explanation/rdy.rst.

    python benchmarks/places.py --nsqd nsqd

Each line says what was found and what is wanted. ``tests/simulation/test_places.py`` has the same in virtual time, on
a machine that does nothing else; here the nsqds and the Reader share the cores of this one. Delays are those of
``FaultProxy``, which is a thread of this process.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import gevent
from _nsqd import CHANNEL, Nsqd, running_nsqd

from gnsq_like import Message, NsqdHTTPClient, Reader
from gnsq_like.testing import FaultProxy

_MEM_QUEUE_SIZE = 200_000
_TOPIC = "places"

#: Messages that were handled: when, from where, and how long after their publish.
Log = list[tuple[float, str, float]]


@contextmanager
def reading(addresses: list[str], places: int, seconds: float, adaptive: bool = True) -> Iterator[Log]:
    """A Reader whose handlers wait for so many seconds."""
    log: Log = []

    def handler(message: Message) -> None:
        began = time.time()
        gevent.sleep(seconds)
        log.append((time.monotonic(), message.nsqd_address, began - message.timestamp))

    with Reader(_TOPIC, CHANNEL, handler, nsqd_tcp_addresses=addresses, max_in_flight=places, adaptive_rdy=adaptive):
        yield log


def rate(log: Log, seconds: float) -> float:
    """Messages a second that are handled from now on."""
    before = len(log)
    gevent.sleep(seconds)
    return (len(log) - before) / seconds


def few(nsqds: list[Nsqd], lasts: float, places: int, seconds: float, every: float) -> str:
    """The places that are used from the second second on, and the longest wait of a message on the others."""
    clients = [NsqdHTTPClient(nsqd.http_address) for nsqd in nsqds]
    with reading([nsqd.tcp_address for nsqd in nsqds], places, seconds) as log:
        for client in clients:
            client.publish(_TOPIC, b"first")
        gevent.sleep(lasts / 2)
        busy, *others = clients
        for _ in range(12):
            busy.multi_publish(_TOPIC, [b"x"] * 1000)
        publishers = [gevent.spawn(_publish_each, client, every) for client in others if every]
        gevent.sleep(1.0)
        began = time.monotonic()
        used = rate(log, lasts) * seconds
        gevent.killall(publishers)
        gevent.sleep(3.0)
    longest = max([wait for at, address, wait in log if at > began and address != nsqds[0].tcp_address], default=0.0)
    for client in clients:
        client.delete_topic(_TOPIC)
        client.close()
    return f"{used:5.2f} of {places} places, longest wait {longest:.2f} s"


def _publish_each(client: NsqdHTTPClient, every: float) -> None:
    while True:
        gevent.sleep(random.expovariate(1 / every))
        client.publish(_TOPIC, b"rare")


def many(nsqds: list[Nsqd], lasts: float, places: int, seconds: float) -> str:
    """All of them have a backlog: the least and the most of the median, and the longest wait."""
    for nsqd in nsqds:
        nsqd.make_topic(_TOPIC)
        nsqd.fill(_TOPIC, [b"x"] * 3000)
    with reading([nsqd.tcp_address for nsqd in nsqds], places, seconds) as log:
        gevent.sleep(10.0)
        began = time.monotonic()
        gevent.sleep(2 * lasts)
    times = {nsqd.tcp_address: [began] for nsqd in nsqds}
    for at, address, _ in log:
        if at > began:
            times[address].append(at)
    counts = sorted(len(each) - 1 for each in times.values())
    median = counts[len(counts) // 2]
    gaps = [later - earlier for each in times.values() for earlier, later in zip(each, each[1:], strict=False)]
    return f"{counts[0] / median:.2f} to {counts[-1] / median:.2f} of the median, longest wait {max(gaps):.1f} s"


def slower(nsqds: list[Nsqd], lasts: float, round_trip: float, seconds: float) -> str:
    """A backlog, from 3 s after the change, beside RDY that is the share in the same network."""
    [nsqd], rates = nsqds, []
    for adaptive in (False, True):
        nsqd.make_topic(_TOPIC)
        nsqd.fill(_TOPIC, [b"x"] * 60_000)
        delay = round_trip / 2
        with (
            FaultProxy(nsqd.tcp_address, delay=0.00025 if adaptive else delay) as proxy,
            reading([proxy.address], 50, seconds, adaptive) as log,
        ):
            while not log:
                gevent.sleep(0.01)
            gevent.sleep(0.5 + 4 * delay)
            if adaptive:
                proxy.delay = delay
                gevent.sleep(3.0)
            rates.append(rate(log, lasts / 8))
        nsqd.delete_topic(_TOPIC)
    return f"{rates[1]:.0f} messages a second, {rates[1] / rates[0]:.2f} of adaptive_rdy=False"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nsqd", default="nsqd", help="the command of nsqd (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a line, about (default: %(default)g)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the lines whose name has this text")
    arguments = parser.parse_args()

    def show(count: int, name: str, wanted: str, measure: Callable[..., str], *how: float) -> None:
        if arguments.only in name:
            with ExitStack() as stack:
                nsqds = [stack.enter_context(running_nsqd(arguments.nsqd, _MEM_QUEUE_SIZE)) for _ in range(count)]
                print(f"{name}: {measure(nsqds, arguments.seconds, *how)}; wanted {wanted}", flush=True)

    for count, places, every, wanted in [
        (10, 3, 0, "2.4"),
        (10, 1, 0, "0.83"),
        (20, 5, 0, "3.8"),
        *((10, 3, every, "2.4, 1 s") for every in (25, 5, 1)),
        *((10, 1, every, "0.8, 2.5 s") for every in (25, 5, 1)),
    ]:
        rare = f", a message each {every} s on the others" if every else ""
        show(count, f"one of {count} nsqds busy, {places} places{rare}", wanted, few, places, 0.02, every)
    show(10, "one of 10 nsqds busy, 10 places, handlers of 50 ms", "8.5", few, 10, 0.05, 0)
    for round_trip, seconds in itertools.product((0.005, 0.05, 0.2), (0.005, 0.05)):
        name = f"0.5 ms, then {1000 * round_trip:g} ms, handlers of {1000 * seconds:g} ms"
        show(1, name, "0.85", slower, round_trip, seconds)
    show(100, "100 nsqds busy, 20 places", "0.8 to 1.2, 4.2 s", many, 20, 0.02)


if __name__ == "__main__":
    main()
