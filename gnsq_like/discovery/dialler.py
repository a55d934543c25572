"""The times at which addresses are dialled: a ``Dialler`` for each address of a Reader or Producer.

``Redialer`` has those of a Reader, which dials by itself; a Producer dials for publishes (``producer/destinations``).

An nsqd of a fixed list, or of the last round of discovery, is tried until it accepts, with exponential delays from the
first failure on; one that discovery no longer lists is left alone. Each try has a greenlet of its own, so that an
unresponsive nsqd delays no other; each address is tried by one greenlet at a time. A connection that does not last
counts as a failure, because the next one would probably end as soon.

One that discovery found is dialled again only when a round that began after the loss, or after the last failure, lists
it. If SUB does not follow within a second of the answer, discovery is asked again first: the topic may have been
deleted, and SUB would create it again.

Refusals that a retry cannot cure are reported once; if every known nsqd refuses that way, this is reported too. After a
first connection, only refusals that cannot end by themselves count (``errors.is_incurable``): a certificate or a secret
may be renewed a minute late.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Generic, NamedTuple, TypeVar

import gevent

from gnsq_like.addresses import Address
from gnsq_like.errors import ConnectionFailed, NSQError, is_incurable
from gnsq_like.policy import delays
from gnsq_like.runtime.dispatcher import log_soon
from gnsq_like.runtime.native import draw
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.user_code import outcome_of

logger = logging.getLogger(__name__)

#: An address, or another key of a connection; its text is the address.
_A = TypeVar("_A", bound=Hashable)

#: Seconds a connection must last after SUB to clear earlier failures. If nsqd refuses it, it ends within milliseconds;
#: connections that last this long cost little, however often they are made.
LASTING = 5.0

#: Seconds from discovery's answer to SUB; after that it is asked again. A dial can take longer, because its SYN
#: is sent again until the network is back.
ANSWER_LASTS = 1.0


class Target(NamedTuple):
    """A topic of an nsqd, to be subscribed to."""

    address: Address
    topic: str

    def __str__(self) -> str:
        return str(self.address)


class Round:
    """A round of discovery: all nsqlookupds are asked. It is reported as they answer; times are monotonic."""

    __slots__ = ("answered", "began", "is_complete")

    def __init__(self, began: float) -> None:
        self.began = began
        #: When the first of them has answered; inf if none has.
        self.answered = math.inf
        #: Whether it has ended with any answer.
        self.is_complete = False


class Dialler:
    """The tries to connect to one address: the greenlet that tries, the failures in a row, when the next one is due.

    :param name: the address as text
    :param spawn: starts a greenlet, as gevent.spawn
    """

    __slots__ = ("_spawn", "count", "greenlet", "name", "not_before", "refused")

    def __init__(self, name: str, spawn: Callable[..., Any] = gevent.spawn) -> None:
        self.name = name
        self._spawn = spawn
        #: The one that tries, or has tried; None before the first.
        self.greenlet: Any = None
        self.clear()

    def clear(self) -> None:
        """Forget the failures."""
        #: Failures in a row.
        self.count = 0
        #: Earliest time of the next try.
        self.not_before = 0.0
        #: Whether the last try met a refusal that a retry cannot cure.
        self.refused = False

    @property
    def is_trying(self) -> bool:
        """Whether a try is under way, or waits for its time."""
        return self.greenlet is not None and not self.greenlet.dead

    @property
    def next_try(self) -> float | None:
        """When the next try is due; None if one is under way, or none is delayed."""
        return self.not_before if self.not_before > time.monotonic() else None

    def dial(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function that tries, in a greenlet of its own. Never switches."""
        self.greenlet = self._spawn(function, *arguments)

    def attempt(self, connect: Callable[..., object], *arguments: object) -> NSQError | None:
        """Call a function that connects; returns the error if that fails. May switch. Next: :meth:`failed`."""
        _, exc = outcome_of(connect, *arguments)
        if exc is None:
            return None
        if isinstance(exc, NSQError):
            return exc.with_traceback(None)  # its frames would keep a connection for as long as a log keeps the error
        # For instance a Timeout in auth_secret or server_hostname. The address must not be given up for it.
        log_soon(logger.error, "unexpected error while connecting to %s", self.name, exc_info=exc)
        return ConnectionFailed.unexpected(self.name, exc)

    def failed(self, error: NSQError) -> bool:
        """Count a failure. Next: :meth:`delay`.

        :returns: whether to report it; a refusal that a retry cannot cure is reported once
        """
        self.count += 1
        again, self.refused = self.refused, is_incurable(error)
        return not (again and self.refused)

    def delay(self, longest: float) -> None:
        """Delay the next try, the longer the more have failed, by at most so many seconds."""
        self.not_before = time.monotonic() + delays.redial_delay(max(1, self.count), draw, maximum=longest)


