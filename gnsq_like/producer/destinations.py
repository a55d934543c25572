"""A Producer's nsqds: the fixed ones, and those that nsqlookupds list; and the connection to each.

Connecting happens in a greenlet of its own, so a caller that is killed or times out does not interrupt it. Each failure
delays the next try, longer each time, until nsqd has answered a publish: a connection that breaks before that counts as
a failure, too. A connection that nsqd closes because it refused a publish does not, or the invalid publishes of one
caller would delay those of all others.

An nsqd that is no longer listed is used while its connection is open, and not dialled again. Polling begins with the
first publish that finds no connection. Call only in the pool's thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Sized
from typing import TYPE_CHECKING, Protocol

from gnsq_like.addresses import Address
from gnsq_like.connection.connection import Connection
from gnsq_like.discovery.dialler import Dialler, Lost, Round
from gnsq_like.discovery.outages import Outages
from gnsq_like.errors import ConnectionFailed, ConnectionLost, NSQError
from gnsq_like.options import ProducerOptions
from gnsq_like.producer.publish import Publish
from gnsq_like.runtime.dispatcher import HookRunner
from gnsq_like.runtime.hub_calls import InnerGreenlet

if TYPE_CHECKING:
    from gnsq_like.discovery.lookupd_poller import LookupdPoller

#: With ``fail_fast``: the longest delay before an unreachable nsqd is redialled, in seconds; half of it is random.
_REDIAL_MAXIMUM = 0.5


class DestinationOwner(Protocol):
    """The pool that a destination belongs to. Nothing here switches."""

    options: ProducerOptions
    hooks: HookRunner
    #: Why publishes fail at once, and the monotonic time since which they do.
    away: str | None
    away_since: float | None

    @property
    def queue(self) -> Sized: ...
    @property
    def awaited(self) -> Sized: ...
    def lost(self, destination: Destination, error: NSQError | None) -> None: ...
    def changed(self) -> None: ...


class Destination:
    """One nsqd of a pool."""

    def __init__(self, address: Address, pool: DestinationOwner, outages: Outages) -> None:
        self.address = address
        #: The address as text.
        self.name = str(address)
        self._pool = pool
        self._outages = outages
        self._options = pool.options
        self.connection: Connection | None = None
        self.dialler = Dialler(self.name, InnerGreenlet.spawn)
        #: Why it has no connection; None if it has one, or was never tried.
        self.failure: NSQError | None = None
        #: Monotonic time when a publish was last left unanswered; others are preferred until it sends anything.
        self._doubted_at = 0.0
        #: Whether it is still to be used: in the fixed list, or found by the last round of discovery.
        self.wanted = True

    def __repr__(self) -> str:
        return f"<Destination {self.name} connection={self.connection!r} failures={self.dialler.count}>"

    # -- connecting ---------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether its connection is open."""
        return self.connection is not None and self.connection.alive

    @property
    def usable(self) -> bool:
        """Whether it is connected and not doubted."""
        return self.connected and not self.doubted

    @property
    def away(self) -> bool:
        """Whether it is doubted, or the last try to connect failed; a first try may be under way."""
        return self.doubted if self.connected else isinstance(self.failure, ConnectionFailed)

    def connect(self, now: float) -> float:
        """Try to connect if that is due, even if there is a doubted connection. Never switches.

        :returns: monotonic time when the next try may be due
        """
        if now < self.dialler.not_before:
            return self.dialler.not_before
        if self.wanted and not self.dialler.is_trying:
            self.dialler.dial(self._dial)
        return math.inf

    @property
    def doubted(self) -> bool:
        """Whether a publish was not answered in time, and nothing has been received since."""
        return self.connection is not None and self._doubted_at > self.connection.last_received_at

    def doubt(self) -> None:
        """A publish was not answered in time."""
        self._doubted_at = time.monotonic()
        if self.connection is not None:
            self.connection.catch_up()  # this thread may not have read for long

    def _dial(self) -> None:
        connection = Connection(self.address, self._options, on_answers=self._answered, on_close=self._lost)
        try:
            error = self.dialler.attempt(connection.connect)
            if error is not None:
                self._failed(error)
            elif self.wanted:
                self._take(connection)
        finally:
            if connection is not self.connection:
                connection.close()
            self._pool.changed()

    def _take(self, connection: Connection) -> None:
        """Use a new connection, also instead of one that is doubted, but not beside a good one. May switch."""
        self.dialler.refused = False
        if connection.authorized is not None:
            self._pool.hooks.call("on_auth", self.name, connection.authorized)
        old = self.connection
        if old is not None and old.alive:
            old.catch_up()  # nsqd may have answered on both at the same time
            if self.usable:
                return
        self.connection = connection
        self.failure = None
        self._outages.answered(self.name)
        if old is not None and old.alive:
            lost = ConnectionLost(self.name, "nsqd left publishes unanswered, and answers on a new connection")
            self._pool.hooks.call("on_disconnect", self.name, lost)
            old.close()
        self._pool.hooks.call("on_connect", self.name)

    def _failed(self, error: NSQError) -> None:
        # With fail_fast an nsqd that is away is redialled all the time.
        again = self._options.fail_fast and str(error) == str(self.failure)
        self.failure = error
        is_news = self.dialler.failed(error) and not again
        self._pause()
        self._outages.failed(self.name, error)
        if is_news:
            self._pool.hooks.call("on_error", self.name, error)

    def _pause(self) -> None:
        """Delay the next try."""
        longest = self._options.max_redial_delay
        if not self.dialler.refused:
            # Only publishes make it connect, so there should be a try within the time of each.
            longest = min(longest, self._options.timeout / 2)
            if self._options.fail_fast:
                longest = min(longest, _REDIAL_MAXIMUM)
        self.dialler.delay(longest)

    def _answered(self, connection: Connection) -> None:
        # Once per read.
        self.dialler.count = 0
        pool = self._pool
        if pool.queue or pool.awaited or pool.away:
            pool.changed()

    def _lost(self, connection: Connection, error: NSQError | None) -> None:
        # At the connection's end.
        if connection is self.connection:
            self.failure = error
        elif error is None:
            return  # closed by _take, or before it was used
        if error is not None:
            self._outages.failed(self.name, error)
            refusal = connection.refusal
            is_failure = refusal is None or refusal.publish_verdict != "refused"
            self.dialler.count += is_failure
            # A PUB, MPUB or DPUB failed, for instance because the disk is full: the next one may fail, too.
            if is_failure and (self.dialler.count > 1 or (refusal is not None and refusal.code.endswith("PUB_FAILED"))):
                self._pause()
            else:
                self.dialler.not_before = 0.0  # it worked before: try again at once
        self._pool.lost(self, error)

    # -- publishing ---------------------------------------------------------------------------------

    def send(self, publish: Publish, now: float) -> bool:
        """Queue a publish on the connection, if there is one with room; else connect if that is due. Never switches.

        :returns: False if it is not accepted; the pool tries again after the next answer or connection
        """
        connection, options = self.connection, self._options
        if connection is None or not connection.alive:
            self.connect(now)
            return False
        if now - connection.last_received_at > options.heartbeat_interval:
            connection.catch_up()  # this thread has not read for long; nsqd may have closed the connection
        unanswered = len(connection.unanswered)
        if (
            (unanswered and connection.unanswered_bytes >= options.max_pending_bytes)
            or unanswered >= options.max_pending_count
            or not connection.alive
        ):
            return False
        publish.sent_to = connection.address  # before it looks whether it is done: see Publish.withdraw
        command = publish.command
        if publish.done or not command:
            command = publish.encode()
        if command:
            connection.publish(command, publish)
        else:
            publish.sent_to = None
        return True

    def why(self) -> str:
        """The reason why nothing can be sent to it, for an error's text."""
        if self.connected:
            if self.doubted:
                return f"nsqd at {self.name} left a publish unanswered, and has sent nothing since"
            return f"nsqd at {self.name} has no room: too many publishes are unanswered"
        if self.failure is not None:
            return str(self.failure)
        return f"no connection to {self.name} yet"

    def stats(self) -> dict[str, object]:
        """For ``Producer.stats``."""
        connection = self.connection
        return {
            "connected": self.connected,
            "unanswered": 0 if connection is None else connection.unanswered_count,
            "unanswered_bytes": 0 if connection is None else connection.unanswered_bytes,
            "failures": self.dialler.count,
        }

    def stop_connecting(self, *, block: bool) -> None:
        """End a try to connect. May switch, if it is to wait for that."""
        if self.dialler.is_trying:
            self.dialler.greenlet.kill(block=block)

    def close(self) -> None:
        """Stop connecting, and close the connection; twice is fine. May switch."""
        self.stop_connecting(block=True)
        if self.connection is not None:
            self.connection.close()

    def let_go(self, loop_lives: bool) -> None:
        """Drop everything in a forked child, or after the end of this thread. From any thread; never switches."""
        if loop_lives:
            self.stop_connecting(block=False)
        if self.connection is not None:
            self.connection.let_go(loop_lives)


