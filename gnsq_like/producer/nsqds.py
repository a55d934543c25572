"""The nsqds of a Producer: which there are, which of them a publish is sent to, and whether it is sent at all.

The fixed ones, and those that the nsqlookupds list, each a ``Destination``. One that is no longer listed is used while
its connection is open, and not dialled again. Publishes go to them in turn.

Whether publishes fail at once because nsqd is unreachable is the ``Circuit``'s, for the option ``fail_fast``. Without
it each publish waits for an nsqd until its own deadline, and a web server's threads wait with it. With it the circuit
opens when fewer nsqds are left than a publish needs, and the pool fails every publish with the reason. An nsqd is away
if the last try to connect to it failed, or if it is connected but doubted; one whose first try is under way is not. A
round of discovery must have ended, because it may find others. While the circuit is open no publish is sent. The nsqds
are redialled instead, at least once a second, also beside a doubted connection, and the circuit closes when as many as
needed have answered IDENTIFY, or their doubted connections have come back to life.

Rules for editors: this belongs to the pool's thread. Only ``Nsqds.close`` may switch. ``Circuit.check`` alone opens and
closes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from gnsq_like.addresses import Address
from gnsq_like.discovery.redial import Lost
from gnsq_like.errors import NSQError
from gnsq_like.producer.destination import Destination, DestinationOwner
from gnsq_like.producer.publish import Publish
from gnsq_like.runtime.native import draw
from gnsq_like.runtime.timer import Timer

if TYPE_CHECKING:
    from gnsq_like.discovery.lookupd_poller import LookupdPoller

logger = logging.getLogger(__name__)

#: With more nsqds than this, the first publishes of one iteration of the hub go to one nsqd each, further ones in
#: groups: a write for each of a hundred costs more than all the rest.
_FEW = 8
_SINGLE = 4
_GROUP = 16
#: Seconds between two checks while the circuit is open, at most: nothing reports a heartbeat of a doubted nsqd.
_INTERVAL = 0.5


class Circuit:
    """Open or closed, for one pool; to be used in the pool's thread, except for reading ``reason``."""

    def __init__(self, nsqds: Nsqds) -> None:
        options = nsqds.options
        self._nsqds = nsqds
        self._enabled = options.fail_fast
        #: How many nsqds a publish needs.
        self._needed = options.replicas if options.quorum is None else options.quorum
        #: Why publishes fail at once; None while the circuit is closed, and always without ``fail_fast``.
        self.reason: str | None = None
        #: Monotonic time since which it is open; None while it is closed.
        self.since: float | None = None
        self._timer = Timer(nsqds.changed)

    def check(self) -> bool:
        """Open or close as the destinations require, and redial them while open. Returns whether it is open."""
        if not self._enabled:
            return False
        now = time.monotonic()
        destinations = self._nsqds.destinations
        too_few_usable = sum(destination.usable for destination in destinations) < self._needed
        left = [destination.name for destination in destinations if not destination.away]
        is_open = self.reason is not None
        if is_open and not too_few_usable:
            self._close(now)
            return False
        if not is_open and (len(left) >= self._needed or not self._nsqds.surveyed):
            if too_few_usable:
                for destination in destinations:
                    destination.reconnect(now)
            return False
        away = "every nsqd is unreachable" if self._needed == 1 else f"fewer than {self._needed} nsqds are left"
        self.reason = f"{away}: {self._nsqds.why(but=left)}"
        if not is_open:
            self.since = now
            self._nsqds.look_again()
            logger.warning("publishes fail at once from now on: %s", self.reason)
        self._redial(now)
        return True

    def _redial(self, now: float) -> None:
        due = [destination.redial(now) for destination in self._nsqds.destinations if not destination.usable]
        self._timer.set_at(min([now + _INTERVAL, *due]))

    def _close(self, now: float) -> None:
        assert self.since is not None
        logger.warning("publishes are sent again, after %.1f s", now - self.since)
        self.reason = self.since = None
        self._timer.cancel()

    def cancel(self) -> None:
        """Check no more by itself; twice is fine."""
        self._timer.cancel()


