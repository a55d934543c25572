"""Waiting for a publish otherwise than in ``Producer.publish``: its result, and asyncio.

The thread of the connections calls the publish's links once its outcome is known. A link wakes the caller in its own
way. Every wait has the same three parts: wait until the deadline, and GRACE longer if another thread must report the
outcome; withdraw a publish that is not settled by then (``Publish.withdraw``); and after an interruption, give the
publish up (``Publish.give_up``), which changes nothing on the wire.

=================================  =============================================================================
Caller                             How it waits
=================================  =============================================================================
a greenlet beside the connections  ``Publish.wait_in`` (``publish``): in its hub; the pool's deadlines
any other thread                   ``CrossThreadWait`` (``hub_calls``): in its hub, or on a lock without one
somebody later, or nobody          ``PublishResult``, an AsyncResult for all of these, and for asyncio tasks
=================================  =============================================================================
"""

from __future__ import annotations

import pickle  # noqa: F401 - AsyncResult.set_exception imports it, which fails without file descriptors
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from gevent import Greenlet, getcurrent, monkey
from gevent.event import AsyncResult

from gnsq_like.errors import InvalidOption, UsageError
from gnsq_like.producer.publish import GRACE, Publish
from gnsq_like.runtime.hub_calls import HubHandle, call_here

if TYPE_CHECKING:
    import asyncio


# -- asyncio --------------------------------------------------------------------------------------------------------


def check_asyncio(there: HubHandle) -> None:
    """For ``apublish``. Never switches.

    :raises UsageError: in a greenlet of a patched process: asyncio has one loop in a thread, so that others fail
    :raises InvalidOption: if the connections are in the thread of the event loop, which does not run their hub
    """
    if monkey.is_module_patched("threading") and isinstance(getcurrent(), Greenlet):
        raise UsageError(
            "apublish() was called in a greenlet of a monkey-patched process, such as a gevent worker of gunicorn, "
            "where a second event loop beside this one fails; call publish() in a plain function: other greenlets run "
            "while it waits"
        )
    if there.here and not monkey.is_module_patched("select"):
        raise InvalidOption(
            "own_thread",
            False,
            "apublish() needs the connections in another thread, because the event loop keeps this one",
        )


def set_future(future: asyncio.Future[None]) -> None:
    """Complete a future of an event loop. From any thread; never switches."""

    def complete() -> None:
        if not future.done():
            future.set_result(None)

    with suppress(RuntimeError):  # the loop is closed, and nobody waits
        future.get_loop().call_soon_threadsafe(complete)


# -- publish_async --------------------------------------------------------------------------------------------------


if TYPE_CHECKING:

    class _Result(AsyncResult[None]):  # generic in types-gevent, not when the program runs
        pass
else:
    _Result = AsyncResult


class PublishResult(_Result):
    """The result of ``publish_async``: gevent's AsyncResult, which any thread may wait for."""

    if TYPE_CHECKING:  # gevent has no types
        #: Why it failed; None until then.
        exception: BaseException | None

        def ready(self) -> bool: ...
        def successful(self) -> bool: ...

    def __init__(self, publish: Publish) -> None:
        super().__init__()
        self._publish = publish
        self._there = publish.owner.hub_handle
        publish.link(self._settled if self._there.here else call_here(self._settled))

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
        if block and not self.ready() and not self._there.here:
            self._wait_elsewhere(timeout)
            block, timeout = False, None
        super().get(block, timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until ready, or for ``timeout`` seconds. Next: ``ready()``, ``exception``."""
        if not self.ready() and not self._there.here:
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

        if self._there.here:
            publish.link(done)
        else:
            self._there.call(publish.link, done)

    def _wait_elsewhere(self, timeout: float | None) -> None:
        publish, there = self._publish, self._there
        limit = publish.deadline - time.monotonic()
        if timeout is not None and timeout < limit + GRACE:
            if not there.wait(publish, timeout):
                return
        elif not (there.wait(publish, limit) or there.wait(publish, GRACE)):
            publish.withdraw()
        self._settled()
