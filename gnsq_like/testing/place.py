"""Where the kit's own greenlets live, so that it serves tests of every kind.

- Nothing is patched: in a thread with a hub of its own. The test may block on plain sockets, use threads or
  asyncio, or have a hub itself: whatever it does, the daemon or proxy goes on.
- Sockets are monkey-patched: in the hub of whoever starts them. There every wait of the test is the hub's turn.

Whoever calls from another thread hands the call over, and waits in the way that is right for his own thread.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import gevent
from gevent import monkey

from gnsq_like.runtime.hub_calls import HubHandle, allocate_lock, handle_here
from gnsq_like.runtime.pending_reply import PendingReply

_start_new_thread = monkey.get_original("_thread", "start_new_thread")

#: Seconds for a thread to come up, and to end.
_THREAD_TIMEOUT = 10.0


class Place:
    """A hub to run things in; :meth:`open` makes it, and :meth:`close` ends the thread if there is one.

    :param own_thread: whether in a thread of its own; None for what suits this process
    """

    def __init__(self, own_thread: bool | None = None) -> None:
        self._own_thread = own_thread
        self._home: HubHandle | None = None
        #: Only of a thread of its own: ends it, and is released when it has ended.
        self._end: PendingReply | None = None
        self._ended: Any = None
        #: Where threading is not patched.
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Make the hub; nothing if there is one. May block for an instant."""
        if self._home is not None:
            return
        own_thread = self._own_thread
        if own_thread is None:
            own_thread = not monkey.is_module_patched("socket")
        if not own_thread:
            self._home = handle_here()
            return
        started = allocate_lock()
        started.acquire()
        self._ended = allocate_lock()
        self._ended.acquire()
        if monkey.is_module_patched("threading"):
            _start_new_thread(self._live, (started,))
        else:
            # Known to threading, which otherwise makes up a thread that it never forgets.
            self._thread = threading.Thread(target=self._live, args=(started,), name="gnsq_like.testing", daemon=True)
            self._thread.start()
        if not started.acquire(True, _THREAD_TIMEOUT) or self._home is None:
            raise RuntimeError("a thread of gnsq_like.testing did not start")
        # A thread that still runs greenlets when the interpreter is taken down can crash the process.
        atexit.register(self.close)

    def _live(self, started: Any) -> None:
        hub = gevent.get_hub()
        stay = hub.loop.async_()
        stay.start(lambda: None)  # a hub with nothing to wait for would end
        try:
            self._end = PendingReply()
            self._home = handle_here()
            started.release()
            self._end.wait()
        finally:
            stay.close()
            hub.destroy(destroy_loop=True)
            self._ended.release()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the place, and give what it gave; it may switch. May switch, or block.

        :raises RuntimeError: when the place is not open
        """
        if self._home is None:
            raise RuntimeError("not started, or closed")
        return self._home.run(function, *arguments)

    def close(self) -> None:
        """End the thread, if there is one; twice is fine. Nothing may run in it any more. May switch, or block."""
        home, self._home = self._home, None
        end, self._end = self._end, None
        if home is not None and end is not None:
            atexit.unregister(self.close)
            home.call(end.settle)
            self._ended.acquire(True, _THREAD_TIMEOUT)
            if self._thread is not None:
                self._thread.join(_THREAD_TIMEOUT)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
