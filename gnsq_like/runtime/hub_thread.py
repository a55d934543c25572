"""A native thread with a gevent hub of its own.

Its greenlets keep running whatever the rest of the process does: heartbeats are answered while the application
computes, sleeps or blocks on sockets. The Producers of an unpatched process have their connections in one such
thread (:func:`background`); the test kit's daemons and proxies also run in such threads.
"""

from __future__ import annotations

import logging
from typing import Any

from gnsq_like.errors import NotRunning, NSQError
from gnsq_like.runtime import native, owner
from gnsq_like.runtime.dispatcher import end_log, log_soon
from gnsq_like.runtime.hub_calls import HubHandle, handle_here, own_hub
from gnsq_like.runtime.pending_reply import PendingReply

logger = logging.getLogger(__name__)

#: Seconds for a thread to start, and for the background thread to end at the interpreter's exit.
_START_TIMEOUT = 10.0
_END_TIMEOUT = 1.0


class HubThread:
    """A hub in a thread of its own; it can be started again after :meth:`end`."""

    def __init__(self, name: str) -> None:
        self._name = name
        #: For calls into the thread; None while it does not run.
        self.hub_handle: HubHandle | None = None
        #: Settled to end the thread.
        self._end = PendingReply()
        #: Why the thread could not make its hub.
        self._failure: NSQError | None = None
        #: Held by the thread while it runs.
        self._running: Any = None

    def start(self) -> HubHandle:
        """Start the thread unless it runs; one caller at a time. May block briefly. Next: :meth:`end`.

        :raises RuntimeError: if no thread can be started
        :raises NSQError: if there are not enough file descriptors for its hub
        """
        if self.hub_handle is None:
            owner.register(self, HubThread.forked)
            self._end, self._running = PendingReply(), native.allocate_lock()
            self._failure = None
            started = native.allocate_lock()
            started.acquire()
            native.start_thread(self._live, started, self._name)
            is_ready = started.acquire(True, _START_TIMEOUT)
            if self._failure is not None:
                raise self._failure
            if not is_ready or self.hub_handle is None:
                raise RuntimeError(f"the thread {self._name} did not start")
        return self.hub_handle

    def end(self, timeout: float) -> bool:
        """End the thread and its hub; twice is fine. No greenlets may be left in it. May block.

        :param timeout: seconds to wait for the end
        :returns: whether the thread has ended
        """
        if self.here:
            return False
        self.end_soon()
        self.hub_handle = None
        return self.join(timeout)

    @property
    def here(self) -> bool:
        """Whether the caller is in this thread."""
        return self.hub_handle is not None and self.hub_handle.here

    def end_soon(self) -> None:
        """End the thread once its greenlets let it; it cannot be started again. From any thread. Never switches."""
        if self.hub_handle is not None:
            self.hub_handle.call(self._end.settle)

    def join(self, timeout: float | None) -> bool:
        """After :meth:`end_soon`: wait for the end of the thread; False after ``timeout`` seconds. May block."""
        if self._running is None:
            return True
        ended = bool(self._running.acquire(True, -1 if timeout is None else timeout))
        if ended:
            self._running.release()
        return ended

    def forked(self, loop_lives: bool) -> None:
        """For ``owner``: in the child, drop the thread, which is the parent's."""
        owner.keep(self.hub_handle)
        self.hub_handle = self._running = None

    def _live(self, started: Any) -> None:
        try:
            hub = own_hub()
        except NSQError as exc:
            self._failure = exc
            started.release()
            return
        stay = hub.loop.async_()
        stay.start(lambda: None)  # keeps the hub running while it has no other watcher
        with self._running:
            self.hub_handle = hub_handle = handle_here()
            started.release()
            while not self._end.done:
                try:
                    self._end.wait()
                except BaseException as exc:
                    # For instance SystemExit in a hook, which must end neither this thread nor the process.
                    log_soon(logger.error, "the thread %s continues after an error", self._name, exc_info=exc)
            hub_handle.end()
            end_log(_END_TIMEOUT / 2)
            stay.close()
            hub.destroy(destroy_loop=True)


_background = HubThread("gnsq_like")


def background() -> HubHandle:
    """The background thread that all Producers of this process share; started at first use. May block.

    :raises NotRunning: while the interpreter exits
    """
    with owner.starting:
        if owner.is_exiting:
            raise NotRunning("the interpreter is exiting")
        is_new = _background.hub_handle is None
        handle = _background.start()
        if is_new:
            owner.register(_background, HubThread.forked, at_last=_end_background)
        return handle


def _end_background(thread: HubThread, timeout: float) -> None:
    # A thread that still runs greenlets during finalization can crash the process.
    thread.end(max(timeout, _END_TIMEOUT))
