"""``ReaderGroup``: several Readers as one.

The Readers live in the hub of the caller of ``start``, or with ``own_thread`` in a thread and a hub of their own. The
group's state is derived from theirs: each Reader reports its end, and the last one ends the thread.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial
from types import TracebackType

import gevent
from gevent import monkey

from gnsq_like.errors import InvalidOption, NotRunning, NSQError, check_seconds
from gnsq_like.reader.reader import Reader, running_of
from gnsq_like.reader.running import Running
from gnsq_like.reader.setup import require_handlers
from gnsq_like.runtime.dispatcher import log_soon
from gnsq_like.runtime.hub_calls import HubHandle, handle_here
from gnsq_like.runtime.hub_thread import HubThread
from gnsq_like.runtime.signals import run_until_signal

logger = logging.getLogger(__name__)

#: Seconds for a thread of their own to start all Readers.
_START_TIMEOUT = 10.0
#: Seconds after the timeout of a stop for the steps after the handlers, in a thread that may be blocked.
_GRACE = 2.0

#: States of Readers; that of the group is the first that one of them has.
_STATES = ("running", "stopping", "stopped", "new")


def _check(readers: tuple[Reader, ...]) -> None:
    for reader in readers:
        if not isinstance(reader, Reader):
            raise InvalidOption("readers", reader, "it must be a Reader; for a list of them write *readers")
    if len(set(readers)) < len(readers):
        raise InvalidOption("readers", readers, "each must be another one")


class ReaderGroup:
    """Several Readers that start, run and stop together; a Reader that gives up stops the others, unless independent.

    ::

        with ReaderGroup(archiving, counting) as group:
            group.wait()

    :param readers: not started
    :param stop_timeout: seconds for running handlers at the end of a ``with`` block, or when a Reader gives up
    :param own_thread: whether the Readers get a thread with a hub of their own, so that the caller's may block; without
        effect where threading is patched
    :param independent: whether the others run on when a Reader gives up
    :raises InvalidOption: for anything but Readers, and for one that is given twice

    Next: :meth:`start` and :meth:`stop`, or :meth:`run`, or a ``with`` block.
    """

    def __init__(
        self, *readers: Reader, stop_timeout: float = 30.0, own_thread: bool = False, independent: bool = False
    ) -> None:
        _check(readers)
        check_seconds("stop_timeout", stop_timeout)
        self.readers: tuple[Reader, ...] = readers
        self._stop_timeout = stop_timeout
        self._own_thread = own_thread
        self._independent = independent
        #: While the Readers run in a thread of their own.
        self._thread: HubThread | None = None
        #: Of the last start: where the Readers live.
        self._hub_handle: HubHandle | None = None

    def __repr__(self) -> str:
        return f"<ReaderGroup {self._state} {', '.join(map(repr, self.readers))}>"

    @property
    def error(self) -> NSQError | None:
        """Why a Reader gave up, see ``Reader.error``. Otherwise None."""
        return next((reader.error for reader in self.readers if reader.error is not None), None)

    @property
    def _state(self) -> str:
        states = {reader.stats()["state"] for reader in self.readers}
        return next((state for state in _STATES if state in states), "stopped")

    def start(self) -> None:
        """Start all, and return. Next: :meth:`wait`, :meth:`stop`.

        May block for an instant with a thread of their own; otherwise it switches only if it fails.

        :raises NSQError: if one cannot be started, for instance because it already runs; none that this started is left
        """
        if not self._own_thread or monkey.is_module_patched("threading"):
            self._start_here()
            return
        self._thread = thread = HubThread("gnsq_like readers")
        with ExitStack() as failed:
            failed.callback(setattr, self, "_thread", None)
            failed.callback(thread.end_soon)
            # In the caller's context, of which each message gets a copy.
            thread.start().run(copy_context().run, self._start_here, timeout=_START_TIMEOUT)
            failed.pop_all()

    def add(self, reader: Reader) -> None:
        """Start another Reader in the hub of the running group; those that have stopped leave it.

        From any thread. May switch, or block.

        :raises InvalidOption: for anything but a Reader, and for one that is in the group
        :raises NotRunning: if the group does not run, or the Reader already does
        :raises TimeoutError: if the thread that started the group is blocked for 10 s
        """
        _check((*self.readers, reader))
        handle = self._hub_handle
        if handle is None or not handle.lives:
            raise NotRunning(f"the group is {self._state}")
        handle.run(copy_context().run, self._add_here, reader, timeout=_START_TIMEOUT)

    def _add_here(self, reader: Reader) -> None:
        # In the Readers' hub: they live there, and the last of them does not end its thread meanwhile.
        if self._state != "running":
            raise NotRunning(f"the group is {self._state}")
        reader.start()
        self.readers = (*(each for each in self.readers if each.stats()["state"] != "stopped"), reader)
        self._watch(reader)

    def _start_here(self) -> None:
        with ExitStack() as failed:
            for reader in self.readers:
                reader.start()
                failed.callback(reader.stop, 0.0)
            failed.pop_all()
        self._hub_handle = handle_here()
        for reader in self.readers:
            self._watch(reader)

    def _watch(self, reader: Reader) -> None:
        running = running_of(reader)
        assert running is not None
        running.stopped.link(partial(self._one_stopped, reader))

    def _one_stopped(self, reader: Reader) -> None:
        """In the Readers' hub. Never switches."""
        if reader.error is not None and self._independent:
            log_soon(logger.error, "%r gave up; the other Readers of its group run on: %s", reader, reader.error)
        elif reader.error is not None and self._state == "running":
            text = "%r gave up, and the other Readers of its group are stopped: %s"
            log_soon(logger.error, text, reader, reader.error)
            self.begin_to_stop(self._stop_timeout)
        thread = self._thread
        if thread is not None and self._state == "stopped":
            thread.end_soon()

    def run(self, *, stop_timeout: float | None = None) -> None:
        """Start all, and block until they have stopped: by :meth:`stop`, SIGTERM, SIGINT, or by themselves. May switch.

        Signals are handled only in the main thread, and in another greenlet than its main one only where the program
        has no handlers of its own. Afterwards they are as before. A second SIGINT ends the wait for running handlers.

        :param stop_timeout: seconds for running handlers after a signal, instead of the group's
        :raises NSQError: if a Reader gave up, see ``Reader.run``; the others have stopped, too
        :raises InvalidOption: if a Reader has no handler
        """
        require_handlers(reader.handler for reader in self.readers)
        run_until_signal(self, self._stop_timeout if stop_timeout is None else stop_timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all have stopped; False after ``timeout`` seconds. May switch, or block.

        It does not raise: see :attr:`error`.
        """
        check_seconds("timeout", timeout, or_none=True)
        deadline = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if deadline is None else max(0.0, deadline - time.monotonic())

        if not all(reader.wait(left()) for reader in self.readers):
            return False
        thread = self._thread
        return thread is None or thread.here or thread.join(left())

    def begin_to_stop(self, timeout: float | None = None) -> None:
        """Begin a stop of all: no new messages are taken. From any thread. Never switches. Next: :meth:`wait`.

        :param timeout: seconds for running handlers, instead of the group's; further calls can only shorten them
        """
        for reader in self.readers:
            reader.begin_to_stop(self._stop_timeout if timeout is None else timeout)
        if not self.readers and self._thread is not None:
            self._thread.end_soon()  # otherwise the last Reader to stop ends it

    def stop(self, timeout: float | None = None) -> int:
        """Stop all in order and at the same time, as ``Reader.stop`` does; twice is fine. May switch, or block.

        Called by a handler, or inside ``for message in reader``, this only begins the stop and returns 0.

        :param timeout: seconds for running handlers, instead of the group's
        :returns: the number of messages unanswered after that time
        """
        seconds = self._stop_timeout if timeout is None else timeout
        self.begin_to_stop(seconds)
        if any(running.handlers.is_worker(gevent.getcurrent()) for running in self._runnings()):
            return 0
        # A hub of their own may be blocked by a handler.
        if self.wait(None if self._thread is None else seconds + _GRACE):
            return self.left
        return sum(reader.stats()["in_flight"] for reader in self.readers)

    @property
    def left(self) -> int:
        """The messages unanswered at the end of the last stop."""
        return sum(running.left for running in self._runnings())

    def _runnings(self) -> list[Running]:
        return [running for reader in self.readers if (running := running_of(reader)) is not None]

    def __enter__(self) -> ReaderGroup:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all.

        :raises NSQError: if a Reader gave up, unless another exception ends the block
        """
        self.stop()
        if exc is None and self.error is not None:
            raise self.error
