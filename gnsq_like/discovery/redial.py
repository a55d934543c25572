"""When an address is tried, and tried again: what Reader and Producer have in common, and the Reader's part.

An nsqd of a fixed list is tried until it answers, with exponential delays from the first failure on. One
that discovery found is tried once each time it is listed, and left alone for a while after a failure. Each
try is made in a greenlet of its own, so that a mute nsqd delays no other, and an address is tried by one
greenlet at a time. A connection that did not last is a failure too, for it would fail as soon again.

Refusals that repeating cannot cure are reported once; when every known nsqd refuses so, that is reported too.
"""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import gevent

from gnsq_like.addresses import Address
from gnsq_like.errors import ConnectionFailed, NSQError, is_incurable
from gnsq_like.policy import delays

logger = logging.getLogger(__name__)

#: Seconds for which a connection has to last, from SUB on, to clear the failures before it. One that nsqd ends at
#: once ends in milliseconds; one that lasts so long costs little however often it is made again.
LASTING = 5.0


class Tries:
    """The tries at one address: how many failed in a row, and whether its refusal was reported."""

    __slots__ = ("count", "not_before", "refused")

    def __init__(self) -> None:
        #: Failures in a row.
        self.count = 0
        #: Until when (by the caller's clock) the address is left alone for them.
        self.not_before = 0.0
        #: Whether the last try met a refusal that repeating does not cure.
        self.refused = False

    def failed(self, error: NSQError) -> bool:
        """One more failed.

        :returns: whether to report it; a refusal that repeating does not cure is reported once
        """
        self.count += 1
        again, self.refused = self.refused, is_incurable(error)
        return not (again and self.refused)


class Redialer:
    """The addresses, and the greenlets on the way to a connection.

    :param fixed: addresses to keep connected
    :param connect: tries once to connect to an address; returns why it failed, or None. May switch
    :param is_connected: whether there is a connection to an address
    :param on_failure: called with (address, error) for each failed try that is worth telling
    :param on_hopeless: called with an error when every known nsqd refuses for good
    :param poll_interval: seconds between two rounds of discovery
    :param max_redial_delay: the longest time between two tries at a fixed address, in seconds
    :param surveyed: whether all nsqds are known, because no discovery takes part
    """

    def __init__(
        self,
        fixed: Iterable[Address],
        *,
        connect: Callable[[Address], NSQError | None],
        is_connected: Callable[[Address], bool],
        on_failure: Callable[[str, NSQError], object],
        on_hopeless: Callable[[NSQError], object],
        poll_interval: float,
        max_redial_delay: float,
        surveyed: bool,
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fixed = tuple(fixed)
        self._connect = connect
        self._is_connected = is_connected
        self._on_failure = on_failure
        self._on_hopeless = on_hopeless
        self._poll_interval = poll_interval
        self._max_redial_delay = max_redial_delay
        self._draw = draw
        self._clock = clock
        #: Whether all nsqds are known: from the first whole round of discovery on.
        self.surveyed = surveyed
        #: Addresses that discovery found in its last round.
        self._found: frozenset[Address] = frozenset()
        self._trying: dict[Address, Any] = {}
        #: When (by the clock) those that are connected subscribed.
        self._since: dict[Address, float] = {}
        self._tries: defaultdict[Address, Tries] = defaultdict(Tries)
        self._stopped = False

    @property
    def known(self) -> frozenset[Address]:
        """The nsqds that are wanted: the fixed ones, and those of the last round of discovery. From any thread."""
        return self._found.union(self._fixed)

    def start(self) -> None:
        """Begin with the fixed addresses. Never switches."""
        for address in self._fixed:
            self._try(address)

    def stop(self) -> None:
        """End all tries. May switch."""
        self._stopped = True
        gevent.killall(list(self._trying.values()))

    def forked_child(self) -> None:
        """In a forked child: forget the tries, which are the parent's. Never switches."""
        self._stopped = True
        for greenlet in self._trying.values():
            greenlet.kill(block=False)

    def found(self, addresses: Iterable[Address], complete: bool) -> None:
        """A round of discovery gave these, and, if ``complete``, no others. Never switches."""
        listed = frozenset(addresses)
        self._found = listed if complete else self._found | listed
        self.surveyed = self.surveyed or complete
        now = self._clock()
        for address in sorted(listed):
            if now >= self._tries[address].not_before:
                self._try(address)

    def lost(self, address: Address) -> bool:
        """A connection has ended. Never switches.

        :returns: whether only discovery can bring the address back
        """
        now = self._clock()
        if now - self._since.pop(address, now) >= LASTING:
            self._tries.pop(address, None)
        else:
            # The first of them is like any loss: discovery may bring it back at once.
            tries = self._tries[address]
            tries.not_before = now + delays.discovery_delay(tries.count, self._poll_interval)
            tries.count += 1
        if address not in self._fixed:
            return True
        self._try(address, self._redial_delay(address))
        return False

    def _try(self, address: Address, pause: float = 0.0) -> None:
        if not self._stopped and address not in self._trying and not self._is_connected(address):
            self._trying[address] = gevent.spawn(self._keep_trying, address, pause)

    def _keep_trying(self, address: Address, pause: float) -> None:
        try:
            while True:
                gevent.sleep(pause)
                error = self._try_once(address)
                if error is None:
                    self._tries[address].refused = False
                    # It may have been lost again before this greenlet went on, and lost() heard that it is being tried.
                    if self._is_connected(address):
                        self._since[address] = self._clock()
                        return
                else:
                    self._failed(address, error)
                if address not in self._fixed:
                    return  # discovery lists it again, or not
                pause = self._redial_delay(address)
        finally:
            self._trying.pop(address, None)

    def _try_once(self, address: Address) -> NSQError | None:
        try:
            return self._connect(address)
        except (Exception, gevent.Timeout) as exc:
            # A Timeout of auth_secret or server_hostname; nothing else is known to raise here, but if
            # something does, the address must not be forgotten for it.
            logger.exception("connecting to %s", address)
            return ConnectionFailed.unexpected(str(address), exc)

    def _failed(self, address: Address, error: NSQError) -> None:
        tries = self._tries[address]
        if tries.failed(error):
            self._on_failure(str(address), error)
        tries.not_before = self._clock() + delays.discovery_delay(tries.count, self._poll_interval)
        if tries.refused and self.surveyed and all(self._tries[each].refused for each in self.known):
            self._on_hopeless(error)

    def _redial_delay(self, address: Address) -> float:
        return delays.redial_delay(max(1, self._tries[address].count), self._draw, maximum=self._max_redial_delay)
