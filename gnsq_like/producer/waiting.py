"""Waiting for a publish: one mechanism, with a face for each kind of caller.

A publish is handed over to the thread of the connections, which calls its links when it is settled. A link wakes the
caller in its own way. Whoever waits does the same three things: it waits until the deadline, and GRACE longer where
another thread must report the outcome; it withdraws a publish that is not settled then (:func:`withdraw`); and if it is
interrupted, it gives the publish up (:func:`give_up`), which changes nothing on the wire.

================================  ==============================================================================
Caller                            How it waits
================================  ==============================================================================
a greenlet beside the connections  ``Publish.wait_in`` its hub; the pool's deadlines
greenlets of another hub           ``Callers``: handed over together, one timer for all
a thread without a hub             on a lock (``CrossThreadWait``)
an asyncio task                    a future of its event loop (:func:`publish_from_loop`)
nobody, or somebody later          ``PublishResult``, an AsyncResult for all of these
================================  ==============================================================================

``Running`` is what a started Producer is made of, and the ways into its pool, called in the pool's thread only.
"""

from __future__ import annotations

import pickle  # noqa: F401 - AsyncResult.set_exception imports it, which fails without file descriptors
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent
from gevent import Greenlet, getcurrent, monkey
from gevent._hub_local import get_hub_if_exists
from gevent.event import AsyncResult

from gnsq_like.errors import InvalidOption, NotSent, UsageError
from gnsq_like.producer.deadlines import Deadlines
from gnsq_like.producer.pool import Pool
from gnsq_like.producer.publish import Publish, resume
from gnsq_like.runtime import native
from gnsq_like.runtime.hub_calls import CrossThreadWait, HubHandle, call_here, handle_here, may_wait_here
from gnsq_like.runtime.timer import Gathering


class _Local(native.local):
    """What ``waiting`` keeps for each thread that publishes."""

    callers: Callers | None = None


class Running:
    """The parts of a started Producer: made by the first publish, until a fork, close, or the end of their thread."""

    __slots__ = ("beginning", "hub_handle", "local", "pool", "thread")

    def __init__(self, hub_handle: HubHandle, pool: Pool) -> None:
        self.hub_handle = hub_handle
        self.thread = hub_handle.thread
        self.pool = pool
        #: Whether ``begin`` runs: a signal handler that interrupts it can begin no other.
        self.beginning = False
        self.local = _Local()

    def begin(self, publishes: list[Publish], now: float) -> None:
        """Send publishes that came together, in one write for each connection. In the pool's thread; never switches."""
        pool = self.pool
        try:
            self.beginning = True
            if pool.batching is not None and pool.nsqds.circuit.reason is None:
                publishes = pool.batching.add(publishes)
            if publishes:
                try:
                    pool.send(publishes, now)
                finally:
                    pool.deadlines.add(publishes)  # last, because that costs no time while nsqd works on its answer
        finally:
            self.beginning = False

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is pending; False after ``timeout`` seconds. In the pool's thread; may switch."""
        if self.pool.batching is not None:
            self.pool.batching.flush()
        return self.pool.is_drained() or self.pool.when(self.pool.is_drained).wait(timeout)

    def end(self, timeout: float) -> bool:
        """Drain and close. In the pool's thread; may switch."""
        try:
            return self.drain(timeout)
        finally:
            self.pool.close()


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
    if native.thread_id() == running.thread:
        if running.beginning or not may_wait_here():
            raise NotSent(
                "publish() cannot wait in the hub or in a signal handler that interrupts it; "
                "use publish_async() there, or gevent.signal_handler()"
            )
        try:
            running.begin([publish], now)
            if publish.done:
                gevent.sleep(0)  # it failed; a caller that tries again in a loop must not keep the hub from running
            else:
                publish.wait_in(running.hub_handle.hub, running.pool.awake)
        except BaseException:
            publish.abandon()
            raise
    elif (hub := get_hub_if_exists()) is not None:
        callers = running.local.callers
        if callers is None or callers.hub is not hub:
            callers = running.local.callers = Callers(running)
        callers.waiting += 1
        try:
            callers.hand_over_soon(publish)
            publish.wait_in(hub, callers.settled)
        except BaseException:
            give_up(publish, running.hub_handle)
            raise
        finally:
            callers.waiting -= 1
    else:
        _wait_without_a_hub(running, publish, now)
    if publish.error is not None:
        # A batch or a lost connection settles many publishes with the same error; each needs its own traceback.
        raise publish.error.with_traceback(None)


