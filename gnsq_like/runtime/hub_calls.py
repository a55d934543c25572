"""A thread's hub, and calls into it from other threads.

gevent's sockets belong to the hub of one thread. Other threads pass calls to it (``HubHandle.call``) and wait for a
PendingReply: cooperatively in a thread that has a hub, on a lock elsewhere. The locks here are native even where
threading is patched, and are held for a few instructions only.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import gevent
from gevent import Greenlet, get_hub, monkey
from gevent._hub_local import get_hub_if_exists
from gevent.hub import MAIN_THREAD_IDENT

from gnsq_like.errors import NotRunning, NSQError, reason_of
from gnsq_like.runtime import native, owner
from gnsq_like.runtime.dispatcher import log_soon
from gnsq_like.runtime.pending_reply import PendingReply

logger = logging.getLogger(__name__)

#: Seconds. Without a timer, the hub would raise LoopExit where nothing but a call from another thread can wake it.
_FOR_EVER = 1e6
_ENDED = "the thread that makes the call has ended"
#: File descriptors of a new hub: two with libev (four where there is no eventfd), six with libuv.
_DESCRIPTORS = 8

#: Held while a hub is made, or threads that make theirs at once would see the same descriptors free.
_making: Any = native.allocate_lock()


def own_hub() -> Any:
    """This thread's hub, made if there is none.

    :raises NSQError: if there are not enough file descriptors for a new one
    """
    hub = get_hub_if_exists()
    if hub is not None:
        return hub
    # Tried first, because libev calls abort(), which ends the process, when they are lacking. Another thread may take
    # them just then, but the rest of the time this is an error to handle.
    with _making:
        try:
            with ExitStack() as tried:
                for _ in range(_DESCRIPTORS // 2):
                    for end in os.pipe():
                        tried.callback(os.close, end)
        except OSError as exc:
            raise NSQError(f"no event loop can be made: {reason_of(exc)}") from exc
        return get_hub()


def is_main_thread() -> bool:
    """Whether this OS thread may handle signals. In a forked child, that is the one that has forked.

    In a patched process only gevent knows, and only the main thread can fork.
    """
    main = MAIN_THREAD_IDENT if monkey.is_module_patched("threading") else threading.main_thread().ident
    return bool(main == native.thread_id())


class InnerGreenlet(Greenlet):
    """A greenlet that others rely on, and that runs no code of the user but hooks that must not switch."""


class HubHandle:
    """One thread's hub, which other threads can call into; made in that thread by :func:`handle_here`."""

    def __init__(self) -> None:
        self.hub: Any = get_hub()
        #: The id of its thread; a later thread may get the same one.
        self.thread: int = native.thread_id()
        #: Whether its thread has not ended, and this is its process.
        self.lives: bool = True
        self._pid = os.getpid()
        self._life = weakref.ref(_here.life, self._note_thread_end)
        owner.register(self, HubHandle.forked)
        #: Its ThreadPool, if there is one; see ``thread_pool.hub_threads``.
        self.threads: Any = None
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        #: Of calls of run() that have not returned.
        self._unfinished: set[PendingReply] = set()
        self._has_ended = False
        # Not run_callback_threadsafe: it changes libev's reference count (ev_ref) without a lock, so updates get
        # lost; after 100,000 publishes the hub raises LoopExit.
        self._wakeup: Any = self.hub.loop.async_(ref=False)
        self._wakeup.start(self.make_calls)

    @property
    def here(self) -> bool:
        """Whether the caller is in this thread."""
        return bool(native.thread_id() == self.thread and self.lives)

    def forked(self, loop_lives: bool) -> None:
        """For ``owner``: in the child, it is the parent's."""
        self.lives = False

    def _note_thread_end(self, life: object) -> None:
        self.lives = False
        if self._pid != os.getpid():
            return  # a forked child has none of its parent's other threads
        self._fail_unfinished()

    def _fail_unfinished(self) -> None:
        for done in list(self._unfinished):
            done.settle(NotRunning(_ENDED))

    @property
    def backlog(self) -> int:
        """Calls not made yet."""
        return len(self._calls)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Schedule ``function(*arguments)`` in the hub; it must not switch. From any thread. Never switches."""
        self._calls.append((function, arguments))
        try:
            # libev's state, not a flag of ours, which an interruption could leave set.
            if not self._wakeup.pending:
                self._wakeup.send()
        except Exception as exc:
            # The thread has ended and destroyed its hub; nothing waits for the call there.
            log_soon(logger.debug, "call into a thread that has ended: %r", exc)

    def make_calls(self) -> None:
        """Make the calls that are scheduled. In this thread; never switches."""
        calls = self._calls
        try:
            while calls:
                function, arguments = calls.popleft()
                try:
                    function(*arguments)
                except Exception as exc:
                    log_soon(logger.error, "%r, called from another thread, failed", function, exc_info=exc)
        finally:
            if calls:
                self._wakeup.send()

    def catch_up(self) -> None:
        """Wait until all calls scheduled so far have been made. In this thread; may switch."""
        made = PendingReply()
        self.call(made.settle)
        made.wait(_FOR_EVER)

    def run(self, function: Callable[..., Any], *arguments: Any, timeout: float | None = None) -> Any:
        """Call a function that may switch in this thread, and return its result. May switch, or block.

        :raises TimeoutError: if there is no result after ``timeout`` seconds
        :raises NotRunning: if this thread ends before the function returns, or has ended
        """
        if self.here:
            return function(*arguments)
        done = PendingReply()
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append(function(*arguments))
            except Exception as exc:
                done.settle(exc)
            finally:
                self._unfinished.discard(done)
                done.settle()

        wait = CrossThreadWait(done)
        self._unfinished.add(done)
        self.call(gevent.spawn, work)
        # Scheduled first, then looked at: end() sets the flag before it makes the last calls.
        if self._has_ended or not self.lives:
            raise NotRunning(_ENDED)
        if not wait.wait(timeout):
            raise TimeoutError(f"{function!r} took more than {timeout} s")
        if done.error is not None:
            raise done.error
        return outcome[0]

    def join_thread(self, timeout: float) -> None:
        """Wait for the end of this thread, if it is another one that ``threading`` started. May block.

        A daemon thread that is about to end while the interpreter is finalized is ended by CPython in the middle of a
        greenlet, and the process by SIGSEGV.
        """
        for thread in threading.enumerate():
            if thread.ident == self.thread and not self.here:
                thread.join(timeout)

    def end(self) -> None:
        """As this thread ends: let the calls of :meth:`run` that have not returned fail. In this thread; may switch."""
        self._has_ended = True
        self.make_calls()
        self._fail_unfinished()
        if self.threads is not None:
            self.threads.close()

    def wait(self, reply: PendingReply, timeout: float | None = None) -> bool:
        """Wait in any thread for a reply that this thread settles; whether it has. May switch, or block.

        In another thread the wait ends with this one, which then settles no more.
        """
        with suppress(NotRunning, TimeoutError):
            if not reply.done:  # else its thread may have ended
                self.run(reply.wait, timeout, timeout=timeout)
        return reply.done


class CrossThreadWait:
    """A wait for a reply that another thread settles; made in the waiting thread, before that can happen."""

    def __init__(self, reply: PendingReply) -> None:
        self._reply = reply
        hub_handle = handle_if_hub()
        #: Waits for so many seconds at most: on a lock, or in the hub.
        self._wait: Callable[[float], object]
        if hub_handle is None:
            lock = native.allocate_lock()
            lock.acquire()
            reply.link(lock.release)
            self._wait = partial(lock.acquire, True)
        else:
            settled = PendingReply()
            reply.link(partial(hub_handle.call, settled.settle))
            self._wait = settled.wait

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it was settled within ``timeout`` seconds. May switch, or block."""
        while not self._reply.done:
            self._wait(_FOR_EVER if timeout is None else max(0.0, timeout))
            if timeout is not None:
                break
        return self._reply.done


