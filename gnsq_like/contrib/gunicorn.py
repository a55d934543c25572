"""Readers in gunicorn's workers: started with each, drained when it is told to go.

In ``gunicorn.conf.py``::

    from gnsq_like.contrib.gunicorn import WorkerReaders

    readers = WorkerReaders()                      # those of the Flask application that is served
    post_worker_init = readers.post_worker_init
    worker_int = readers.worker_int
    worker_exit = readers.worker_exit

Every worker consumes on its own, so ``max_in_flight`` is meant per worker. Nothing happens in the master, where
this file is executed, and ``--preload`` loads the application: Readers are made behind the fork, behind
gunicorn's monkey-patching.

How a worker goes. gunicorn has no hook for "the worker is told to go": ``worker_exit`` comes when all requests
are answered, and new messages would be taken meanwhile. But all its kinds of workers clear ``worker.alive``, on
SIGTERM (to the master, or by a reload) as at ``max_requests``. So that is watched, and:

1. ``alive`` is cleared: the readers take nothing new; requests and handlers in hand go on, side by side.
2. gunicorn is done with its requests and calls ``worker_exit``, which holds the worker until the handlers are
   done too, or ``graceful_timeout`` after 1 is about to be over. What is left then goes back to nsqd.
3. SIGINT and SIGQUIT call ``worker_int`` first: handlers are not waited for, or no longer.

A worker that is held is still heard of by the master, so it is not killed for ``timeout`` before that.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any

from gnsq_like import Reader
from gnsq_like.contrib.shared.readers import ReaderGroup
from gnsq_like.errors import NSQError

logger = logging.getLogger(__name__)

#: Seconds between two looks at ``worker.alive``.
_LOOK = 0.05
#: Seconds between two signs of life while a worker is held.
_NOTIFY = 0.5
#: Of graceful_timeout: seconds kept for requeues and closing before the master kills the worker, and their share.
_MARGIN = 1.0
_MARGIN_SHARE = 0.1

#: Gives the Readers of a worker, not started.
MakeReaders = Callable[[], Iterable[Reader]]


class WorkerReaders:
    """The hooks for ``gunicorn.conf.py``, to be assigned there, or called by hooks of one's own.

    :param source: called in each worker, for its Readers; or where to find it, as "module:name", so that the module
        is imported behind the fork; an NSQ of ``gnsq_like.contrib.flask`` is right, too. None for the NSQ of the
        Flask application that the worker serves
    """

    def __init__(self, source: MakeReaders | str | None = None) -> None:
        self._source = source
        #: From here on: of the worker that this process is; there is none in the master.
        self._group: ReaderGroup | None = None
        self._pid = 0
        #: Monotonic time at which the handlers must be done; None before the stop began.
        self._deadline: float | None = None
        #: Seconds that handlers get, from the moment at which the worker is told to go.
        self._patience = 0.0
        #: The file by which the master sees that the worker lives; gunicorn closes its own before worker_exit.
        self._sign = -1

    # -- the hooks ----------------------------------------------------------------------------------

    def post_worker_init(self, worker: Any) -> None:
        """Start this worker's Readers. May switch, or block for an instant."""
        graceful = float(worker.cfg.graceful_timeout)
        self._patience = graceful - min(_MARGIN, _MARGIN_SHARE * graceful)
        self._deadline = None
        group = ReaderGroup(_readers_of(self._source, worker))
        group.start()
        self._group, self._pid = group, os.getpid()
        self._sign = os.dup(worker.tmp.fileno())
        # Patched or not, this is the kind of thread that runs beside what the worker does.
        threading.Thread(target=self._watch, args=(worker,), name="gnsq_like watches gunicorn", daemon=True).start()

    def worker_int(self, worker: Any) -> None:
        """SIGINT or SIGQUIT: wait for handlers no longer."""
        self._begin_to_stop(0.0)

    def worker_exit(self, server: Any, worker: Any) -> None:
        """Hold the worker until its handlers are done. May switch, or block."""
        group = self._group
        if group is None or self._pid != os.getpid():
            return  # in the master, which calls this for workers that vanished
        self._begin_to_stop(self._patience)
        assert self._deadline is not None
        while not group.wait(_NOTIFY):
            self._notify()
            if time.monotonic() > self._deadline + _MARGIN:
                logger.warning("readers of gunicorn worker %d have not stopped in time", self._pid)
                break
        self._group = None

    # -- what is behind them ------------------------------------------------------------------------

    def _watch(self, worker: Any) -> None:
        while worker.alive and self._group is not None:
            time.sleep(_LOOK)
        self._begin_to_stop(self._patience)

    def _begin_to_stop(self, timeout: float) -> None:
        """Also when it has begun: then the end can only come sooner."""
        deadline = time.monotonic() + timeout
        if self._group is None or (self._deadline is not None and self._deadline <= deadline):
            return
        self._deadline = deadline
        self._group.begin_to_stop(timeout)

    def _notify(self) -> None:
        # As gunicorn's WorkerTmp does.
        now = time.monotonic()
        with suppress(OSError):
            os.utime(self._sign, (now, now))


def _readers_of(source: MakeReaders | str | None, worker: Any) -> list[Reader]:
    if source is None:
        nsq = getattr(worker.wsgi, "extensions", {}).get("nsq")
        if nsq is None:
            raise NSQError(
                f"{worker.wsgi!r} is no Flask application with an NSQ: say where the readers are, "
                'WorkerReaders("module:function")'
            )
        return list(nsq.make_readers())
    found: Any = source
    if isinstance(source, str):
        module, _, name = source.partition(":")
        found = getattr(import_module(module), name or "make_readers")
    return list(getattr(found, "make_readers", found)())
