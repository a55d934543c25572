"""A worker: loads Readers, runs them, and reports to the master until the master stops it.

The main thread has the hub, the Readers and the heartbeat, which stops when the hub is blocked. A native thread reads
the master's commands: it can show stacks while the hub is blocked, and when the master has died it drains the Readers
and then ends the process, whatever the hub does.
"""

from __future__ import annotations

import faulthandler
import functools
import logging
import os
import resource
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gevent
from gevent import get_hub, monkey
from gevent.event import Event

from gnsq_like import Batch, Reader, ReaderGroup
from gnsq_like.contrib.health import report
from gnsq_like.errors import NSQError
from gnsq_like.runtime import native
from gnsq_like.runtime.timer import Timer
from gnsq_like.workers.plan import Plan
from gnsq_like.workers.process import LineReader, LineWriter, configure, make_formatter, memory_bytes
from gnsq_like.workers.roster import GRACE

logger = logging.getLogger(__name__)

#: Seconds between two heartbeats.
BEAT = 1.0
#: Exit status of a worker that could not load or start its Readers, and has reported the reason.
FAILED = 3

_STDERR = 2
#: Seconds for the hub to show stacks, which do not change meanwhile there; then the native thread does it.
_PATIENCE = 1.0
_LOOK = 0.01

_Handler = Callable[[Any], bool | None]


def main(task: dict[str, object]) -> int:
    """Called by ``boot.py``; returns the exit status."""
    return Worker(task).run()


class Worker:
    """This process."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._plan = Plan.from_json(task["plan"])
        self._number: int = task["number"]
        for descriptor in (task["commands"], task["reports"]):
            os.set_inheritable(descriptor, False)
        self._reader = LineReader(task["commands"])
        self._reports = LineWriter(task["reports"])
        self._formatter = make_formatter(f"worker {self._number}", as_json=self._plan.log_json)
        self._readers: list[Reader] = []
        self._calls = Calls(self._plan.handler_timeout)
        #: The Readers, once they are started.
        self._group: ReaderGroup | None = None
        #: Commands that the hub has not seen, and the watcher that wakes it.
        self._commands: deque[dict[str, Any]] = deque()
        self._wakeup: Any = get_hub().loop.async_()
        #: Set by the command to start or, before that, to stop.
        self._decided = Event()
        self._shares: list[int] = []
        self._is_stopping = False

    def run(self) -> int:
        """Load, wait for the start, run; returns the exit status."""
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        if self._plan.log_level or self._plan.log_json:
            configure(self._formatter, self._plan.log_level or "info")
        self._wakeup.start(self._take_commands)
        native.start_new_thread(self._listen, ())
        self._name_metrics()
        try:
            self._load()
        except NSQError as exc:
            return self._fail(str(exc), exc)
        except Exception as exc:
            return self._fail(f"{type(exc).__name__}: {exc}".partition("\n")[0], exc)
        self._decided.wait()
        if self._is_stopping:
            return 0
        return self._work()

    def _fail(self, why: str, exc: BaseException) -> int:
        trace = "".join(traceback.format_exception(exc)) if self._plan.verbose else ""
        self._reports.send("failed", why=why, trace=trace)
        return FAILED

    # -- loading ------------------------------------------------------------------------------------

    def _name_metrics(self) -> None:
        """Have prometheus-client name its files by the worker's number: named by process id, they would accumulate."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return
        from prometheus_client import values

        pid = os.getpid()

        def identifier() -> int:
            return self._number if os.getpid() == pid else os.getpid()

        values.ValueClass = values.MultiProcessValue(identifier)

    def _load(self) -> None:
        module, _, name = self._plan.loader.partition(":")
        self._readers = getattr(import_module(module), name)(*self._plan.arguments)
        if monkey.is_module_patched("threading") and not self._plan.patch:
            logger.warning("the code was monkey-patched after other modules were loaded; use --patch instead")
        descriptions = [describe(reader) for reader in self._readers]
        metrics = None
        if self._plan.measures and "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            from gnsq_like.contrib.prometheus import Metrics

            metrics = Metrics()
        for reader in self._readers:
            if metrics is not None:
                metrics.time_reader(reader)
                metrics.watch_reader(reader)
            self._calls.watch(reader)
        self._reports.send("loaded", readers=descriptions)

    # -- running ------------------------------------------------------------------------------------

    def _work(self) -> int:
        group = self._group = ReaderGroup(*self._readers, stop_timeout=self._plan.stop_timeout)
        gevent.signal_handler(signal.SIGTERM, self._terminated)
        gevent.signal_handler(signal.SIGINT, self._terminated)
        try:
            self._share()
            group.start()
        except NSQError as exc:
            return self._fail(str(exc), exc)
        timer = get_hub().loop.timer(0.0, BEAT)
        timer.start(self._beat)
        group.wait()
        timer.close()
        if group.error is not None:
            return self._fail(str(group.error), group.error)
        self._reports.send("stopped", left=group.left)
        return 0

    def _share(self) -> None:
        for reader, most in zip(self._readers, self._shares, strict=True):
            reader.max_in_flight = most

    def _beat(self) -> None:
        """In the hub, every second."""
        self._reports.flush()
        if self._reports.is_behind:
            return  # the master does not read
        healthy, answer = report(self._readers)
        stats = [reader.stats() for reader in self._readers]
        self._reports.send(
            "beat",
            healthy=healthy,
            readers=answer["readers"],
            messages=sum(each["finished"] + each["requeued"] for each in stats),
            memory_bytes=memory_bytes() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            oldest=self._calls.oldest(),
        )

    # -- stopping -----------------------------------------------------------------------------------

    def _stop(self, timeout: float) -> None:
        """Stop all Readers; a further call can only shorten the time. Never switches."""
        self._is_stopping = True
        self._decided.set()
        if self._group is not None:
            self._group.begin_to_stop(timeout)

    def _terminated(self) -> None:
        """SIGTERM or SIGINT that does not come from the master."""
        self._reports.send("leaving")
        self._stop(self._plan.stop_timeout)

    # -- commands -----------------------------------------------------------------------------------

    def _listen(self) -> None:
        """The native thread: passes commands on until the master has ended."""
        while not self._reader.is_over:
            for command in self._reader.read():
                self._pass_on(command)
                if command["is"] == "stacks" and not self._is_done_in_hub(command):
                    self._show_stacks()
        if self._group is None:
            os._exit(1)
        self._pass_on({"is": "stop", "timeout": self._plan.stop_timeout})
        native.sleep(self._plan.stop_timeout + GRACE)
        os._exit(1)

    def _pass_on(self, command: dict[str, object]) -> None:
        self._commands.append(command)
        self._wakeup.send()

    def _is_done_in_hub(self, command: dict[str, object]) -> bool:
        """Whether the hub takes a command; if it is blocked, the command is taken back."""
        deadline = time.monotonic() + _PATIENCE
        while command in self._commands and time.monotonic() < deadline:
            native.sleep(_LOOK)
        try:
            self._commands.remove(command)
        except ValueError:
            return True
        return False

    def _take_commands(self) -> None:
        """In the hub."""
        while self._commands:
            command = self._commands.popleft()
            kind = command["is"]
            if kind == "run":
                self._shares = command["shares"]
                self._decided.set()
            elif kind == "stop":
                self._stop(command["timeout"])
            elif kind == "stacks":
                self._show_stacks()

    def _show_stacks(self) -> None:
        """Write the stacks of all threads and greenlets; without logging's locks, which may belong to greenlets."""
        from gevent.util import format_run_info

        text = "stacks of all threads and greenlets\n" + "\n".join(format_run_info())
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
        data = self._formatter.format(record).encode("utf-8", "replace") + b"\n"
        while data:
            data = data[os.write(_STDERR, data) :]


