"""Which of several destinations is next: NSQ's modes round-robin, hostpool and epsilon-greedy, with time passed in.

- **round-robin**: one after the other, regardless of failures
- **hostpool**: one after the other, but one that failed is left out for 30 s, and for twice as long each time it fails
  when it is tried again, up to 15 minutes; if all are left out, all are tried again
- **epsilon-greedy**: as hostpool, but mostly the fastest, and now and then another, to learn how fast it is

The last two prefer hosts with the fewest unanswered requests. A host that does not answer then gets its share of the
requests in progress, and no more; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

from gnsq_like.errors import InvalidOption
from gnsq_like.runtime.native import draw

Mode = Literal["round-robin", "hostpool", "epsilon-greedy"]
MODES: tuple[str, ...] = get_args(Mode)

#: Seconds for which a host is left out: after its first failure, and at most.
FIRST_REST, LONGEST_REST = 30.0, 900.0
#: The share of requests that go to another host than the fastest.
_EXPLORATION = 0.1
#: The weight of a new time in the average of a host.
_WEIGHT = 0.2


@dataclass
class _Host:
    address: str
    #: When it may be tried again; None while it is well.
    retry_at: float | None = None
    #: Seconds for which it is left out now.
    rest: float = FIRST_REST
    #: Average seconds of a request; None before the first.
    seconds: float | None = None
    #: Requests without an answer.
    unanswered: int = 0

    def expected(self) -> tuple[float, int]:
        """The expected time of a further request, for comparison; a host that was never tried is preferred."""
        if self.seconds is None:
            return (inf if self.unanswered else 0.0), self.unanswered
        return self.seconds * (1 + self.unanswered), self.unanswered


class HostPool:
    """Chooses. Every :meth:`get` is to be followed by :meth:`succeeded`, :meth:`failed` or :meth:`abandoned`.

    :param draw: returns a random number from 0 to 1
    :raises InvalidOption: for an unknown mode
    """

    def __init__(self, addresses: Sequence[str], mode: str = "hostpool", draw: Callable[[], float] = draw) -> None:
        if mode not in MODES:
            raise InvalidOption("mode", mode, f"it must be one of {', '.join(MODES)}")
        self._hosts = [_Host(address) for address in dict.fromkeys(addresses)]
        self._mode = mode
        self._draw = draw
        self._next = 0

    def get(self, now: float) -> str:
        """The next destination. Never switches."""
        host = self._next_host(now)
        host.unanswered += 1
        return host.address

    def _next_host(self, now: float) -> _Host:
        if self._mode == "round-robin":
            return self._in_turn(self._hosts)
        well = [host for host in self._hosts if host.retry_at is None]
        resting = [host for host in self._hosts if host.retry_at is not None and host.retry_at <= now]
        if not well and not resting:
            for host in self._hosts:
                host.retry_at = None
            well = self._hosts
        for host in resting:
            # One request tries it; if that fails, it rests for longer.
            host.rest = min(2 * host.rest, LONGEST_REST)
            host.retry_at = now + host.rest
            return host
        if self._mode == "epsilon-greedy" and self._draw() >= _EXPLORATION:
            return min(well, key=_Host.expected)
        fewest = min(host.unanswered for host in well)
        return self._in_turn([host for host in well if host.unanswered == fewest])

    def _in_turn(self, hosts: list[_Host]) -> _Host:
        self._next += 1
        return hosts[self._next % len(hosts)]

    def succeeded(self, address: str, seconds: float) -> None:
        """A request succeeded after this time. Never switches."""
        host = self._answered(address)
        host.retry_at, host.rest = None, FIRST_REST
        host.seconds = seconds if host.seconds is None else host.seconds + _WEIGHT * (seconds - host.seconds)

    def failed(self, address: str, now: float) -> None:
        """A request failed. Never switches."""
        host = self._answered(address)
        if host.retry_at is None:
            host.rest = FIRST_REST
            host.retry_at = now + host.rest

    def abandoned(self, address: str) -> None:
        """A request was abandoned, without a result. Never switches."""
        self._answered(address)

    def _answered(self, address: str) -> _Host:
        host = next(host for host in self._hosts if host.address == address)
        host.unanswered -= 1
        return host
