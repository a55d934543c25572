"""The pending reply to one command; any number of greenlets of the connection's thread may wait for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from gevent import get_hub
from gevent.hub import Waiter

from gnsq_like.runtime.dispatcher import log_soon
from gnsq_like.runtime.timer import make_timer

logger = logging.getLogger(__name__)


class PendingReply:
    """Settled once, with an error or with None for success; later settlements change nothing.

    Lighter than a gevent AsyncResult; a waiter that is killed or times out does not affect it.
    """

    __slots__ = ("_links", "done", "end", "error", "size")

    #: Bytes of the command, and where it ends in the stream of all bytes put on its connection; the connection's.
    size: int
    end: int

    def __init__(self) -> None:
        self.done: bool = False
        #: The error, once ``done``; None for success.
        self.error: Exception | None = None
        self._links: list[Callable[[], object]] | None = None

    def settle(self, error: Exception | None = None) -> None:
        """Set the outcome. Waiting greenlets resume in the hub's next iteration. Never switches."""
        if not self.done:
            self.error = error
            self.done = True
        if self._links is not None:
            self._call_links()

    def failed(self, error: Exception) -> None:
        """An attempt failed: settle it with this error, unless a subclass tries again. Never switches."""
        self.settle(error)

    def _call_links(self) -> None:
        links, self._links = self._links, None
        for link in links or ():
            try:
                link()
            except Exception as exc:
                # Whoever settles this has others to settle: a timer would not fire again, a connection would end.
                log_soon(logger.error, "%r, called with an outcome, failed", link, exc_info=exc)

    def forget(self) -> None:
        """Mark as settled without calling the links, because the waiter is gone. Never switches."""
        self.done = True
        self._links = None

    def link(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when settled, now if it already is; it must not switch or raise."""
        if self.done:
            callback()
        elif self._links is None:
            self._links = [callback]
        else:
            self._links.append(callback)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until settled; returns False after ``timeout`` seconds. May switch."""
        if self.done:
            return True
        if timeout is not None and timeout <= 0:
            return False
        hub = get_hub()
        waiter: Any = Waiter(hub)
        loop = hub.loop

        def wake() -> None:
            loop.run_callback(waiter.switch, None)

        self.link(wake)
        timer = None if timeout is None else make_timer(loop, timeout)
        try:
            if timer is not None:
                timer.start(waiter.switch, None)
            waiter.get()
        finally:
            if timer is not None:
                timer.close()
            if self._links is not None and wake in self._links:
                self._links.remove(wake)
        return self.done
