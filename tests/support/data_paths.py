"""An nsqd on a data path that outlasts it, and what its tests ask of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import Kind, Running, running_nsqd, wait_for
from tests.support.raw import Client, Message, channel_stats, post

REAL = pytest.param("real", marks=pytest.mark.real_nsqd)
#: An nsqd that can be killed.
PROCESSES = ["process", REAL]


@contextmanager
def nsqd_at(path: Path, kind: Kind, **options: Any) -> Iterator[Running]:
    """An nsqd on a data path that outlasts it, which is stopped properly."""
    with running_nsqd(kind, data_path=str(path), **options) as running:
        yield running
        running.stop()


def bodies(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def take(client: Client, count: int) -> list[Message]:
    """Receive and finish this many messages."""
    messages = []
    for _ in range(count):
        messages.append(client.message())
        client.send(b"FIN %b\n" % messages[-1].id)
    return messages


def consume(nsqd: Running, count: int, topic: str = "t", channel: str = "c") -> list[Message]:
    """Receive and finish this many messages over a new connection."""
    with Client(nsqd.tcp_address) as client:
        client.subscribe(topic, channel, rdy=min(count, 2000))
        messages = take(client, count)
        wait_for(lambda: channel_stats(nsqd.http_address, topic, channel)["in_flight_count"] == 0)
    return messages


def make_channel(nsqd: Running, topic: str = "t", channel: str = "c") -> None:
    assert post(nsqd.http_address, f"/topic/create?topic={topic}").status == 200
    assert post(nsqd.http_address, f"/channel/create?topic={topic}&channel={channel}").status == 200


def data_files(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if "diskqueue" in each.name and "meta" not in each.name)
