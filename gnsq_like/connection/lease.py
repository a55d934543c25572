"""A connection on lease: one thread that publishes alone writes its commands and reads nsqd's answers itself.

To hand a publish over to the connection's thread, and its answer back, takes two wake-ups of a thread: a third of the
time of a small publish. During a lease the connection's own thread, the owner, neither reads nor writes. A lease begins
after a read, while nothing is unanswered (``Connection.lend``). It ends, and the connection is as if the
owner had sent the publish under way, when

- anything but exactly one OK arrives, or nothing within PATIENCE: the borrower gives back what it has read
- the owner needs the connection (:meth:`Lease.recall`): after the publish under way
- the borrower has done nothing for a TICK, or is stuck: a signal handler runs in the middle of its publish
- the connection ends

``_slot`` says who may use the socket. It holds None while the lease is idle, and the ``Trip`` of the publish under
way; it is empty during a system call of the borrower, and after the end. Who pops its item may go on, and ``pop`` is
atomic.

Rules for editors: Python runs a signal handler after any call of a function, and that may raise, or block for minutes.
So the borrower pops, makes its system call, notes the result and gives the item back in a single call, ``extend`` by a
``map``, which is all in C. Between two of these the owner can take the connection back. The socket's calls never wait,
so ``end`` may wait for them.
"""

from __future__ import annotations

import operator
import select
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from gevent import monkey

from gnsq_like.runtime import native
from gnsq_like.runtime.hub_calls import HubHandle
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.wire.frames import OK_FRAME

#: Seconds that the borrower waits for an answer before it gives the connection back: far above a usual one.
PATIENCE = 0.005
#: Seconds between two looks of the owner at the lease; a heartbeat waits for two of them at most.
TICK = 0.010
#: Bytes of one read; nsqd's answer has 10.
_READ_BYTES = 4096
#: Seconds between two looks at a slot that is empty during a system call.
_MOMENT = 0.0001

#: One step of a trip.
_step: Callable[[Any], object] = operator.call
#: Not on Windows.
IS_POSSIBLE = hasattr(select, "poll")


class Trip(list[Any]):
    """One publish on a lease, and the results of its steps: of each system call, with the pop and append around it."""

    __slots__ = ("command", "reply")

    def __init__(self, command: bytes, reply: PendingReply) -> None:
        self.command: bytes = command
        self.reply: PendingReply = reply

    @property
    def sent(self) -> int:
        """How many bytes of the command the kernel has accepted."""
        return self[1] if len(self) > 1 else 0

    @property
    def received(self) -> bytes:
        """The bytes read; none at the end of the stream, which the owner finds by itself."""
        return self[4] if len(self) > 4 else b""


class Lender(Protocol):
    """The connection. Nothing here switches."""

    last_received_at: float

    def take_back(self, trip: Trip | None) -> None: ...


class Lease:
    """The use of one connection by one other thread, for one publish at a time; made by ``Connection.lend``."""

    def __init__(
        self,
        lender: Lender,
        sock: Any,
        thread: int,
        owner: HubHandle,
        quiet: float,
        patience: float,
        tick: float,
    ) -> None:
        self._lender = lender
        self.thread = thread
        self._owner = owner
        self._quiet = quiet
        self._patience_ms = patience * 1000
        #: Settled at the end, after which ``left`` is the publish that was under way.
        self.over: PendingReply = PendingReply()
        self.left: PendingReply | None = None
        self._slot: list[Trip | None] = [None]
        self._sock = sock
        poll = monkey.get_original("select", "poll")()
        poll.register(sock.fileno(), select.POLLIN)
        self._poll: Callable[[float], list[object]] = poll.poll
        #: Whether a publish is under way; the borrower's.
        self.busy: bool = False
        #: Publishes begun, the borrower's; and how many there were at the owner's last look.
        self._count = self._seen = 0
        #: Whether no further publish may begin. Both write it.
        self._ending = False
        self._ticks = owner.hub.loop.timer(tick, tick)
        self._ticks.start(self._tick, update=True)

    # -- in the borrower's thread -------------------------------------------------------------------

    def publish(self, command: bytes, reply: PendingReply) -> bool:
        """Write a publish, and wait for its answer. Never switches; blocks the thread for PATIENCE at most.

        :returns: False if nothing was written: it must be handed over as usual. Otherwise ``reply`` is settled, or the
            owner will settle it
        """
        lender, slot, sock = self._lender, self._slot, self._sock
        trip = Trip(command, reply)
        give_back = partial(slot.append, trip)
        is_quiet = time.monotonic() - lender.last_received_at > self._quiet
        if self.busy or self._ending or is_quiet:  # busy: this is a signal handler in the middle of a publish
            return False
        self.busy = True
        self._count += 1
        try:
            if not self._poll(0):  # otherwise a heartbeat or the end of the stream has come
                trip.extend(map(_step, (slot.pop, partial(sock.send, command), give_back)))
                if trip.sent == len(command) and self._poll(self._patience_ms):
                    trip.extend(map(_step, (slot.pop, partial(sock.recv, _READ_BYTES), give_back)))
                    if trip.received == OK_FRAME:
                        lender.last_received_at = time.monotonic()
                        trip.extend(map(_step, (slot.pop, partial(slot.append, None))))
                        reply.settle()  # now that the owner cannot do it, too
        except IndexError:
            pass  # the owner has taken the connection, and the trip with it
        except OSError:
            if not slot:  # the owner will meet the error, too
                slot.append(trip if trip.sent else None)
        finally:
            self.busy = False
            if self._ending or not reply.done:
                self._ending = True
                self._owner.call(self.end)
        return trip.sent > 0

    # -- in the owner's thread ----------------------------------------------------------------------

    def recall(self) -> bool:
        """End the lease: now if it is idle, otherwise after the publish under way. Never switches.

        :returns: whether it has ended
        """
        self._ending = True
        if self._slot == [None]:
            self.end()
        return self.over.done

    def _tick(self) -> None:
        if self._count == self._seen:
            self.end()  # idle, or stuck
        self._seen = self._count

    def end(self) -> None:
        """Take the connection back now, with the publish under way; twice is fine. Never switches."""
        if self.over.done:
            return
        self._ending = True
        self._ticks.close()
        while True:
            try:
                trip = self._slot.pop()
                break
            except IndexError:
                native.sleep(_MOMENT)
        if trip is not None:
            self.left = trip.reply
        self._lender.take_back(trip)
        self.over.settle()

    def let_go(self, loop_lives: bool) -> None:
        """In a forked child: the borrower, if it is here, writes and reads nothing more. Never switches."""
        self._ending = True
        self._slot.clear()
        if loop_lives:
            self._ticks.close()
