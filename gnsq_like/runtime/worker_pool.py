"""Handlers run in worker greenlets, as few as possible: those that are blocked, and one more.

A handler that never blocks needs one greenlet, however many messages there are: the same worker takes the queue's
next item. If the hub gets control while items wait, every worker is blocked or idle; only then another is woken or
started, up to ``concurrency``. ``_pump`` does that: it is scheduled whenever items wait, and runs in the hub.

The hub polls its sockets only after it has run its callbacks, possibly dozens of them. So items are begun only within
``SLICE`` after the last known poll: ``_after_poll`` notes the time. A timer calls it, because the hub polls the sockets
before it serves timers. A worker that has used up the slice goes idle, and the pump continues after the next timer. So
heartbeats are answered and FINs leave, however much CPU the handlers use. If handlers block, this costs one iteration
of the hub per slice.

Each call has a fresh copy of the context in which the pool was made, so that no item sees what another has left in a
ContextVar.

Rules for editors: code that leaves items in the queue schedules the pump (``_pump_soon``). ``put`` never switches;
``_pump`` and ``_after_poll`` run in the hub.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

import gevent
from gevent import get_hub
from gevent.hub import Waiter

from gnsq_like.runtime.dispatcher import log_soon

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Seconds after a poll of the sockets in which items are begun: far below a heartbeat, far above a switch's cost.
SLICE = 0.010


class WorkerPool(Generic[_T]):
    """Calls ``handle(item)`` for every item put, concurrently as far as ``handle`` blocks.

    Belongs to the hub in which it is made, and its calls to that place's context.

    :param handle: called in a worker greenlet; must handle its own exceptions. GreenletExit may pass: the worker ends,
        so that ``kill`` of the greenlet in which an item is handled returns
    :param concurrency: how many calls of ``handle`` may run at once, at least 1
    :param spawn: starts a greenlet, as gevent.spawn
    :param failed: called with an item that ``handle`` did not begin, or whose exception it has not handled, because it
        was interrupted
    """

    def __init__(
        self,
        handle: Callable[[_T], object],
        concurrency: int,
        *,
        spawn: Callable[..., Any] = gevent.spawn,
        failed: Callable[[_T, Exception], object],
    ) -> None:
        self._handle = handle
        self._failed = failed
        self._spawn = spawn
        self.concurrency = concurrency
        self._fresh_context: Callable[[], Context] = copy_context().copy
        self._loop = get_hub().loop
        self._queue: deque[_T] = deque()
        #: Idle workers, the most recent last.
        self._idle: list[Any] = []
        self._greenlets: dict[Any, None] = {}
        #: Running calls of ``handle``.
        self.busy = 0
        #: Whether ``_pump`` or ``_after_poll`` is scheduled.
        self._pump_due = False
        #: Monotonic time of the hub's last known poll of its sockets.
        self._polled_at = 0.0
        self._stopped = False

    @property
    def waiting(self) -> int:
        """Items that no worker has begun."""
        return len(self._queue)

    def is_worker(self, greenlet: object) -> bool:
        """Whether ``greenlet`` is one of the workers, which must not wait for all of them."""
        return greenlet in self._greenlets

    def put(self, items: Iterable[_T], polled_at: float = 0.0) -> None:
        """Queue items. Never switches.

        :param polled_at: when the hub polled its sockets, if the caller knows
        """
        self._queue.extend(items)
        if polled_at > self._polled_at:
            self._polled_at = polled_at
        if not self._pump_due:
            self._pump_soon()

    def begin_waiting(self) -> None:
        """Schedule the pump, as is done whenever items wait. Never switches."""
        self._pump_due = False
        self._pump_soon()

    def set_concurrency(self, concurrency: int) -> None:
        """Set how many items may be handled at once; a lower number takes effect as handlers end. Never switches."""
        self.concurrency = concurrency
        self._pump_soon()

    def take_waiting(self) -> list[_T]:
        """Remove and return the items that no worker has begun. Never switches."""
        taken = list(self._queue)
        self._queue.clear()
        return taken

    def stop(self) -> None:
        """Begin no further item; idle workers end now, the others after their item. Never switches."""
        self._stopped = True
        for waiter in self._idle:
            self._loop.run_callback(waiter.switch, None)
        self._idle.clear()

    def kill(self, timeout: float | None = 1.0) -> None:
        """Stop, and throw GreenletExit into all workers except the caller. May switch.

        :param timeout: seconds to wait until they have ended
        """
        self.stop()
        others = [each for each in self._greenlets if each is not gevent.getcurrent()]
        gevent.killall(others, block=False)
        gevent.joinall(others, timeout)

    # -- in the hub: every worker is blocked or idle ------------------------------------------------

    def _pump_soon(self) -> None:
        if self._queue and not self._pump_due:
            self._pump_due = True
            self._loop.run_callback(self._pump)

    def _pump(self) -> None:
        """Wake or start one worker, if there is work for it."""
        self._pump_due = False
        if not self._queue or self._stopped or self.busy >= self.concurrency:
            return
        if time.monotonic() - self._polled_at > SLICE:
            self._pump_due = True
            timer = self._loop.timer(0)
            timer.start(self._after_poll, timer)
        elif self._idle:
            self._idle.pop().switch(None)
            if self._queue:
                self._pump_soon()
        else:
            worker = self._spawn(self._work)
            self._greenlets[worker] = None
            worker.switch()  # now, before the callbacks that are due after the handlers
            self._pump_soon()

    def _after_poll(self, timer: Any) -> None:
        timer.close()
        self._polled_at = time.monotonic()
        self._pump()

    # -- in a worker --------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while True:
                self._take()
                if self._stopped:
                    return
                waiter: Any = Waiter(get_hub())
                self._idle.append(waiter)
                try:
                    waiter.get()
                finally:
                    if waiter in self._idle:  # killed
                        self._idle.remove(waiter)
        except gevent.GreenletExit:
            log_soon(logger.debug, "a worker was killed")
        except gevent.Timeout as exc:
            log_soon(logger.warning, "a handler returned without cancelling its gevent.Timeout: %s", exc)
        finally:
            self._greenlets.pop(gevent.getcurrent(), None)
            self._pump_soon()

    def _take(self) -> None:
        """Handle items until none are left to begin, or the slice is used up."""
        queue = self._queue
        handle = self._handle
        fresh_context = self._fresh_context
        # Once for all of them: others run, and can look, only while an item is handled.
        self.busy += 1
        item: _T | None = None
        try:
            while queue and not self._stopped and self.busy <= self.concurrency:
                item = queue[0]  # no popleft(): interrupted as it returns, it would lose the item
                del queue[0]
                if queue and not self._pump_due:
                    self._pump_soon()
                fresh_context().run(handle, item)
                item = None
                if time.monotonic() - self._polled_at > SLICE:
                    break
        except Exception as exc:
            if item is not None:
                self._failed(item, exc)
        finally:
            self.busy -= 1
        if queue:
            self._pump_soon()