class Lost(Generic[_A]):
    """Addresses that discovery found and whose connections were lost: each is dialled again when it is found again.

    :param margin: seconds after the loss before a round must begin to be believed
    """

    __slots__ = ("_at", "_found_again", "_margin")

    def __init__(self, margin: float) -> None:
        self._margin = margin
        #: When each was lost; and those that were found again, but may not be connected yet.
        self._at: dict[_A, float] = {}
        self._found_again: set[_A] = set()

    def __contains__(self, address: _A) -> bool:
        """Whether it must not be dialled."""
        return address in self._at and address not in self._found_again

    def seconds(self, address: _A) -> float:
        """The time since its loss; inf if it is not lost."""
        return time.monotonic() - self._at.get(address, -math.inf)

    def add(self, address: _A) -> None:
        """Its connection has ended."""
        self._at[address] = time.monotonic()
        self._found_again.discard(address)

    def missing(self, address: _A) -> None:
        """It is not connected, and no longer listed."""
        self._at.setdefault(address, time.monotonic() - self._margin)
        self._found_again.discard(address)

    def discard(self, address: _A) -> None:
        """It is connected again, or not wanted."""
        self._at.pop(address, None)

    def found(self, listed: AbstractSet[_A], began: float) -> float | None:
        """Take the addresses that a round of discovery lists, with the time of its beginning.

        :returns: the time of the last loss among addresses that were not found again; None if there is none
        """
        self._found_again = {
            address
            for address, at in self._at.items()
            if address in self._found_again or (address in listed and began >= at + self._margin)
        }
        return max((at for address, at in self._at.items() if address not in self._found_again), default=None)


class _Dialled(Dialler):
    """The state of one address of a Redialer."""

    __slots__ = ("failed_at", "listed_at", "may_pass", "pause", "since")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        #: Whether the last failure is curable once there was a connection.
        self.may_pass = False
        #: When the last try failed; and when the last round that began after that, and listed it, was answered.
        self.failed_at = self.listed_at = -math.inf
        #: A reply that ends the wait of its greenlet for the next try or for discovery.
        self.pause: PendingReply | None = None
        #: While it is connected: the monotonic time when it subscribed.
        self.since: float | None = None


