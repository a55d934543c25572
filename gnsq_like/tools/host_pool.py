"""Which of several destinations is next: NSQ's modes round-robin, hostpool and epsilon-greedy, with time passed in.

- **round-robin**: one after the other, whatever happens
- **hostpool**: one after the other, but one that failed is left out for 30 s, and for twice as long each time it fails
  when it is tried again, up to 15 minutes; if all are left out, all are tried again
- **epsilon-greedy**: as hostpool, but mostly the fastest, and now and then another, to learn how fast it is
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gnsq_like.errors import InvalidOption
from gnsq_like.runtime.draws import draw

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


class HostPool:
    """Chooses. Every :meth:`get` is to be followed by :meth:`succeeded` or :meth:`failed`.

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
        if self._mode == "round-robin":
            return self._in_turn(self._hosts).address
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
            return host.address
        if self._mode == "epsilon-greedy" and self._draw() >= _EXPLORATION:
            return min(well, key=lambda host: host.seconds or 0.0).address
        return self._in_turn(well).address

    def _in_turn(self, hosts: list[_Host]) -> _Host:
        self._next += 1
        return hosts[self._next % len(hosts)]

    def succeeded(self, address: str, seconds: float) -> None:
        """A request took so long. Never switches."""
        host = self._host(address)
        host.retry_at, host.rest = None, FIRST_REST
        host.seconds = seconds if host.seconds is None else host.seconds + _WEIGHT * (seconds - host.seconds)

    def failed(self, address: str, now: float) -> None:
        """A request failed. Never switches."""
        host = self._host(address)
        if host.retry_at is None:
            host.rest = FIRST_REST
            host.retry_at = now + host.rest

    def _host(self, address: str) -> _Host:
        return next(host for host in self._hosts if host.address == address)
