"""The Readers of one process: started, watched and stopped together.

``run`` is for a process that does nothing else. ``start`` is for one that also serves requests: if threading is
patched, the Readers share the hub with the requests; otherwise they get a thread and a hub of their own, so that the
main thread may block.
"""

from __future__ import annotations

import atexit
import logging
import signal as signals
import threading
import time
from collections.abc import Iterable
from typing import Any

import gevent
from gevent import monkey
from gevent.event import Event

from gnsq_like import Reader
from gnsq_like.errors import NotRunning

logger = logging.getLogger(__name__)

#: Seconds for the thread of the Readers to start them.
_START_TIMEOUT = 10.0
#: Seconds after the timeout of a stop for the steps after the handlers: requeues, closing.
_GRACE = 2.0
#: Seconds for running handlers if the group is stopped by the interpreter's exit.
_EXIT_TIMEOUT = 2.0


class ReaderGroup:
    """Readers that start and end together; creates nothing before its start.

    :param readers: not started
    """

    def __init__(self, readers: Iterable[Reader]) -> None:
        self.readers = list(readers)
        #: The thread of the Readers, unless they are in the hub of the caller of start.
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start all, and return. May switch, or block for an instant.

        The interpreter's exit stops them if they still run.

        :raises NSQError: when one cannot be started; then none is left running
        """
        if monkey.is_module_patched("threading"):
            self._start_here()
        else:
            started = threading.Event()
            failures: list[Exception] = []
            self._thread = threading.Thread(
                target=self._live, args=(started, failures), name="gnsq_like readers", daemon=True
            )
            self._thread.start()
            if not started.wait(_START_TIMEOUT):
                raise NotRunning("the thread of the readers did not start")
            if failures:
                raise failures[0]
        atexit.register(self.stop, _EXIT_TIMEOUT)

    def _start_here(self) -> None:
        try:
            for reader in self.readers:
                reader.start()
        except BaseException:
            self._stop_all(0.0)
            raise

    def _live(self, started: threading.Event, failures: list[Exception]) -> None:
        try:
            self._start_here()
        except Exception as exc:
            failures.append(exc)
            return
        finally:
            started.set()
        for reader in self.readers:
            reader.wait()

    def begin_to_stop(self, timeout: float) -> None:
        """Take no new messages; running handlers may answer for ``timeout`` seconds. Never switches.

        Next: :meth:`wait`.
        Call it from any thread except that of the Readers; further calls can only make the end earlier.
        """
        for reader in self.readers:
            if self._thread is None:
                gevent.spawn(reader.stop, timeout)
            else:
                reader.stop(timeout)  # from another thread: it only begins

    def wait(self, timeout: float) -> bool:
        """Wait until all have stopped; False after ``timeout`` seconds. May switch, or block."""
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        deadline = time.monotonic() + timeout
        return all(reader.wait(max(0.0, deadline - time.monotonic())) for reader in self.readers)

    def stop(self, timeout: float = 30.0) -> bool:
        """Stop all in good order; twice is fine. May switch, or block.

        :param timeout: seconds for the running handlers
        :returns: whether all have stopped
        """
        atexit.unregister(self.stop)
        self.begin_to_stop(timeout)
        return self.wait(timeout + _GRACE)

    def run(self, stop_timeout: float = 30.0) -> None:
        """Start all here, and wait until they have stopped: by SIGTERM, by SIGINT, or by themselves. May switch.

        The signals are handled only in the main thread. A second SIGINT (a second Ctrl-C) ends the wait for handlers:
        their messages go back to nsqd.

        :param stop_timeout: seconds for the running handlers after a signal
        :raises NSQError: when one stopped because every nsqd refuses it permanently; the others are stopped too
        """
        over = Event()

        def stop(number: int) -> None:
            if over.is_set() and number == signals.SIGINT:
                self._stop_all(0.0)
            over.set()

        handlers: list[Any] = []
        if gevent.get_hub().main_hub:
            handlers = [gevent.signal_handler(number, stop, number) for number in (signals.SIGTERM, signals.SIGINT)]
        try:
            self._start_here()
            for reader in self.readers:
                gevent.spawn(self._watch, reader, over)
            over.wait()
        finally:
            self._stop_all(stop_timeout)
            for handler in handlers:
                handler.cancel()
        for reader in self.readers:
            if reader.error is not None:
                raise reader.error

    def _stop_all(self, timeout: float) -> None:
        gevent.joinall([gevent.spawn(reader.stop, timeout) for reader in self.readers])

    def _watch(self, reader: Reader, over: Event) -> None:
        reader.wait()
        if reader.error is not None or all(each.stats()["state"] == "stopped" for each in self.readers):
            over.set()
