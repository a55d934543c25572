"""Which faults happen when: drawn from a seed, and the same for the same seed.

Every target (an nsqd, the way to it, the nsqlookupd, the one that lies, a client) has faults one after the other, with
pauses; those of different targets overlap as they like. The kinds of each sort of target are dealt like cards from
shuffled packs, so that even a short schedule has every kind.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

#: For each sort of target, its kinds of faults, and the most seconds that each lasts; 0 for those of a moment.
KINDS: dict[str, dict[str, float]] = {
    "nsqd": {
        "kill": 1.5,  # SIGKILL; started again at the end
        "restart": 1.0,  # SIGTERM; started again at the end
        "stop": 4.0,  # SIGSTOP, then SIGCONT
        "full disk": 2.0,
        "no descriptors": 2.0,
    },
    "link": {
        "delay": 3.0,
        "slow": 3.0,
        "mute": 4.0,  # nothing passes, in both directions or in one
        "refuse": 2.0,  # new connections are closed
        "cut": 0.0,
        "reset": 0.0,
        "resets": 2.0,  # again and again
        "cut inside": 2.0,  # at a byte, in the middle of frames
        "reset inside": 2.0,
        "garble": 2.0,  # the first byte that nsqd sends on the next connection
        "lose server": 0.0,  # half-open
        "lose client": 0.0,
    },
    "lookupd": {"kill": 2.0, "mute": 3.0, "refuse": 2.0, "clock": 3.0},
    "liar": {"wrong": 3.0, "empty": 3.0, "garbage": 2.0, "huge": 2.0, "mute": 3.0, "error": 2.0},
    "client": {
        "kill": 1.0,  # SIGKILL; another one starts at the end
        "stop": 4.0,
        "no descriptors": 2.0,
        "fork": 0.0,
    },
}

#: What NSQ's own daemons cannot be put through: Go ends a process that goes beyond RLIMIT_FSIZE, nsqd says OK to
#: messages that it cannot write where descriptors are exhausted, and its nsqlookupd has no clock to move.
OURS_ONLY = {("nsqd", "full disk"), ("nsqd", "no descriptors"), ("lookupd", "clock")}

#: Mean seconds of the pauses between two faults of a target.
PAUSES = {"nsqd": 5.0, "link": 2.5, "lookupd": 5.0, "liar": 3.0, "client": 8.0}
#: The least part of a fault's longest time that it lasts.
_LEAST = 0.1


@dataclass(frozen=True, order=True)
class Fault:
    """One fault, with the random numbers that it needs."""

    #: Seconds from the start.
    at: float
    sort: str
    #: Which target of its sort, from 0.
    target: int
    kind: str
    #: Seconds; 0 for a moment.
    lasts: float
    #: From 0 to 1: how long a delay, at which byte, in which direction.
    draw: float

    @property
    def ends_at(self) -> float:
        return self.at + self.lasts


def make_schedule(seed: int, seconds: float, counts: dict[str, int], nsq: str = "ours") -> list[Fault]:
    """The faults of a run, in their order.

    :param seconds: every fault is over by then
    :param counts: how many targets there are of each sort
    :param nsq: "ours" or "real"
    """
    faults: list[Fault] = []
    for sort, kinds in KINDS.items():
        draw = random.Random(f"{seed} {sort}")
        pack = _deal(draw, [kind for kind in kinds if nsq == "ours" or (sort, kind) not in OURS_ONLY])
        # Always the target that is free first.
        free = [(draw.expovariate(1 / PAUSES[sort]), target) for target in range(counts[sort])]
        while free:
            at, target = min(free)
            kind = next(pack)
            lasts = kinds[kind] * draw.uniform(_LEAST, 1)
            free.remove((at, target))
            if at + lasts <= seconds:
                faults.append(Fault(at, sort, target, kind, lasts, draw.random()))
                free.append((at + lasts + draw.expovariate(1 / PAUSES[sort]), target))
    return sorted(faults)


def _deal(draw: random.Random, kinds: list[str]) -> Iterator[str]:
    while True:
        yield from draw.sample(kinds, len(kinds))
