"""Where a Producer's connections live.

In a process that patches threading this is the main thread's hub. Elsewhere it is a background thread with
a hub of its own: one in the process, shared by all Producers, so that heartbeats are answered while the
application computes or sleeps.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Any

from gevent import get_hub, monkey

from gnsq_like.errors import NotRunning
from gnsq_like.runtime.hub_calls import HubHandle, allocate_lock, forget_here, handle_here
from gnsq_like.runtime.pending_reply import PendingReply

logger = logging.getLogger(__name__)

_start_new_thread = monkey.get_original("_thread", "start_new_thread")

#: Seconds for the background thread to come up.
_START_TIMEOUT = 10.0


class _Shared:
    """The background thread of this process, once there is one."""

    hub_handle: HubHandle | None = None
    #: Ends it, and is released when it has ended.
    end: Any = None
    ended: Any = None
    #: Whether the interpreter exits.
    exiting = False
    lock: Any = allocate_lock()
    starting: Any = allocate_lock()


def background() -> HubHandle:
    """The home in the background thread; starts that at first use. May block for an instant."""
    with _Shared.lock:
        if _Shared.exiting:
            raise NotRunning("the interpreter exits")
        if _Shared.hub_handle is None:
            started = allocate_lock()
            started.acquire()
            _start_new_thread(_live, (started,))
            if not started.acquire(True, _START_TIMEOUT) or _Shared.hub_handle is None:
                raise RuntimeError("the background thread of gnsq_like did not start")
        return _Shared.hub_handle


def _live(started: Any) -> None:
    hub = get_hub()
    stay = hub.loop.async_()
    stay.start(lambda: None)  # a hub with nothing to wait for would end
    end = _Shared.end = PendingReply()
    ended = _Shared.ended = allocate_lock()
    ended.acquire()
    _Shared.hub_handle = handle_here()
    started.release()
    while not end.done:
        try:
            end.wait()
        except BaseException:
            # SystemExit of a hook, say: it ends neither this thread nor the process.
            logger.exception("gnsq_like's background thread goes on after an error")
    stay.close()
    ended.release()


def end_background(timeout: float) -> None:
    """At the interpreter's exit: end the background thread. May block for ``timeout`` seconds.

    A thread that still runs greenlets when the interpreter is taken down can crash the process.
    """
    _Shared.exiting = True
    hub_handle = _Shared.hub_handle
    if hub_handle is not None and not hub_handle.here:
        hub_handle.call(_Shared.end.settle)
        _Shared.ended.acquire(True, timeout)


def starting() -> AbstractContextManager[object]:
    """Held while a Producer starts, so that two threads do not start it twice; nothing inside may switch."""
    return _Shared.starting


def forget() -> None:
    """In a forked child: the thread is not here, and whoever held a lock neither."""
    _Shared.hub_handle = None
    forget_here()
    _Shared.lock = allocate_lock()
    _Shared.starting = allocate_lock()


def choose(own_thread: bool | None) -> HubHandle:
    """The home for a Producer whose first call comes from this thread; see the option ``own_thread``."""
    if own_thread is None:
        own_thread = not (monkey.is_module_patched("threading") and get_hub().main_hub)
    hub_handle = background() if own_thread else handle_here(make_hub=True)
    assert hub_handle is not None
    return hub_handle
