"""The messages that clients publish through a FaultProxy, in the order in which they pass."""

from __future__ import annotations

from tests.faults.tap import Commands, bodies_of


class Published:
    """The observer of a proxy before one nsqd."""

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