def call_here(function: Callable[[], object]) -> Callable[[], object]:
    """A function for other threads that calls ``function`` in this thread's hub, or directly if it has no hub."""
    hub_handle = handle_if_hub()
    return function if hub_handle is None else partial(hub_handle.call, function)


class _Life:
    """Referenced by the locals of one thread only, so it is collected when that ends."""


class _Here(native.local):
    """The state of each thread."""

    hub_handle: HubHandle | None = None

    def __init__(self) -> None:
        self.life = _Life()


_here = _Here()


def life_here() -> object:
    """An object that is collected when this thread has ended. Hold it weakly."""
    return _here.life


def handle_here() -> HubHandle:
    """The HubHandle of this thread; makes its hub if there is none.

    :raises NSQError: if there are not enough file descriptors for a new hub
    """
    hub = own_hub()
    handle = _here.hub_handle
    if handle is None or handle.hub is not hub or not handle.lives:
        if handle is not None and not handle.lives:
            owner.keep(handle)  # the parent's, in a forked child
        handle = _here.hub_handle = HubHandle()
    return handle


def handle_if_hub() -> HubHandle | None:
    """The HubHandle of this thread; None if it has no hub."""
    return None if get_hub_if_exists() is None else handle_here()


def sleep(seconds: float) -> None:
    """Sleep; other greenlets of this thread run meanwhile, if it has a hub. May switch, or block."""
    if get_hub_if_exists() is None and not monkey.is_module_patched("time"):
        native.sleep(seconds)
    else:
        gevent.sleep(seconds)