def describe(reader: Reader) -> dict[str, Any]:
    """For the master, and for people."""
    handler: object = reader.handler
    function = getattr(handler, "handler", handler)
    name = getattr(function, "__qualname__", type(function).__name__)
    return {
        "topic": reader.topic,
        "channel": reader.channel,
        "max_in_flight": reader.max_in_flight,
        "handler": f"{getattr(function, '__module__', '')}.{name}",
        "batch": getattr(handler, "size", None),
        "spawn": reader.options.spawn,
        "concurrency": reader.options.concurrency,
    }


class Calls:
    """The running handler calls of all Readers of a process, if their time is limited. Belongs to the Readers' hub.

    One timer watches the oldest call, instead of one for each: a call costs two entries in a table.

    :param timeout: seconds after which gevent.Timeout is raised in a handler, so that its message is requeued; 0 for
        never. Handlers in threads, and those that never switch, cannot be interrupted
    """

    def __init__(self, timeout: float = 0.0) -> None:
        self._timeout = timeout
        #: When each running call began (monotonic), by its greenlet, the oldest first: those that can be interrupted,
        #: those that have been, and those in threads.
        self._running: dict[Any, float] = {}
        self._interrupted: dict[object, float] = {}
        self._in_threads: dict[object, float] = {}
        self._timer = Timer(self._interrupt)
        #: Whether it is set.
        self._watches = False

    def oldest(self) -> float:
        """The seconds that the longest running call has taken so far; 0 without one, and without a limit."""
        # Copies in one step: handlers in threads change theirs meanwhile.
        began = [*self._running.values(), *self._interrupted.values(), *list(self._in_threads.values())]
        return time.monotonic() - min(began) if began else 0.0

    def watch(self, reader: Reader) -> None:
        """Limit the calls of a Reader's handler, from its next start on. Never switches."""
        handler = reader.handler
        if not self._timeout or handler is None:
            return
        limited = self._limited_in_threads if reader.options.spawn == "thread" else self._limited
        if isinstance(handler, Batch):
            reader.handler = Batch(limited(handler.handler), size=handler.size, interval=handler.interval)
        else:
            reader.handler = limited(handler)

    def _limited(self, handler: _Handler) -> _Handler:
        running, interrupted = self._running, self._interrupted
        getcurrent = gevent.getcurrent

        @functools.wraps(handler)
        def limited_handler(given: object) -> bool | None:
            greenlet = getcurrent()
            running[greenlet] = time.monotonic()
            if not self._watches:
                self._watches = True
                self._timer.set(self._timeout)
            try:
                return handler(given)
            finally:
                if running.pop(greenlet, None) is None:
                    del interrupted[greenlet]

        return limited_handler

    def _limited_in_threads(self, handler: _Handler) -> _Handler:
        @functools.wraps(handler)
        def watched_handler(given: object) -> bool | None:
            greenlet = gevent.getcurrent()
            self._in_threads[greenlet] = time.monotonic()
            try:
                return handler(given)
            finally:
                del self._in_threads[greenlet]

        return watched_handler

    def _interrupt(self) -> None:
        """The timer has fired. In the hub."""
        now = time.monotonic()
        for greenlet, began in list(self._running.items()):
            if began + self._timeout > now:
                break
            # It may have ended meanwhile, through the interruption of another one.
            if self._running.get(greenlet) == began:
                self._interrupted[greenlet] = self._running.pop(greenlet)
                greenlet.throw(gevent.Timeout(self._timeout))
        oldest = next(iter(self._running.values()), None)
        self._watches = oldest is not None
        if oldest is not None:
            self._timer.set(oldest + self._timeout - now)
