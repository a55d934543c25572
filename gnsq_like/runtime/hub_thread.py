"""A native thread with a gevent hub of its own.

What lives there goes on whatever the rest of the process does: heartbeats are answered while the application
computes, sleeps or waits on plain sockets. A Producer in an unpatched process has its connections there (one
thread for all of them, :func:`background`), and so have the daemons and proxies of the test kit.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import gevent
from gevent import monkey

from gnsq_like.errors import NotRunning
from gnsq_like.runtime.hub_calls import HubHandle, allocate_lock, forget_here, handle_here
from gnsq_like.runtime.pending_reply import PendingReply

logger = logging.getLogger(__name__)

_start_new_thread = monkey.get_original("_thread", "start_new_thread")

#: Seconds for a thread to come up.
_START_TIMEOUT = 10.0


class HubThread:
    """A hub in a thread of its own: :meth:`start` makes it, :meth:`end` ends it, and then it may start again."""

    def __init__(self, name: str) -> None:
        self._name = name
        #: The way into the thread; None while it does not run.
        self.hub_handle: HubHandle | None = None
        #: Settled to end the thread.
        self._end = PendingReply()
        #: Held by the thread while it runs.
        self._running: Any = None

    def start(self) -> HubHandle:
        """Start the thread unless it runs; one caller at a time. May block for an instant.

        :raises RuntimeError: if no thread can be started
        """
        if self.hub_handle is None:
            self._end, self._running = PendingReply(), allocate_lock()
            started = allocate_lock()
            started.acquire()
            if monkey.is_module_patched("threading"):
                _start_new_thread(self._live, (started,))
            else:
                # Known to threading, which otherwise makes up a thread object that it never forgets.
                threading.Thread(target=self._live, args=(started,), name=self._name, daemon=True).start()
            if not started.acquire(True, _START_TIMEOUT) or self.hub_handle is None:
                raise RuntimeError(f"the thread {self._name} did not start")
        return self.hub_handle

    def end(self, timeout: float) -> bool:
        """End the thread and its hub; twice is fine. Nothing may run in it any more. May block.

        :param timeout: seconds to wait for the end
        :returns: whether the thread has ended
        """
        hub_handle, self.hub_handle = self.hub_handle, None
        if hub_handle is None or hub_handle.here:
            return hub_handle is None
        hub_handle.call(self._end.settle)
        return bool(self._running.acquire(True, timeout))

    def forget(self) -> None:
        """In a forked child: the thread is the parent's."""
        self.hub_handle = None

    def _live(self, started: Any) -> None:
        hub = gevent.get_hub()
        stay = hub.loop.async_()
        stay.start(lambda: None)  # a hub with nothing to wait for would end
        with self._running:
            self.hub_handle = handle_here()
            started.release()
            while not self._end.done:
                try:
                    self._end.wait()
                except BaseException:
                    # SystemExit of a hook, say: it ends neither this thread nor the process.
                    logger.exception("the thread %s goes on after an error", self._name)
            stay.close()
            hub.destroy(destroy_loop=True)


_background = HubThread("gnsq_like")
#: Held while the background thread starts.
_starting: Any = allocate_lock()
#: Whether the interpreter exits.
_exiting = False


def background() -> HubHandle:
    """The background thread that all Producers of this process share; starts it at first use. May block.

    :raises NotRunning: when the interpreter exits
    """
    with _starting:
        if _exiting:
            raise NotRunning("the interpreter exits")
        return _background.start()


def end_background(timeout: float) -> None:
    """At the interpreter's exit: end the background thread. May block for ``timeout`` seconds.

    A thread that still runs greenlets when the interpreter is taken down can crash the process.
    """
    global _exiting
    _exiting = True
    _background.end(timeout)


def forget_background() -> None:
    """In a forked child: the thread is the parent's, and so is whoever held the lock."""
    global _starting
    _starting = allocate_lock()
    _background.forget()
    forget_here()
