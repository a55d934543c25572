"""Waiting for a publish: one mechanism for all kinds of callers.

A publish is handed over to the thread of the connections (:func:`publish_and_wait`), which calls the publish's links
once its outcome is known. A link wakes the caller in its own way. Every wait has the same three parts: wait until the
deadline, and GRACE longer if another thread must report the outcome; withdraw a publish that is not settled by then
(:func:`withdraw`); and after an interruption, give the publish up (:func:`give_up`), which changes nothing on the wire.

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

import gevent
from gevent import Greenlet, getcurrent, monkey
from gevent._hub_local import get_hub_if_exists
from gevent.event import AsyncResult

from gnsq_like.errors import InvalidOption, NotSent, UsageError
from gnsq_like.producer.publish import Publish
from gnsq_like.producer.running import Running
from gnsq_like.runtime import native
from gnsq_like.runtime.hub_calls import CrossThreadWait, HubHandle, call_here, may_wait_here

if TYPE_CHECKING:
    import asyncio


#: Seconds after a publish's deadline in which the thread of the connections may report its outcome to another. They
#: are waited for separately: when the whole process has stood still until then, that thread gets them, too.
GRACE = 0.1


def withdraw(publish: Publish, there: HubHandle) -> None:
    """End a publish that the thread of the connections has not settled in time. Never switches."""
    if not publish.done:
        publish.withdraw()
        there.call(publish.withdrawn)


def give_up(publish: Publish, there: HubHandle) -> None:
    """The wait for this publish was interrupted. Never switches."""
    publish.forget()  # now: its thread may have what it waits for before the call
    there.call(publish.abandon)


def publish_and_wait(running: Running, publish: Publish, now: float) -> None:
    """Send a publish, and wait until it is settled. From any thread; may switch, or block.

    :param now: monotonic time
    :raises PublishError: if it is not confirmed
    """
    here = native.thread_id() == running.thread
    if (here and running.beginning) or (get_hub_if_exists() is not None and not may_wait_here()):
        raise NotSent(
            "publish() cannot wait in the hub or in a signal handler that interrupts it; "
            "use publish_async() there, or gevent.signal_handler()"
        )
    if not here:
        _wait_elsewhere(running, publish, now)
    else:
        try:
            running.begin(publish, now)
            if publish.done:
                gevent.sleep(0)  # it failed; a caller that tries again in a loop must not keep the hub from running
            else:
                publish.wait_in(running.hub_handle.hub)
        except BaseException:
            publish.abandon()
            raise
    if publish.error is not None:
        # A batch or a lost connection settles many publishes with the same error; each needs its own traceback.
        raise publish.error.with_traceback(None)


def _wait_elsewhere(running: Running, publish: Publish, now: float) -> None:
    """In another thread than that of the connections."""
    there = running.hub_handle
    wait = CrossThreadWait(publish)
    try:
        there.call(running.begin, publish, now)
        answered = wait.wait(publish.deadline - now) or wait.wait(GRACE)
    except BaseException:
        give_up(publish, there)
        raise
    if not answered:
        withdraw(publish, there)


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

    def __init__(self, publish: Publish, there: HubHandle) -> None:
        super().__init__()
        self._publish = publish
        self._there = there
        publish.link(self._settled if there.here else call_here(self._settled))

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

    def end(self) -> None:
        """End the publish, if its thread has not settled it by its deadline. Never switches."""
        withdraw(self._publish, self._there)
        self._settled()

    def give_up(self) -> None:
        """Nobody waits any more: it is not sent, if it was not sent yet. Never switches."""
        give_up(self._publish, self._there)

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
            withdraw(publish, there)
        self._settled()