class Redialer(Generic[_A]):
    """The addresses to connect to, and the greenlets that try.

    :param fixed: addresses to keep connected
    :param connect: connects to an address, or raises. May switch
    :param is_connected: whether there is a connection to an address
    :param ask: begins a round of discovery; must not switch
    :param on_failure: called with (address, error) for each failure to be reported
    :param on_hopeless: called with an error when every known nsqd refuses in a way that a retry cannot cure; returns
        whether to give up
    :param max_redial_delay: the longest time between two tries at an address, in seconds
    :param surveyed: whether all nsqds are known, because there is no discovery
    """

    def __init__(
        self,
        fixed: Iterable[_A],
        *,
        connect: Callable[[_A], object],
        is_connected: Callable[[_A], bool],
        ask: Callable[[], object],
        on_failure: Callable[[str, NSQError], object],
        on_hopeless: Callable[[NSQError], bool],
        max_redial_delay: float,
        surveyed: bool,
    ) -> None:
        self._fixed = dict.fromkeys(fixed)
        self._connect = connect
        self._is_connected = is_connected
        self._ask = ask
        self._on_failure = on_failure
        self._on_hopeless = on_hopeless
        self._max_redial_delay = max_redial_delay
        #: Whether all nsqds are known: True from the first complete round of discovery on.
        self.surveyed = surveyed
        #: Addresses that discovery found in its last round.
        self._found: frozenset[_A] = frozenset()
        self._lost: Lost[_A] = Lost(delays.RELIST_AFTER)
        #: Those known, connected or being tried.
        self._table: dict[_A, _Dialled] = {}
        self._has_connected = False
        self._stopped = False

    @property
    def known(self) -> frozenset[_A]:
        """The fixed addresses, and those of the last round of discovery. From any thread."""
        return self._found.union(self._fixed)

    def start(self) -> None:
        """Start dialling the fixed addresses. Never switches. Next: :meth:`stop`."""
        for address in self._fixed:
            self._try(address)

    def look(self) -> None:
        """Look at all addresses, as a control loop does once a second: a try may have been ended. Never switches."""
        for address in sorted([each for each in self.known if not self._is_connected(each)], key=str):
            self._try(address)

    def stop(self) -> None:
        """End all tries. May switch."""
        self._end(block=True)

    def forked_child(self) -> None:
        """In a forked child: end all tries, which are the parent's. Never switches."""
        self._end(block=False)

    def _end(self, *, block: bool) -> None:
        self._stopped = True
        gevent.killall([each.greenlet for each in self.diallers if each.is_trying], block=block)

    @property
    def diallers(self) -> list[Dialler]:
        """Those of all addresses."""
        return list(self._table.values())

    def _of(self, address: _A) -> _Dialled:
        dialled = self._table.get(address)
        if dialled is None:
            dialled = self._table[address] = _Dialled(str(address))
        return dialled

    def found(self, addresses: Iterable[_A], of: Round) -> float | None:
        """A round of discovery has found these addresses; a complete round has found all. Never switches.

        :returns: when the last one was lost of those that are not back and not found again; None if there is none
        """
        in_order = dict.fromkeys(addresses)
        listed = frozenset(in_order)
        self._found = listed if of.is_complete else self._found | listed
        self.surveyed = self.surveyed or of.is_complete
        for address in self._table.keys() - self.known:
            dialled = self._table[address]
            if dialled.since is None:
                self._lost.missing(address)  # it may be restarting, or its topic was deleted
            dialled.clear()
            if dialled.pause is not None:
                dialled.pause.settle()
            if dialled.since is None and not dialled.is_trying:
                del self._table[address]
        lost_at = self._lost.found(listed, of.began)
        now = time.monotonic()
        for address in in_order:
            dialled = self._of(address)
            if of.began >= dialled.failed_at:
                dialled.listed_at = min(of.answered, now)
                if dialled.pause is not None and dialled.not_before <= now:
                    dialled.pause.settle()  # it waits for this, or for a time meant for an earlier life of this nsqd
            self._try(address)
        return lost_at

    def lost(self, address: _A) -> None:
        """A connection has ended. Never switches."""
        dialled = self._of(address)
        since, dialled.since = dialled.since, None
        if since is not None and time.monotonic() - since >= LASTING:
            dialled.clear()
        else:
            dialled.count += 1
        if address in self._fixed:
            dialled.delay(self._max_redial_delay)
            self._try(address)
            return
        if dialled.count > 1:
            dialled.delay(self._max_redial_delay)
        self._lost.add(address)
        self._ask()

    def is_doubtful(self, address: _A) -> bool:
        """Whether discovery found it, and it was lost since or is being tried: its topic may have been deleted."""
        if address in self._fixed:
            return False
        dialled = self._table.get(address)
        return address in self._lost or (dialled is not None and dialled.is_trying)

    def is_still_listed(self, address: _A) -> bool:
        """Whether to continue a try at this address; asks discovery unless that has just listed it. May switch.

        ``connect`` calls it before SUB.
        """
        dialled = self._of(address)
        now = time.monotonic()
        dialled.not_before = min(dialled.not_before, now)  # it has passed, but a timer may be a little early
        while self._is_wanted(address) and address not in self._fixed and dialled.listed_at < now - ANSWER_LASTS:
            self._ask()
            self._pause(dialled, None)
        return self._is_wanted(address)

    def forget(self, addresses: Iterable[_A]) -> None:
        """Do not dial these any more until they are found again. Never switches."""
        for address in addresses:
            self._found -= {address}
            self._lost.discard(address)

    def _is_wanted(self, address: _A) -> bool:
        """Whether it may be dialled now."""
        return (address in self._found or address in self._fixed) and address not in self._lost

    def _try(self, address: _A) -> None:
        """Try when its delay has passed, if it may be dialled. Never switches."""
        if self._stopped or not self._is_wanted(address) or self._is_connected(address):
            return
        dialled = self._of(address)
        if not dialled.is_trying:
            dialled.dial(self._keep_trying, address, dialled)

    def _keep_trying(self, address: _A, dialled: _Dialled) -> None:
        while True:
            self._pause(dialled, dialled.not_before - time.monotonic())
            if not self.is_still_listed(address):
                return
            error = dialled.attempt(self._connect, address)
            if error is None:
                dialled.refused = False
                # If it was already lost again, lost() left it to this greenlet.
                if self._is_connected(address):
                    self._has_connected = True
                    dialled.since = time.monotonic()
                    self._lost.discard(address)
                    return
                dialled.delay(self._max_redial_delay)
            else:
                self._failed(address, dialled, error)
                if self._stopped:
                    return
                # One that was lost may be restarting, and still be listed from before.
                dialled.delay(delays.search_delay(self._lost.seconds(address), self._max_redial_delay))

    def _pause(self, dialled: _Dialled, seconds: float | None) -> None:
        """Wait for this time, or until discovery reports the address. May switch."""
        dialled.pause = PendingReply()
        try:
            dialled.pause.wait(seconds)
        finally:
            dialled.pause = None

    def _failed(self, address: _A, dialled: _Dialled, error: NSQError) -> None:
        dialled.may_pass = not is_incurable(error, connected_before=True)
        dialled.failed_at, dialled.listed_at = time.monotonic(), -math.inf
        if dialled.failed(error):
            self._on_failure(str(address), error)
        known = (self._of(each) for each in self.known)
        if self.surveyed and self._is_hopeless(dialled) and all(map(self._is_hopeless, known)):
            self._stopped = self._on_hopeless(error)

    def _is_hopeless(self, dialled: _Dialled) -> bool:
        return dialled.refused and not (dialled.may_pass and self._has_connected)