class Discovery:
    """The nsqds of a pool.

    :param addresses: the fixed nsqds
    :param lookupds: nsqlookupds to poll for further nsqds
    """

    def __init__(self, addresses: Iterable[Address], lookupds: list[str], pool: DestinationOwner) -> None:
        self._pool = pool
        self._fixed = tuple(addresses)
        self._outages = Outages("Producer", lambda: (each.dialler for each in self.destinations))
        self.destinations: list[Destination] = [Destination(address, pool, self._outages) for address in self._fixed]
        self._poller: LookupdPoller | None = None
        if lookupds:
            # Imported at first use: most Producers have fixed nsqds, and need no HTTP.
            from gnsq_like.discovery.lookupd_poller import AllNsqds, LookupdPoller, make_clients

            clients = make_clients(lookupds, pool.options)
            self._poller = LookupdPoller(clients, pool.options, AllNsqds(self._found), self._lookup_failed)
            self._outages.poller = self._poller
        #: Whether all nsqds are known, or no nsqlookupd answers: True from the end of the first round on.
        self.surveyed = not lookupds
        #: No margin: connecting creates nothing, and publishes wait for it.
        self._lost: Lost[Address] = Lost(0.0)

    def begin(self) -> None:
        """Look for nsqds from now on, if there are nsqlookupds to ask; further calls do nothing."""
        if self._poller is not None:
            self._poller.start()

    def hurry(self) -> None:
        """Ask the nsqlookupds now, if there are any: nsqds may be back, or at other addresses."""
        if self._poller is not None:
            self._poller.hurry()

    def _found(self, addresses: list[Address], of: Round) -> float | None:
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
                destination.stop_connecting(block=False)
        self.destinations = kept
        self.destinations += [
            Destination(address, self._pool, self._outages) for address in found if address not in known
        ]
        self._pool.changed()
        return max((at for at in (lost_at, self._pool.away_since) if at is not None), default=None)

    def _lookup_failed(self, address: str, error: NSQError) -> None:
        self._outages.failed(address, error)
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
        self._outages.look(away)

    def why_none(self, but: Collection[str]) -> list[str]:
        """The reason why there is no nsqd, for an error's text.

        :param but: the addresses of nsqds to leave out
        """
        if self._poller is None:
            return []
        none = "nsqlookupd knows no other" if but else "nsqlookupd knows no nsqd"
        if not self.surveyed or self._poller.all_failed:
            none = "no nsqd was found yet"
        return [none, *map(str, self._poller.failures.values())]

    def stop(self) -> None:
        """Stop discovery."""
        if self._poller is not None:
            self._poller.stop()

    def forked_child(self) -> None:
        """As :meth:`stop`, in a forked child."""
        if self._poller is not None:
            self._poller.forked_child()
