"""Takes docs/_static/admin.png: a page of the admin, in front of a cluster that has worked for some minutes.

Run it in a checkout, with Debian's chromium: python benchmarks/admin_picture.py [--minutes 6]
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import gevent
from PIL import Image

from gnsq_like import Message, Producer, Reader
from gnsq_like.admin import AdminOptions, AdminServer
from gnsq_like.testing import RunningNsqd, RunningNsqlookupd, running_nsqd, running_nsqlookupd

PICTURE = Path(__file__).resolve().parents[1] / "docs/_static/admin.png"
SIZE = (1200, 530)
#: Colours of the picture; so few keep it small, and nobody sees it.
COLOURS = 48
#: A second, and the seconds that a handler takes, by topic and channel.
TRAFFIC = {"clicks": 200, "logins": 30, "orders": 60, "signups": 8}
CONSUMERS = {
    ("clicks", "archive"): 0.002,
    ("clicks", "count"): 0.001,
    ("logins", "audit"): 0.005,
    ("orders", "mail"): 0.06,
    ("orders", "archive"): 0.001,
    ("signups", "mail"): 0.01,
}


@contextmanager
def working(lookupd: RunningNsqlookupd, nsqds: list[RunningNsqd]) -> Iterator[None]:
    """Traffic whose rates go up and down; orders sometimes come faster than they are mailed."""
    producer = Producer([nsqd.tcp_address for nsqd in nsqds])

    def publish(topic: str, rate: float) -> None:
        moment = random.uniform(0, 100)
        while True:
            gevent.sleep(0.1)
            moment += 0.1
            now = rate * (1 + 0.3 * math.sin(moment / 15) + 0.1 * math.sin(moment / 4))
            producer.multi_publish(topic, [b'{"page": "/home"}'] * max(1, round(now / 10)))

    def reader(topic: str, channel: str, seconds: float) -> Reader:
        def handle(message: Message) -> None:
            gevent.sleep(seconds)

        return Reader(topic, channel, handle, lookupd_http_addresses=lookupd.http_address, max_in_flight=3)

    readers = [reader(topic, channel, seconds) for (topic, channel), seconds in CONSUMERS.items()]
    for nsqd in nsqds:
        for topic, channel in CONSUMERS:
            nsqd.create_channel(topic, channel)
    publishing = [gevent.spawn(publish, topic, rate) for topic, rate in TRAFFIC.items()]
    for each in readers:
        each.start()
    try:
        yield
    finally:
        gevent.killall(publishing)
        for each in readers:
            each.stop()
        producer.close()


def take(url: str, into: Path) -> None:
    flags = ["--headless=new", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update"]
    with TemporaryDirectory() as profile:
        subprocess.run(
            [
                *("chromium", *flags, *(["--no-sandbox"] if os.geteuid() == 0 else [])),
                *(f"--user-data-dir={profile}", f"--screenshot={into}", f"--window-size={SIZE[0]},{SIZE[1]}", url),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--page", default="/")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        lookupd = stack.enter_context(running_nsqlookupd(kind="process"))
        nsqds = [
            stack.enter_context(running_nsqd(kind="process", lookupd_tcp_addresses=[lookupd.tcp_address]))
            for _ in range(3)
        ]
        options = AdminOptions(lookupd_http_addresses=(lookupd.http_address,), http_address="127.0.0.1:0")
        admin = stack.enter_context(AdminServer(options))
        stack.enter_context(working(lookupd, nsqds))
        gevent.sleep(60 * arguments.minutes)
        with TemporaryDirectory() as directory:
            whole = Path(directory, "admin.png")
            gevent.get_hub().threadpool.apply(take, (f"http://{admin.http_address}{arguments.page}", whole))
            Image.open(whole).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    print(PICTURE, PICTURE.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
