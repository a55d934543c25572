"""When an address is dialled, and dialled again: ``Tries`` for Reader and Producer, ``Redialer`` for the Reader.

An nsqd of a fixed list, or of the last round of discovery, is tried until it accepts, with exponential delays from the
first failure on; one that discovery no longer lists is left alone. Each try has a greenlet of its own, so that an
unresponsive nsqd delays no other; each address is tried by one greenlet at a time. A connection that does not last
counts as a failure, because the next one would probably end as soon.

Refusals that a retry cannot cure are reported once; if every known nsqd refuses that way, this is reported too.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import gevent

from gnsq_like.addresses import Address
from gnsq_like.errors import ConnectionFailed, NSQError, is_incurable
from gnsq_like.policy import delays
from gnsq_like.runtime.clock import monotonic
from gnsq_like.runtime.draws import draw
from gnsq_like.runtime.ends import ENDS

logger = logging.getLogger(__name__)

#: An address, or what else identifies a connection; its text is the address.
_A = TypeVar("_A", bound=Hashable)

#: Seconds a connection must last after SUB to clear earlier failures. If nsqd refuses it, it ends within milliseconds;
#: connections that last this long cost little, however often they are made.
LASTING = 5.0

#: Seconds after a loss before nsqlookupd is believed that the topic is still there; no extra round comes sooner.
RELIST_AFTER = delays.EXTRA_ROUND_SOONEST


class Target(NamedTuple):
    """A topic of an nsqd, to be subscribed to."""

    address: Address
    topic: str

    def __str__(self) -> str:
        return str(self.address)


class Tries:
    """The failed tries at one address, and whether its refusal was reported."""

    __slots__ = ("count", "not_before", "refused")

    def __init__(self) -> None:
        #: Failures in a row.
        self.count = 0
        #: Earliest time of the next try, by the caller's clock.
        self.not_before = 0.0
        #: Whether the last try met a refusal that a retry cannot cure.
        self.refused = False

    def failed(self, error: NSQError) -> bool:
        """Count a failure.

        :returns: whether to report it; a refusal that a retry cannot cure is reported once
        """
        self.count += 1
        again, self.refused = self.refused, is_incurable(error)
        return not (again and self.refused)


class Redialer(Generic[_A]):
    """The addresses to connect to, and the greenlets that try.

    :param fixed: addresses to keep connected
    :param connect: tries once to connect to an address; returns the error, or None. May switch
    :param is_connected: whether there is a connection to an address
    :param on_failure: called with (address, error) for each failure to be reported
    :param on_hopeless: called with an error when every known nsqd refuses in a way that a retry cannot cure
    :param max_redial_delay: the longest time between two tries at an address, in seconds
    :param surveyed: whether ``fixed`` is all there is, because there is no discovery
    :param relisted: whether one that discovery found is dialled again only when the next round finds it again, because
        connecting would create what somebody has deleted
    """

    def __init__(
        self,
        fixed: Iterable[_A],
        *,
        connect: Callable[[_A], NSQError | None],
        is_connected: Callable[[_A], bool],
        on_failure: Callable[[str, NSQError], object],
        on_hopeless: Callable[[NSQError], object],
        max_redial_delay: float,
        surveyed: bool,
        relisted: bool = False,
        draw: Callable[[], float] = draw,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._fixed = tuple(fixed)
        self._connect = connect
        self._is_connected = is_connected
        self._on_failure = on_failure
        self._on_hopeless = on_hopeless
        self._max_redial_delay = max_redial_delay
        self._relisted = relisted
        self._draw = draw
        self._clock = clock
        #: Whether all nsqds are known: True from the first complete round of discovery on.
        self.surveyed = surveyed
        #: Addresses that discovery found in its last round.
        self._found: frozenset[_A] = frozenset()
        self._trying: dict[_A, Any] = {}
        #: Connected addresses, with the time (by the clock) when they subscribed.
        self._since: dict[_A, float] = {}
        self._tries: defaultdict[_A, Tries] = defaultdict(Tries)
        #: With ``relisted``: when those were lost that discovery had found.
        self._lost_at: dict[_A, float] = {}
        self._stopped = False

    @property
    def known(self) -> frozenset[_A]:
        """The fixed addresses, and those of the last round of discovery. From any thread."""
        return self._found.union(self._fixed)

    def start(self) -> None:
        """Start dialling the fixed addresses. Never switches. Next: :meth:`stop`."""
        for address in self._fixed:
            self._try(address)

    def stop(self) -> None:
        """End all tries. May switch."""
        self._stopped = True
        gevent.killall(list(self._trying.values()))

    def forked_child(self) -> None:
        """In a forked child: end all tries, which are the parent's. Never switches."""
        self._stopped = True
        for greenlet in self._trying.values():
            greenlet.kill(block=False)

    def found(self, addresses: Iterable[_A], complete: bool) -> None:
        """A round of discovery found these addresses; if ``complete``, there are no others. Never switches."""
        listed = dict.fromkeys(addresses)
        self._found = frozenset(listed) if complete else self._found.union(listed)
        self.surveyed = self.surveyed or complete
        for address in self._tries.keys() - self.known - self._trying.keys():
            del self._tries[address]
        for address in listed:
            self._try(address)

    def lost(self, address: _A) -> bool:
        """A connection has ended. Never switches.

        :returns: whether discovery should be asked soon whether this nsqd is still there
        """
        now = self._clock()
        if now - self._since.pop(address, now) >= LASTING:
            self._tries.pop(address, None)
        else:
            self._tries[address].count += 1
        if self._relisted and address not in self._fixed:
            self._found -= {address}
            self._lost_at[address] = now
        if address in self.known:
            self._try(address, self._redial_delay(address))
        return address not in self._fixed

    def relisted(self, addresses: Iterable[_A], began: float) -> list[_A]:
        """Those of the addresses, found by a round that began then, that were not lost since or shortly before.

        The others may have been deleted: an nsqd closes a topic's connections before nsqlookupd hears of its end.
        """
        self._lost_at = {address: at for address, at in self._lost_at.items() if began < at + RELIST_AFTER}
        return [address for address in addresses if address not in self._lost_at]

    def forget(self, addresses: Iterable[_A]) -> None:
        """These are gone: leave them alone until they are found again. Never switches."""
        self._found -= frozenset(addresses)

    def _try(self, address: _A, pause: float = 0.0) -> None:
        if not self._stopped and address not in self._trying and not self._is_connected(address):
            self._trying[address] = gevent.spawn(self._keep_trying, address, pause)

    def _keep_trying(self, address: _A, pause: float) -> None:
        try:
            while True:
                gevent.sleep(pause)
                if address not in self.known:
                    return
                error = self._try_once(address)
                if error is None:
                    self._tries[address].refused = False
                    # If it was already lost again, lost() left it to this greenlet.
                    if self._is_connected(address):
                        self._since[address] = self._clock()
                        return
                else:
                    self._failed(address, error)
                pause = self._redial_delay(address)
                logger.info("nsqd at %s: the next try is in %.1f s", address, pause)
        finally:
            self._trying.pop(address, None)

    def _try_once(self, address: _A) -> NSQError | None:
        try:
            return self._connect(address)
        except ENDS:
            raise
        except BaseException as exc:
            # For instance a Timeout in auth_secret or server_hostname. The address must not be given up for it.
            logger.exception("unexpected error while connecting to %s", address)
            return ConnectionFailed.unexpected(str(address), exc)

    def _failed(self, address: _A, error: NSQError) -> None:
        tries = self._tries[address]
        if tries.failed(error):
            self._on_failure(str(address), error)
        if tries.refused and self.surveyed and all(self._tries[each].refused for each in self.known):
            self._on_hopeless(error)

    def _redial_delay(self, address: _A) -> float:
        return delays.redial_delay(max(1, self._tries[address].count), self._draw, maximum=self._max_redial_delay)