def _wait_without_a_hub(running: Running, publish: Publish, now: float) -> None:
    there = running.hub_handle
    wait = CrossThreadWait(publish)
    try:
        there.call(running.begin, [publish], now)
        answered = wait.wait(publish.deadline - now) or wait.wait(GRACE)
    except BaseException:
        give_up(publish, there)
        raise
    if not answered:
        withdraw(publish, there)


# -- greenlets of another hub ---------------------------------------------------------------------------------------


class Callers:
    """The greenlets of one hub that publish through the hub of another thread; made in their thread.

    To wake the other thread costs as much as several publishes, and so does a timer for each. So the publishes of all
    greenlets that run in one iteration of their hub are handed over together and leave in one write, and those that are
    settled in one iteration of the other hub are handed back together. One timer for all ends those that the other
    thread has not settled in time.

    Rules for editors: ``settled`` belongs to the other thread, and ``_hand_back`` runs there.
    """

    def __init__(self, running: Running) -> None:
        self._here = handle_here()
        self.hub: Any = self._here.hub
        self._running = running
        self._there = running.hub_handle
        #: The publishes of this iteration of this hub.
        self._new: Gathering[Publish] = Gathering(self.hub.loop, self._hand_over)
        #: Those that were settled in one of the other hub.
        self.settled: Gathering[Publish] = Gathering(self._there.hub.loop, self._hand_back)
        #: How many greenlets wait. While there are any, the looks also keep the hub from raising LoopExit.
        self.waiting = 0
        #: Those whose greenlets are to be resumed.
        self._back: list[Publish] = []
        self._deadlines = Deadlines(self._look, expire=self._withdraw, grace=GRACE)

    def hand_over_soon(self, publish: Publish) -> None:
        """Hand a publish over, with the others of this iteration of the hub. Never switches."""
        if not self._new:
            self._deadlines.arm(publish.deadline + GRACE)  # looks begin now: an interrupted hand-over is made then
        self._new.add(publish)

    def _look(self) -> None:
        """What an exception of a signal handler kept from being done is done now, in both threads."""
        self._here.look()
        self._new.look()
        self._there.call(self.settled.look)
        if self._back:
            self._resume()

    def _hand_over(self, publishes: list[Publish]) -> None:
        self._deadlines.add(publishes)
        self._there.call(self._running.begin, _take(publishes), time.monotonic())

    def _hand_back(self, publishes: list[Publish]) -> None:
        # First without a function of Python, which a signal handler could interrupt before it has done anything.
        self._here.call(self._back.extend, _take(publishes))
        self._here.call(self._resume)

    def _resume(self) -> None:
        try:
            resume(self._back)
        finally:
            if self._back:
                self.hub.loop.run_callback(self._resume)
            if not self.waiting:
                self._deadlines.close()

    def _withdraw(self, publish: Publish) -> None:
        withdraw(publish, self._there)
        self._back.append(publish)
        self.hub.loop.run_callback(self._resume)


def _take(publishes: list[Publish]) -> list[Publish]:
    """These, of which none are left in the list: at most they get lost, and none is handed over twice."""
    taken = publishes.copy()
    publishes.clear()
    return taken


# -- asyncio --------------------------------------------------------------------------------------------------------


async def publish_from_loop(running: Running, publish: Publish, now: float) -> None:
    """As :func:`publish_and_wait`, in a task of an asyncio event loop, which nothing here blocks.

    :raises PublishError: if it is not confirmed
    :raises UsageError: in a greenlet of a patched process: asyncio has one loop in a thread, so that others fail
    """
    import asyncio  # programs without it need not load it

    there = running.hub_handle
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
    loop = asyncio.get_running_loop()
    settled = loop.create_future()

    def settle() -> None:
        if not settled.done():
            settled.set_result(None)

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(settle)

    publish.link(wake)
    there.call(running.begin, [publish], now)
    timer = loop.call_later(publish.deadline - now, lambda: loop.call_later(GRACE, settle))
    try:
        await settled
    except BaseException:
        give_up(publish, there)
        raise
    finally:
        timer.cancel()
    withdraw(publish, there)
    if publish.error is not None:
        raise publish.error.with_traceback(None)


# -- publish_async --------------------------------------------------------------------------------------------------


class PublishResult(AsyncResult):
    """The result of ``publish_async``: gevent's AsyncResult, which any thread may wait for."""

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
