"""A Reader on a simulated cluster, and how to steer it."""

from __future__ import annotations

import random

from gnsq_like.policy.backoff import Backoff, exponential
from gnsq_like.policy.rdy import Mode, Settings
from tests.support.simulation import Cluster, Connection, Reader
from tests.support.virtual_nsqd import Clock, Message, Nsqd

SOON = 0.05  # seconds: several round trips and settling times


class Scene:
    """A Reader on `nsqds` nsqds; handlers take `seconds` and do what `verdicts` says, "finish" when it is empty."""

    def __init__(
        self,
        nsqds: int,
        max_in_flight: int,
        *,
        seconds: float = 0.01,
        backoff: bool = False,
        adaptive: bool = False,
        settings: Settings | None = None,
        msg_timeout: float | None = None,
        seed: int = 1,
    ) -> None:
        self.clock = Clock()
        self.seconds = seconds
        self.seconds_of = random.Random(1).random
        self.verdicts: list[str] = []
        self.msg_timeout = msg_timeout
        self.backoff = Backoff(exponential(1.0), max_duration=120.0 if backoff else 0.0)
        self.reader = Reader(
            self.clock,
            random.Random(seed),
            max_in_flight=max_in_flight,
            handle=self._handle,
            adaptive=adaptive,
            settings=settings,
            backoff=self.backoff,
        )
        self.cluster = Cluster(self.reader)
        self.connections = [self.join() for _ in range(nsqds)]
        self.clock.run(SOON)

    def _handle(self, _message: Message) -> tuple[float, str]:
        return self.seconds, self.verdicts.pop(0) if self.verdicts else "finish"

    def join(self) -> Connection:
        nsqd = Nsqd(self.clock, f"n{len(self.cluster.nsqds)}", msg_timeout=self.msg_timeout)
        return self.cluster.add(nsqd)

    @property
    def rdys(self) -> list[int]:
        """RDY as the nsqds know it."""
        return [nsqd.rdy for nsqd in self.cluster.nsqds]

    @property
    def handled(self) -> int:
        return len(self.reader.log)

    def until(self, mode: Mode, limit: float = 10.0) -> None:
        end = self.clock.now + limit
        while self.backoff.mode is not mode:
            assert self.clock.now < end, f"never {mode}"
            self.clock.run(0.001)
