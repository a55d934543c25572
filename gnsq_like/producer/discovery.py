"""A Producer's nsqds: the fixed ones, and those that the nsqlookupds list, each a ``Destination``.

An nsqd that is no longer listed is used while its connection is open, and not dialled again. Polling begins with the
first publish that finds no connection. Call only in the pool's thread; nothing here switches.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from gnsq_like.addresses import Address
from gnsq_like.discovery.dialler import Lost, Round
from gnsq_like.errors import NSQError, reason_of
from gnsq_like.producer.destination import Destination, DestinationOwner
from gnsq_like.runtime.dispatcher import log_soon

if TYPE_CHECKING:
    from gnsq_like.discovery.lookupd_poller import LookupdPoller

logger = logging.getLogger(__name__)


class Discovery:
    """The nsqds of a pool.

    :param addresses: the fixed nsqds
    :param lookupds: nsqlookupds to poll for further nsqds
    """

    def __init__(self, addresses: Iterable[Address], lookupds: list[str], pool: DestinationOwner) -> None:
        self._pool = pool
        self._fixed = tuple(addresses)
        self.destinations: list[Destination] = [Destination(address, pool) for address in self._fixed]
        self._lookupds = lookupds
        self._poller: LookupdPoller | None = None
        #: Why it could not begin.
        self._failure: str | None = None
        #: Whether a round has ended.
        self._discovered = not lookupds
        #: Whether all nsqds are known, or no nsqlookupd answers: True from the end of the first round on.
        self.surveyed = not lookupds
        #: No margin: connecting creates nothing, and publishes wait for it.
        self._lost: Lost[Address] = Lost(0.0)

    def begin(self) -> None:
        """Begin to look for nsqds, if there are nsqlookupds to ask; further calls do nothing, unless it failed."""
        if self._poller is not None or not self._lookupds:
            return
        # Imported at first use: an application may have to patch before the HTTP client is loaded.
        try:
            from gnsq_like.discovery.lookupd_poller import AllNsqds, LookupdPoller, make_clients
        except (OSError, ImportError) as exc:  # no file descriptors are left, mostly
            self._failure = f"the nsqlookupds are not asked: {reason_of(exc)}"
            log_soon(logger.warning, "%s", self._failure)
            return
        self._failure = None
        options = self._pool.options
        clients = make_clients(self._lookupds, options)
        self._poller = LookupdPoller(clients, options, AllNsqds(self._found), self._lookup_failed)
        self._pool.outages.poller = self._poller
        self._poller.start()

    def hurry(self) -> None:
        """Ask the nsqlookupds now, if there are any: nsqds may be back, or at other addresses."""
        if self._poller is not None:
            self._poller.hurry()

    def _found(self, addresses: list[Address], of: Round) -> float | None:
        self._discovered = True
        self.surveyed = self.surveyed or of.is_complete
        found = dict.fromkeys((*self._fixed, *addresses))
        known = {destination.address for destination in self.destinations}
        for destination in self.destinations:
            if destination.connected:
                self._lost.discard(destination.address)
        lost_at = self._lost.found(found.keys(), of.began)
        for destination in self.destinations:
            listed = destination.address in found or (destination.wanted and not of.is_complete)
            destination.wanted = listed and destination.address not in self._lost
        kept = [each for each in self.destinations if each.address in found or each.connected or not of.is_complete]
        for destination in self.destinations:
            if destination not in kept:
                destination.drop()
        self.destinations = kept
        self.destinations += [Destination(address, self._pool) for address in found if address not in known]
        self._pool.changed()
        return max((at for at in (lost_at, self._pool.away_since) if at is not None), default=None)

    def _lookup_failed(self, address: str, error: NSQError) -> None:
        self._pool.outages.failed(address, error)
        self._pool.hooks.call("on_error", address, error)
        if self._poller is not None and self._poller.all_failed:
            self.surveyed = True
            self._pool.changed()

    def lost(self, destination: Destination) -> None:
        """Note that a connection has ended."""
        if destination.address not in self._fixed and not destination.connected:
            if not destination.wanted:
                self.destinations = [each for each in self.destinations if each is not destination]
            destination.wanted = False
            self._lost.add(destination.address)
        self.hurry()

    def look_for_outages(self) -> None:
        """Log due lines about unreachable nsqds and nsqlookupds. Never switches."""
        away = [each.name for each in self.destinations if not each.connected]
        self._pool.outages.look(away)

    def why_none(self, but: Collection[str]) -> list[str]:
        """The reason why there is no nsqd, for an error's text.

        :param but: the addresses of nsqds to leave out
        """
        reasons = []
        if self._lookupds:
            reasons = ["nsqlookupd knows no other" if but else "nsqlookupd knows no nsqd"]
        if not self._discovered:
            reasons = ["no nsqd was found yet"]
        if self._poller is not None:
            reasons += map(str, self._poller.failures.values())
        elif self._failure is not None:
            reasons.append(self._failure)
        return reasons

    def stop(self) -> None:
        """Stop discovery."""
        if self._poller is not None:
            self._poller.stop()

    def forked_child(self) -> None:
        """As :meth:`stop`, in a forked child."""
        if self._poller is not None:
            self._poller.forked_child()
