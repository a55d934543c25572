"""The result of ``publish_async``, and the end of a wait in another thread than that of the connections."""

from __future__ import annotations

import pickle  # noqa: F401 - AsyncResult.set_exception imports it, which fails without file descriptors
import time
from collections.abc import Callable

from gevent.event import AsyncResult

from gnsq_like.producer.publish import Publish
from gnsq_like.runtime.hub_calls import HubHandle, call_here

#: Seconds after a publish's deadline in which the thread of the connections may report its outcome to another. They
#: are waited for separately: when the whole process has stood still until then, that thread gets them, too.
GRACE = 0.1


def withdraw(publish: Publish, hub_handle: HubHandle) -> None:
    """End a publish that the thread of the connections has not settled in time. Never switches."""
    if not publish.done:
        publish.withdraw()
        hub_handle.call(publish.withdrawn)


class PublishResult(AsyncResult):
    """The result of ``publish_async``: gevent's AsyncResult, which any thread may wait for."""

    def __init__(self, publish: Publish, hub_handle: HubHandle) -> None:
        super().__init__()
        self._publish = publish
        self._hub_handle = hub_handle
        if hub_handle.here:
            publish.link(self._settled)
        else:
            publish.link(call_here(self._settled))

    def _settled(self) -> None:
        # In the thread that made this, where gevent.wait() expects it, or in a waiting thread.
        if self.ready():
            return
        if self._publish.error is None:
            self.set(None)
        else:
            self.set_exception(self._publish.error)

    def get(self, block: bool = True, timeout: float | None = None) -> None:
        """Return None after nsqd's OK; raises like ``publish``, and gevent.Timeout after ``timeout`` seconds."""
        if block and not self.ready() and not self._hub_handle.here:
            self._wait_elsewhere(timeout)
            block, timeout = False, None
        super().get(block, timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until ready, or for ``timeout`` seconds. Next: ``ready()``, ``exception``."""
        if not self.ready() and not self._hub_handle.here:
            self._wait_elsewhere(timeout)
        else:
            super().wait(timeout)

    def add_done_callback(self, callback: Callable[[Exception | None], object]) -> None:
        """Call ``callback(error)`` once the outcome is known; the error is None after nsqd's OK. From any thread.

        It is called in the thread of the connections, and must not block.
        """
        publish = self._publish

        def done() -> None:
            callback(publish.error)

        if self._hub_handle.here:
            publish.link(done)
        else:
            self._hub_handle.call(publish.link, done)

    def _wait_elsewhere(self, timeout: float | None) -> None:
        publish, hub_handle = self._publish, self._hub_handle
        limit = publish.deadline - time.monotonic()
        if timeout is not None and timeout < limit + GRACE:
            if not hub_handle.wait(publish, timeout):
                return
        elif not (hub_handle.wait(publish, limit) or hub_handle.wait(publish, GRACE)):
            withdraw(publish, hub_handle)
        self._settled()