class Nsqds:
    """The table of a pool.

    :param addresses: the fixed nsqds
    :param lookupds: nsqlookupds to poll for further nsqds
    """

    def __init__(self, addresses: Iterable[Address], lookupds: list[str], pool: DestinationOwner) -> None:
        self._pool = pool
        self.options = pool.options
        self._fixed = tuple(addresses)
        self.destinations: list[Destination] = [Destination(address, pool) for address in self._fixed]
        #: Index at which the search for the next destination begins.
        self._turn = 0
        #: Where that search ended, and in which iteration of the hub, after how many others.
        self._last: Destination | None = None
        self._iteration = 0.0
        self._count = 0
        self._lookupds = lookupds
        self._discovery: LookupdPoller | None = None
        self._discovered = not lookupds
        #: No margin: connecting creates nothing, and publishes wait for it.
        self._lost: Lost[Address] = Lost(0.0)
        #: Whether all nsqds are known, or no nsqlookupd answers: True from the end of the first round on.
        self.surveyed = not lookupds
        self.circuit = Circuit(self)
        self._retry = Timer(self.changed)

    # -- the next one -------------------------------------------------------------------------------

    def send(self, publish: Publish, now: float) -> bool:
        """Send a publish to the next nsqd in turn that takes it, or to the last one again. Never switches.

        :returns: False if none takes it
        """
        destinations = self.destinations
        count = len(destinations)
        if count == 1 and not publish.is_copy:
            return destinations[0].send(publish, now)
        if count > _FEW and not publish.is_copy:
            last = self._last_of_group(count)
            # It may have left the list since, and must not be dialled then.
            if last is not None and last.usable and last.send(publish, now):
                return True
        taken = publish.avoids() if publish.is_copy else ()
        doubted: list[Destination] = []
        for step in range(count):
            position = (self._turn + step) % count
            destination = destinations[position]
            if destination.name in taken:
                continue
            if destination.connected and destination.doubted:
                doubted.append(destination)
            elif destination.send(publish, now):
                self._turn = position + 1
                self._last = destination
                return True
        return any(destination.send(publish, now) for destination in doubted)

    def _last_of_group(self, count: int) -> Destination | None:
        """The nsqd of the last publish, if the next one belongs to its group."""
        iteration = self._pool.hub.loop.now()  # the loop reads the clock once in each
        if iteration != self._iteration:
            if self._count > _SINGLE:
                self._turn = int(draw() * count)  # or the groups would go to the same nsqds again and again
            self._iteration, self._count = iteration, 0
        self._count += 1
        return self._last if self._count > _SINGLE and self._count % _GROUP else None

    def why(self, but: Collection[str] = ()) -> str:
        """Why nothing could be sent, for an error's text.

        :param but: the addresses of nsqds that it was sent to
        """
        reasons = [destination.why() for destination in self.destinations if destination.name not in but]
        if not reasons:
            if self._lookupds:
                reasons = ["nsqlookupd knows no other" if but else "nsqlookupd knows no nsqd"]
            if not self._discovered:
                reasons = ["no nsqd was found yet"]
            if self._discovery is not None:
                reasons += map(str, self._discovery.failures.values())
        return "; ".join(reasons)

    @property
    def unanswered_count(self) -> int:
        """The number of commands that nsqd has not answered."""
        return sum(
            destination.connection.unanswered_count
            for destination in self.destinations
            if destination.connection is not None
        )

    # -- which there are ----------------------------------------------------------------------------

    def discover(self) -> None:
        """Begin to look for nsqds, if there are nsqlookupds to ask; further calls do nothing. Never switches."""
        if self._discovery is not None or not self._lookupds:
            return
        # Imported at first use: an application may have to patch before the HTTP client is loaded.
        from gnsq_like.discovery.lookupd_poller import AllNsqds, LookupdPoller, make_clients

        clients = make_clients(self._lookupds, self.options)
        self._discovery = LookupdPoller(clients, self.options, AllNsqds(self._found), self._lookup_failed)
        self._discovery.start()

    def _found(self, addresses: list[Address], complete: bool, began: float) -> float | None:
        self._discovered = True
        self.surveyed = self.surveyed or complete
        found = dict.fromkeys((*self._fixed, *addresses))
        known = {destination.address for destination in self.destinations}
        for destination in self.destinations:
            if destination.connected:
                self._lost.discard(destination.address)
        lost_at = self._lost.found(found.keys(), began)
        for destination in self.destinations:
            listed = destination.address in found or (destination.wanted and not complete)
            destination.wanted = listed and destination.address not in self._lost
        # One that is no longer listed is used while its connection is open, and not dialled again.
        kept = [each for each in self.destinations if each.address in found or each.connected or not complete]
        for destination in self.destinations:
            if destination not in kept:
                destination.drop()
        self.destinations = kept
        self.destinations += [Destination(address, self._pool) for address in found if address not in known]
        self._pool.changed()
        return max((at for at in (lost_at, self.circuit.since) if at is not None), default=None)

    def _lookup_failed(self, address: str, error: NSQError) -> None:
        logger.warning("%s", error)
        self._pool.hooks.call("on_error", address, error)
        if self._discovery is not None and self._discovery.all_failed:
            self.surveyed = True
            self._pool.changed()

    def look_again(self) -> None:
        """Ask the nsqlookupds now, if there are any: nsqds may be back, or at other addresses. Never switches."""
        if self._discovery is not None:
            self._discovery.hurry()

    def lost(self, destination: Destination) -> None:
        """Its connection has ended. Never switches."""
        if destination.address not in self._fixed and not destination.connected:
            if not destination.wanted:
                self.destinations = [each for each in self.destinations if each is not destination]
            destination.wanted = False
            self._lost.add(destination.address)
        self.look_again()

    def changed(self) -> None:
        """For its ``Circuit``: something happened that may let queued publishes be sent. Never switches."""
        self._pool.changed()

    def doubt(self, address: str) -> None:
        """A publish to this nsqd was not answered in time. Never switches."""
        for destination in self.destinations:
            if destination.name == address:
                destination.doubt()
        self.circuit.check()  # now: the caller may publish again before the pool sends

    def retry_after(self, now: float) -> None:
        """Report a change at the next time to connect, for publishes that no nsqd takes. Never switches.

        :param now: when they were offered; what was due then and was not dialled is avoided by all of them
        """
        if not self._retry.is_set:
            times = [at for each in self.destinations if (at := each.retry_at) is not None and at > now]
            if times:
                self._retry.set_at(min(times))

    # -- the end --------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Look for no more nsqds; the circuit stays as it is. Never switches."""
        self.circuit.cancel()
        self._retry.cancel()
        if self._discovery is not None:
            self._discovery.stop()

    def close(self) -> None:
        """Close all connections. May switch."""
        for destination in self.destinations:
            destination.close()

    def let_go(self, loop_lives: bool) -> None:
        """Drop everything in a forked child, or after the end of this thread. From any thread; never switches."""
        if loop_lives:
            self.circuit.cancel()
            self._retry.cancel()
            if self._discovery is not None:
                self._discovery.forked_child()
        for destination in self.destinations:
            destination.let_go(loop_lives)

    def settle_down(self) -> bool:
        """Stop connecting; returns whether a connection is open. Never switches."""
        for destination in self.destinations:
            destination.wanted = destination.connected
        return any(destination.connected for destination in self.destinations)
