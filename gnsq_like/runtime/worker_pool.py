"""Handlers run in worker greenlets, as many as are blocked and one more.

A handler that never blocks is served by one greenlet, however many messages there are: the queue's
next item is taken by the same worker. Only when the hub gets control while items wait, which means that
every worker is blocked or idle, is one woken or started, up to ``concurrency``. That is what ``_pump``
does: it is due whenever items wait, and runs in the hub.

The hub looks at its sockets only when its callbacks are done, and it may run dozens of them in a row. So
items are begun only within ``SLICE`` after it last looked, as far as we know: ``_fresh`` notes the
time, from a timer, which the hub never serves without looking at the sockets. A worker that finds the
slice used up goes idle, and the pump goes on behind the next timer. Then heartbeats are answered and FINs
leave, whatever CPU the handlers take. Where handlers block this costs one more round of the hub per slice.

Rules for editors: whoever leaves items in the queue makes the pump due (``_pump_soon``). ``put`` never
switches; ``_pump`` and ``_fresh`` run in the hub.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Generic, TypeVar

import gevent
from gevent import get_hub
from gevent.hub import Waiter

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Seconds without a look at the sockets in which items are begun: far below a heartbeat, far above a switch's cost.
SLICE = 0.010


class WorkerPool(Generic[_T]):
    """Calls ``handle(item)`` for every item put, concurrently as far as ``handle`` blocks.

    Belongs to the hub in which it is made.

    :param handle: called in a worker greenlet; must meet what can be raised there
    :param concurrency: how many may be inside ``handle`` at once, at least 1
    :param spawn: starts a greenlet, as gevent.spawn
    """

    def __init__(
        self,
        handle: Callable[[_T], object],
        concurrency: int,
        *,
        spawn: Callable[..., Any] = gevent.spawn,
    ) -> None:
        self._handle = handle
        self._spawn = spawn
        #: May be changed at any time, then ``put(())``; less takes effect as handlers end.
        self.concurrency = concurrency
        self._loop = get_hub().loop
        self._queue: deque[_T] = deque()
        #: Workers that wait for work, the one that waits shortest last.
        self._idle: list[Any] = []
        self._greenlets: set[Any] = set()
        #: How many are inside ``handle``.
        self.busy = 0
        #: Whether the hub is going to call ``_pump`` or ``_fresh``.
        self._pump_due = False
        #: Monotonic time at which the hub is known to have looked at its sockets.
        self._fresh_at = 0.0
        self._stopped = False

    @property
    def waiting(self) -> int:
        """How many items no worker has begun."""
        return len(self._queue)

    def is_worker(self, greenlet: object) -> bool:
        """Whether ``greenlet`` is one of the workers, so that waiting for all of them would be for ever."""
        return greenlet in self._greenlets

    def put(self, items: Iterable[_T]) -> None:
        """Queue items. Never switches."""
        self._queue.extend(items)
        self._pump_soon()

    def take_waiting(self) -> list[_T]:
        """Take back what no worker has begun. Never switches."""
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
        """Stop, and throw GreenletExit into what is inside ``handle``; the caller is spared. May switch.

        :param timeout: seconds to wait for the end of what was killed
        """
        self.stop()
        gevent.killall([each for each in self._greenlets if each is not gevent.getcurrent()], timeout=timeout)

    # -- in the hub: every worker is blocked or idle ------------------------------------------------

    def _pump_soon(self) -> None:
        if self._queue and not self._pump_due:
            self._pump_due = True
            self._loop.run_callback(self._pump)

    def _pump(self) -> None:
        """Have one more worker take from the queue, if that is right."""
        self._pump_due = False
        if not self._queue or self._stopped or self.busy >= self.concurrency:
            return
        if monotonic() - self._fresh_at > SLICE:
            self._pump_due = True
            timer = self._loop.timer(0)
            timer.start(self._fresh, timer)
        elif self._idle:
            self._idle.pop().switch(None)
            self._pump_soon()
        else:
            self._greenlets.add(self._spawn(self._work))
            self._pump_soon()

    def _fresh(self, timer: Any) -> None:
        timer.close()
        self._fresh_at = monotonic()
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
                except BaseException:
                    if waiter in self._idle:
                        self._idle.remove(waiter)
                    raise
        except gevent.GreenletExit:
            logger.debug("a worker was killed between two items")
        except gevent.Timeout as exc:
            logger.warning("a handler left a timeout running: %s", exc)
        finally:
            self._greenlets.discard(gevent.getcurrent())
            self._pump_soon()

    def _take(self) -> None:
        """Handle items until there are none to begin, or the slice is used up."""
        queue = self._queue
        handle = self._handle
        while queue and not self._stopped and self.busy < self.concurrency:
            item = queue.popleft()
            self.busy += 1
            if not self._pump_due:
                self._pump_soon()
            try:
                handle(item)
            except Exception:
                logger.exception("%r raised, which it must not", handle)
            finally:
                self.busy -= 1
            if monotonic() - self._fresh_at > SLICE:
                break
        self._pump_soon()
