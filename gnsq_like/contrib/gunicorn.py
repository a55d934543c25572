"""Readers in gunicorn's workers: started with each worker, drained before it ends.

In ``gunicorn.conf.py``::

    from gnsq_like.contrib.gunicorn import WorkerReaders

    readers = WorkerReaders()                      # those of the Flask application that is served
    post_worker_init = readers.post_worker_init
    worker_int = readers.worker_int
    worker_exit = readers.worker_exit

Every worker has its own Readers, so ``max_in_flight`` is per worker. Nothing happens in the master, which executes that
file and, with ``--preload``, loads the application: Readers are made after the fork and after gunicorn's
monkey-patching.

How a worker ends. gunicorn has no hook for the beginning of a worker's end: it calls ``worker_exit`` when all requests
are answered, and the Readers would take new messages until then. But all kinds of workers clear ``worker.alive``, on
SIGTERM (to the master, or by a reload) and at ``max_requests``. So this attribute is watched, and:

1. ``alive`` is cleared: the Readers take no new messages; current requests and handlers go on side by side.
2. gunicorn has answered its requests and calls ``worker_exit``, which delays the worker's end until the handlers are
   done, or shortly before ``graceful_timeout`` is over (counted from 1). The remaining messages go back to nsqd.
3. SIGINT and SIGQUIT call ``worker_int`` first: ``worker_exit``, which follows at once, does not wait for handlers, or
stops waiting. A handler that ends before that still finishes its message: one in a thread cannot be killed, and if its
message were requeued, it would be handled twice.

While ``worker_exit`` waits, the worker keeps signalling that it is alive: otherwise the master would kill it after
``timeout``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from gevent import monkey

from gnsq_like import Reader, ReaderGroup
from gnsq_like.contrib.shared.declared import readers_of
from gnsq_like.errors import NSQError

logger = logging.getLogger(__name__)

#: Seconds between two looks at ``worker.alive``.
_LOOK = 0.05
#: Seconds between two signs of life while ``worker_exit`` waits.
_NOTIFY = 0.5
#: The part of graceful_timeout for requeues and closing before the master kills the worker: at most this many seconds,
#: and at most this share.
_MARGIN = 1.0
_MARGIN_SHARE = 0.1

_TOO_LATE = (
    "the application was loaded before gevent patched this worker, so locks and database connections made then do not "
    "belong to greenlets, and Django answers 500; begin gunicorn.conf.py with: "
    "from gevent import monkey; monkey.patch_all()"
)

#: Whether threading was patched when this process was forked; gevent workers patch later, before they load the
#: application unless it is preloaded.
_was_patched_at_fork = False


def _forked() -> None:
    global _was_patched_at_fork
    _was_patched_at_fork = bool(monkey.is_module_patched("threading"))


os.register_at_fork(after_in_child=_forked)

#: Returns the Readers of a worker, not started.
MakeReaders = Callable[[], Iterable[Reader]]


class WorkerReaders:
    """The hooks for ``gunicorn.conf.py``: assign them there, or call them in your own hooks.

    :param source: a function that is called in each worker and returns its Readers; or its name as "module:name", so
        that the module is imported after the fork; or an NSQ of ``gnsq_like.contrib.flask``. None for the NSQ of the
        Flask application that the worker serves
    """

    def __init__(self, source: MakeReaders | str | None = None) -> None:
        self._source = source
        #: The Readers of this worker; None in the master.
        self._group: ReaderGroup | None = None
        #: The worker's process.
        self._pid = 0
        #: Monotonic time at which the handlers must be done; None before the stop begins.
        self._deadline: float | None = None
        #: Seconds for handlers from the beginning of the stop.
        self._patience = 0.0
        #: Descriptor of the file whose time shows the master that the worker is alive; gunicorn closes its own before
        #: worker_exit.
        self._sign = -1
        #: Whether worker_int was called, and whether worker_exit was.
        self._is_hurried = False
        self._is_exiting = False

    # -- the hooks ----------------------------------------------------------------------------------

    def post_worker_init(self, worker: Any) -> None:
        """Start this worker's Readers. May switch, or block for an instant."""
        if _is_patched_too_late(worker):
            worker.log.warning("gnsq_like: %s", _TOO_LATE)
        graceful = float(worker.cfg.graceful_timeout)
        self._patience = graceful - min(_MARGIN, _MARGIN_SHARE * graceful)
        self._deadline = None
        group = ReaderGroup(*_readers_of(self._source, worker), own_thread=True)
        group.start()
        self._group, self._pid = group, os.getpid()
        self._sign = os.dup(worker.tmp.fileno())
        # A greenlet if the worker is patched.
        threading.Thread(target=self._watch, args=(worker,), name="gnsq_like watches gunicorn", daemon=True).start()

    def worker_int(self, worker: object) -> None:
        """SIGINT or SIGQUIT: stop without waiting for handlers."""
        self._is_hurried = True
        self._begin_to_stop(0.0 if self._is_exiting else self._patience)

    def worker_exit(self, server: object, worker: object) -> None:
        """Wait until the worker's handlers are done. May switch, or block."""
        group = self._group
        if group is None or self._pid != os.getpid():
            return  # the master calls this for workers that died
        self._is_exiting = True
        self._begin_to_stop(0.0 if self._is_hurried else self._patience)
        assert self._deadline is not None
        self._notify()  # a worker that was timed out is killed a second later without it
        while not group.wait(_NOTIFY):
            self._notify()
            if time.monotonic() > self._deadline + _MARGIN:
                logger.warning("the readers of gunicorn worker %d did not stop in time", self._pid)
                break
        self._group = None

    # -- stopping -----------------------------------------------------------------------------------

    def _watch(self, worker: Any) -> None:
        while worker.alive and self._group is not None:
            time.sleep(_LOOK)
        self._begin_to_stop(self._patience)

    def _begin_to_stop(self, timeout: float) -> None:
        """Begin to stop; a further call can only shorten the time."""
        deadline = time.monotonic() + timeout
        if self._group is None or (self._deadline is not None and self._deadline <= deadline):
            return
        self._deadline = deadline
        self._group.begin_to_stop(timeout)

    def _notify(self) -> None:
        # As gunicorn's WorkerTmp.notify does.
        now = time.monotonic()
        with suppress(OSError):
            os.utime(self._sign, (now, now))


def _is_patched_too_late(worker: Any) -> bool:
    """Whether this is a gevent worker whose application was loaded unpatched."""
    is_gevent = any(kind.__module__ == "gunicorn.workers.ggevent" for kind in type(worker).__mro__)
    was_patched = _was_patched_at_fork if worker.cfg.preload_app else monkey.is_module_patched("threading")
    return is_gevent and not was_patched


def _readers_of(source: MakeReaders | str | None, worker: Any) -> list[Reader]:
    if source is None:
        nsq = getattr(worker.wsgi, "extensions", {}).get("nsq")
        if nsq is None:
            raise NSQError(
                f"{worker.wsgi!r} is not a Flask application with an NSQ: name the function that makes the readers, "
                'WorkerReaders("module:function")'
            )
        return list(nsq.make_readers())
    return readers_of(source)
