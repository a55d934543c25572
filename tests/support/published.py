"""What clients have published: as it passed a FaultProxy, and as an nsqd has it."""

from __future__ import annotations

from gnsq_like import NsqdHTTPClient, Reader
from gnsq_like.testing import RunningNsqd
from tests.faults.tap import Commands, bodies_of


class Published:
    """The observer of a proxy before one nsqd: bodies in the order in which they pass."""

    def __init__(self) -> None:
        #: Of all connections; repetitions too.
        self.bodies: list[bytes] = []
        self._connections: dict[int, Commands] = {}

    def __call__(self, number: int, where: str, data: bytes) -> None:
        if where == "from client":
            for line, body in self._connections.setdefault(number, Commands()).feed(data):
                self.bodies += bodies_of(line, body)
        elif where == "client closed":
            self._connections.pop(number, None)


def all_of(nsqd: RunningNsqd, topic: str, count: int) -> list[bytes]:
    """The bodies that nsqd has of a topic, in the order of their arrival."""
    with NsqdHTTPClient(nsqd.http_address) as client:
        assert sum(each["message_count"] for each in client.stats(topic=topic)["topics"]) == count
    bodies: list[bytes] = []
    with Reader(topic, "tests#ephemeral", nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=1) as reader:
        for message in reader:
            bodies.append(message.body)
            message.finish()
            if len(bodies) == count:
                break
    return bodies
