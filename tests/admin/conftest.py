"""The clusters in front of which the admin is tested."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import raw
from tests.support.daemons import KINDS, Kind, Running, has_topology, running_nsqd, running_nsqlookupd, wait_for


@dataclass
class Daemons:
    """Two nsqlookupds and three nsqds that are registered with both, each in a zone of its own if they know zones."""

    kind: Kind
    lookupds: list[Running]
    nsqds: list[Running]

    @property
    def lookupd_addresses(self) -> tuple[str, ...]:
        return tuple(each.http_address for each in self.lookupds)

    @property
    def nsqd_addresses(self) -> tuple[str, ...]:
        return tuple(each.http_address for each in self.nsqds)

    def wait_until_known(self, topic: str, count: int, channels: int = 0) -> None:
        """Wait until every nsqlookupd knows this many nsqds of the topic, and channels of it."""

        def known() -> bool:
            for address in self.lookupd_addresses:
                answer = raw.get(address, f"/lookup?topic={topic.replace('#', '%23')}").json()
                if len(answer.get("producers", ())) != count or len(answer["channels"]) < channels:
                    return False
            return True

        wait_for(known, f"{count} nsqds of {topic}")


def start(stack: ExitStack, kind: Kind, nsqds: int = 3) -> Daemons:
    lookupds = [stack.enter_context(running_nsqlookupd(kind, tombstone_lifetime=600.0)) for _ in range(2)]
    addresses = [each.tcp_address for each in lookupds]
    found = [
        stack.enter_context(
            running_nsqd(
                kind,
                node_id=number,
                lookupd_tcp_addresses=addresses,
                broadcast_address="127.0.0.1",
                e2e_processing_latency_percentiles=(0.99, 0.5),
                **(_place(number) if has_topology(kind) else {}),
            )
        )
        for number in range(1, nsqds + 1)
    ]

    def registered() -> bool:
        return all(len(raw.get(each.http_address, "/nodes").json()["producers"]) == nsqds for each in lookupds)

    wait_for(registered, "all nsqds to be registered")
    return Daemons(kind, lookupds, found)


def _place(number: int) -> dict[str, Any]:
    experiments = ["topology-aware-consumption"]
    return {"topology_region": "eu", "topology_zone": f"eu-{number}", "enable_experiment": experiments}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture
def daemons(kind: Kind) -> Iterator[Daemons]:
    """Ours, and the real ones."""
    with ExitStack() as stack:
        yield start(stack, kind)


@pytest.fixture
def ours() -> Iterator[Daemons]:
    """Ours only."""
    with ExitStack() as stack:
        yield start(stack, "ours", nsqds=2)
