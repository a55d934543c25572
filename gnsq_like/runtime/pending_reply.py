"""The answer to one command, waited for by any number of greenlets of the connection's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gevent import Timeout, get_hub
from gevent.hub import Waiter


class PendingReply:
    """Settled once, with an error or with None for success; later settlements are ignored.

    Lighter than a gevent AsyncResult, and killing or timing out a waiter changes nothing here.
    """

    __slots__ = ("_links", "done", "end", "error", "size")

    def __init__(self, size: int = 0, end: int = 0) -> None:
        #: Bytes of the command.
        self.size = size
        #: Where the command ends in the stream of all bytes put on its connection.
        self.end = end
        self.done = False
        #: What went wrong, once ``done``; None for success.
        self.error: Exception | None = None
        self._links: list[Callable[[], object]] | None = None

    def settle(self, error: Exception | None = None) -> None:
        """The answer is there. Never switches: waiting greenlets go on when the hub comes round."""
        if self.done:
            return
        self.done = True
        self.error = error
        links, self._links = self._links, None
        if links:
            for link in links:
                link()

    def forget(self) -> None:
        """Count as settled without calling the links: whoever waited is gone. Never switches."""
        self.done = True
        self._links = None

    def link(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when settled, at once if it is; it must not switch and must not raise."""
        if self.done:
            callback()
        elif self._links is None:
            self._links = [callback]
        else:
            self._links.append(callback)

    def unlink(self, callback: Callable[[], object]) -> None:
        """Forget a link that was made, unless it was called already."""
        if self._links is not None and callback in self._links:
            self._links.remove(callback)

    @staticmethod
    def settle_all(replies: Iterable[PendingReply]) -> int:
        """Settle several with success, at a third of the cost of one by one. Never switches.

        :returns: how many were not settled before
        """
        count = 0
        for reply in replies:
            if not reply.done:
                reply.done = True
                count += 1
                links, reply._links = reply._links, None
                for link in links or ():
                    link()
        return count

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until settled; False if ``timeout`` seconds passed first. May switch."""
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
        timer = None if timeout is None else loop.timer(timeout)
        try:
            if timer is not None:
                timer.start(waiter.switch, None)
            waiter.get()
        finally:
            if timer is not None:
                timer.close()
            # Settled, it has let go of its links; only a wait that ended sooner looks for its own.
            if not self.done:
                self.unlink(wake)
        return self.done

    def get(self, timeout: float | None = None) -> None:
        """Wait, and raise the error if there is one; gevent.Timeout after ``timeout`` seconds. May switch."""
        if not self.wait(timeout):
            raise Timeout(timeout)
        if self.error is not None:
            raise self.error
