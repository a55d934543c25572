"""Greenlets of one hub that publish through the hub of another thread.

To wake the other thread costs as much as several publishes, and so does a timer for each. So the publishes of all
greenlets that run in one iteration of their hub are handed over together and leave in one write. One timer for all ends
those that the other thread has not settled in time.

Rules for editors: ``begin_all`` runs in the pool's hub, all else here. A publish is handed over by ``_hand_over`` only,
and ``caller`` is written here only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gevent import getcurrent

from gnsq_like.producer.deadlines import Deadlines
from gnsq_like.producer.publish import Publish
from gnsq_like.producer.result import GRACE, withdraw
from gnsq_like.runtime.hub_calls import HubHandle, handle_here
from gnsq_like.runtime.timer import Soon


class Callers:
    """The greenlets of this thread that publish; made in it.

    :param there: the hub of the connections
    :param begin_all: sends publishes, given with the times they were made; called there
    """

    def __init__(self, there: HubHandle, begin_all: Callable[[list[tuple[Publish, float]]], object]) -> None:
        self._here = handle_here()
        self.hub: Any = self._here.hub
        self._run_callback: Callable[[Callable[[], None]], Any] = self.hub.loop.run_callback
        self._hand_over_soon = Soon(self.hub.loop, self._hand_over)
        self._there = there
        self._begin_all = begin_all
        #: How many greenlets wait. While there are any, the timer also keeps the hub from raising LoopExit.
        self._waiting = 0
        #: Publishes of this iteration of the hub.
        self._gathered: list[tuple[Publish, float]] = []
        self._deadlines = Deadlines(int, expire=self._give_up, grace=GRACE)

    def publish(self, publish: Publish, now: float) -> None:
        """Send a publish, and wait until it is settled. May switch."""
        publish.caller = getcurrent()
        publish.link(partial(self._here.call, self._resume, publish))
        self._hand_over_soon()
        self._gathered.append((publish, now))
        self._deadlines.add(publish)
        switch = self.hub.switch
        self._waiting += 1
        try:
            while not publish.done:
                switch()
        except BaseException:
            publish.forget()  # now: its thread may have what it waits for before the call
            self._there.call(publish.abandon)
            raise
        finally:
            publish.caller = None
            self._waiting -= 1
            if not self._waiting:
                self._deadlines.close()

    def _hand_over(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._there.call(self._begin_all, gathered)

    @staticmethod
    def _resume(publish: Publish) -> None:
        if publish.caller is not None:
            publish.caller.switch()

    def _give_up(self, publish: Publish) -> None:
        withdraw(publish, self._there)
        self._run_callback(partial(self._resume, publish))
