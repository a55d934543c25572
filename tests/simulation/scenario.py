"""What a seed means: the cluster, the options of its programs, the network, and the faults with their times.

All of it is drawn before the run begins, each fault from a generator of its own: so a run can be repeated with fewer
faults, or for a shorter time, and the rest stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

#: Seconds of a phase with faults, and of a quiet one, in which everything must come right.
_FAULTY = (8.0, 20.0, 45.0)
_QUIET = (12.0, 25.0, 60.0)

#: The kinds of faults, by their weights.
KINDS = {
    "cut": 5,
    "cut after bytes": 3,
    "half-open": 3,
    "partition": 3,
    "stand still": 4,
    "busy": 3,
    "restart nsqd": 2,
    "kill nsqd": 2,
    "crash nsqd": 1,
    "disk": 2,
    "nsqlookupd": 2,
    "lie": 2,
    "port": 2,
    "clock": 2,
    "slow network": 1,
    "round trip": 2,
    "dns": 1,
    "steer": 4,
    "stop reader": 2,
    "change producer": 1,
    "delete topic": 2,
    "pause channel": 1,
}


@dataclass(frozen=True)
class Fault:
    """One fault."""

    number: int
    at: float
    kind: str
    #: Of its own generator.
    seed: str


@dataclass
class Scenario:
    """One run.

    :param seed: the seed
    :param seconds: virtual seconds for which publishing and faults go on
    :param only: the numbers of the faults that happen; None for all
    """

    seed: int
    seconds: float
    only: frozenset[int] | None = None
    #: What is drawn.
    options: dict[str, Any] = field(default_factory=dict)
    phases: list[tuple[float, bool]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        random = Random(f"{self.seed} scenario")
        self.options = _draw_options(random)
        self._draw_phases(Random(f"{self.seed} phases"))

    def _draw_phases(self, random: Random) -> None:
        kinds, weights = list(KINDS), list(KINDS.values())
        at, number = 3.0, 0
        while at < self.seconds:
            end = min(at + random.choice(_FAULTY), self.seconds)
            self.phases.append((at, True))
            while (at := at + random.expovariate(1 / 3)) < end:
                kind = random.choices(kinds, weights)[0]
                if self.only is None or number in self.only:
                    self.faults.append(Fault(number, at, kind, f"{self.seed} fault {number}"))
                number += 1
            self.phases.append((end, False))
            at = end + random.choice(_QUIET)

    @property
    def has_constant_latency(self) -> bool:
        """Whether every segment takes the same time, so that the window must hold strictly."""
        return not self.options["jitter"] and not self.options["fragment"] and not self.options["bandwidth"]


def _draw_options(random: Random) -> dict[str, Any]:
    draw = random.choice
    nsqds = draw([1, 2, 3, 5])
    several = random.random() < 0.3
    return {
        "latency": draw([50e-6, 50e-6, 0.001, 0.02, 0.2]),
        "jitter": draw([0, 0, 0.01, 0.3]),
        "fragment": draw([0, 0, 0.1, 0.5]),
        "bandwidth": draw([0, 0, 0, 200_000]),
        "nsqds": nsqds,
        "nsqlookupds": draw([0, 0, 1, 2, 3]),
        "readers": draw([1, 2, 3]),
        "producers": draw([1, 1, 2]),
        "topics": ["t", "u", "v"][: draw([2, 3])] if several else ["t"],
        "pattern": several and random.random() < 0.4,
        "mem_queue_size": draw([0, 0, 5, 50, 10000]),
        "data_path": random.random() < 0.7,
        "sync_every": draw([1, 10, 2500]),
        "max_bytes_per_file": draw([200, 2000, 10**8]),
        "msg_timeout": draw([2.0, 5.0, 20.0]),
        "standing_still": draw([0.1, 1.0, 5.0, 30.0]),
        "rate": draw([0.05, 0.2, 0.5, 2.0]),
        "replicas": 2 if nsqds > 1 and random.random() < 0.2 else 1,
        "deduplicate": random.random() < 0.2,
        "compression": draw([None, None, None, "deflate", "snappy"]),
    }
