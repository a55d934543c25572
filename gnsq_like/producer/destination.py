"""One nsqd to publish to, with its connection or the attempts to make one.

Connecting happens in a greenlet of its own, so a caller that is killed or times out does not interrupt it. Each failure
delays the next try, longer each time, until nsqd has answered a publish: a connection that breaks before that counts as
a failure, too. A connection that nsqd closes because it refused a publish does not, or the invalid publishes of one
caller would delay those of all others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sized
from typing import Protocol

from gnsq_like.addresses import Address
from gnsq_like.connection.connection import Connection
from gnsq_like.discovery.dialler import Dialler
from gnsq_like.discovery.outages import Outages
from gnsq_like.errors import ConnectionLost, NSQError
from gnsq_like.options import ProducerOptions
from gnsq_like.producer.publish import Publish
from gnsq_like.runtime.dispatcher import HookRunner
from gnsq_like.runtime.hub_calls import InnerGreenlet

#: With ``fail_fast``: the longest delay before an unreachable nsqd is redialled, in seconds; half of it is random.
_REDIAL_MAXIMUM = 0.5


class DestinationOwner(Protocol):
    """The pool that a destination belongs to. Nothing here switches."""

    options: ProducerOptions
    hooks: HookRunner
    outages: Outages
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
    """One nsqd of a pool; to be used in the pool's thread only."""

    def __init__(self, address: Address, pool: DestinationOwner) -> None:
        self.address = address
        #: The address as text.
        self.name = str(address)
        self._pool = pool
        self._options = pool.options
        self.connection: Connection | None = None
        self.dialler = Dialler(self.name, InnerGreenlet.spawn)
        #: Why it has no connection; None if it has one, or was never tried.
        self.failure: NSQError | None = None
        #: Whether the last try to connect failed.
        self._unreachable = False
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
    def retry_at(self) -> float | None:
        """Monotonic time of the next try to connect; None while connected or connecting, and if it is not wanted."""
        return None if self.connected or self.dialler.is_trying or not self.wanted else self.dialler.not_before

    @property
    def usable(self) -> bool:
        """Whether it is connected and not doubted."""
        return self.connected and not self.doubted

    @property
    def away(self) -> bool:
        """Whether it is doubted, or the last try to connect failed; a first try may be under way."""
        return self.doubted if self.connected else self._unreachable

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
        self._unreachable = self.dialler.refused = False
        if connection.authorized is not None:
            self._pool.hooks.call("on_auth", self.name, connection.authorized)
        old = self.connection
        if old is not None and old.alive:
            old.catch_up()  # nsqd may have answered on both at the same time
            if self.usable:
                return
        self.connection = connection
        self.failure = None
        self._pool.outages.answered(self.name)
        if old is not None and old.alive:
            lost = ConnectionLost(self.name, "nsqd left publishes unanswered, and answers on a new connection")
            self._pool.hooks.call("on_disconnect", self.name, lost)
            old.close()
        self._pool.hooks.call("on_connect", self.name)

    def _failed(self, error: NSQError) -> None:
        # With fail_fast an nsqd that is away is redialled all the time.
        again = self._options.fail_fast and self._unreachable and str(error) == str(self.failure)
        self._unreachable = True
        self.failure = error
        is_news = self.dialler.failed(error) and not again
        self._pause()
        self._pool.outages.failed(self.name, error)
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
            self._pool.outages.failed(self.name, error)
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

    def drop(self) -> None:
        """Stop connecting to an nsqd that is no longer listed and has no connection. Never switches."""
        self.wanted = False
        self._stop_connecting(block=False)

    def _stop_connecting(self, *, block: bool) -> None:
        if self.dialler.is_trying:
            self.dialler.greenlet.kill(block=block)

    def close(self) -> None:
        """Stop connecting, and close the connection; twice is fine. May switch."""
        self._stop_connecting(block=True)
        if self.connection is not None:
            self.connection.close()

    def let_go(self, loop_lives: bool) -> None:
        """Drop everything in a forked child, or after the end of this thread. From any thread; never switches."""
        if loop_lives:
            self._stop_connecting(block=False)
        if self.connection is not None:
            self.connection.let_go(loop_lives)
