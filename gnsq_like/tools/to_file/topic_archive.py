"""One topic into files: when messages are written, synced and finished.

A native thread writes and syncs the messages; those that arrive meanwhile are collected. A sync is due

- when half of max_in_flight waits for one, so that nsqd can deliver the other half meanwhile; or when nsqd delivers no
  more
- ``sync_interval`` after the last, and after half of the time that nsqd gives for an answer
- when a file is opened or closed, on SIGHUP, and for everything that comes during the stop
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent
from gevent.event import Event

from gnsq_like import Message
from gnsq_like.runtime.thread_pool import ThreadPool
from gnsq_like.tools.consuming import Consumption, give_back
from gnsq_like.tools.to_file.log_file import LogFile

#: The part of max_in_flight at which a sync is due.
_SYNC_SHARE = 0.5
#: The part of a message's time that it may wait for a sync.
_WAITING_SHARE = 0.5
#: Seconds between two looks whether nsqd delivers no more, while messages wait: no event tells. [The next plan of the
#: Reader may do it, or a new connection that takes a part of the share.]
_LOOK = 0.25


class TopicArchive:
    """Writes one topic. Next: :meth:`start`.

    :param threads: runs what blocks
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        log_file: LogFile,
        consumption: Consumption,
        threads: ThreadPool,
        interval: float,
    ) -> None:
        self._file = log_file
        self._consumption = consumption
        self._threads = threads
        self._interval = interval
        #: Messages that are not written, and that are written but not synced.
        self._arrived: list[Message] = []
        self._written: list[Message] = []
        #: Messages finished.
        self.finished = 0
        self._woken = Event()
        self._hung_up = False
        self._ending = False
        self._failed = False
        self._over = False
        #: When the next sync is due at the latest (monotonic).
        self._due = time.monotonic() + interval
        self.reader = consumption.add(topic, channel, self._take)
        self._greenlet = gevent.spawn(self._run)

    def _take(self, message: Message) -> None:
        """The Reader's handler. Never switches."""
        if self._failed:
            message.requeue(0, backoff=False)
            return
        message.enable_async()
        if not self._arrived and not self._written:
            now = time.monotonic()
            self._due = min(self._due, now + (message.timeout_at - now) * _WAITING_SHARE)
        self._arrived.append(message)
        self._woken.set()

    def hang_up(self) -> None:
        """Sync and close the file; the next message opens another. Never switches."""
        self._hung_up = True
        self._woken.set()

    def begin_to_end(self) -> None:
        """From now on, sync each message at once. Never switches."""
        self._ending = True
        self._woken.set()

    def end(self) -> None:
        """After the Reader has stopped: sync, and close the file. May switch."""
        self._over = True
        self._woken.set()
        self._greenlet.join()
        if not self._failed:
            self._guarded(self._write_and_sync)
            self._guarded(lambda: self._threads.call(_close, self._file))
        if self._failed:
            self._file.abandon()

    def _run(self) -> None:
        while not self._failed and not self._over:
            seconds = max(0.0, self._due - time.monotonic())
            self._woken.wait(min(seconds, _LOOK) if self._written else seconds)
            self._woken.clear()
            self._guarded(self._turn)

    def _guarded(self, step: Callable[[], object]) -> None:
        """Run a step; a disk error ends the tool, and only synced messages are finished."""
        try:
            step()
        except Exception as exc:
            self._failed = True
            give_back(self._written)
            give_back(self._arrived)
            self._arrived = []
            self._consumption.fail(exc)

    def _turn(self) -> None:
        is_due = time.monotonic() >= self._due
        waiting = len(self._arrived) + len(self._written)
        limit = max(1, int(self.reader.max_in_flight * _SYNC_SHARE))
        hung_up, self._hung_up = self._hung_up, False
        sync = is_due or hung_up or self._ending or waiting >= limit or self.reader.is_starved
        if is_due and not self._arrived:
            self._threads.call(_tick, self._file)
        self._write_and_sync(sync and waiting > 0)
        if hung_up:
            self._threads.call(_close, self._file)
        if is_due:
            self._due = time.monotonic() + self._interval

    def _write_and_sync(self, sync: bool = True) -> None:
        """Write what has arrived, and finish all that is synced then. May switch."""
        messages, self._arrived = self._arrived, []
        self._written += messages
        if not self._written:
            return
        if not self._threads.call(_write, (self._file, [each.body for each in messages], sync)):
            return
        finished, self._written = self._written, []
        for message in finished:
            message.finish()
        self.finished += len(finished)


def _write(job: tuple[LogFile, list[bytes], bool]) -> bool:
    log_file, bodies, sync = job
    return log_file.write(bodies, sync)


def _tick(log_file: LogFile) -> None:
    log_file.tick()


def _close(log_file: LogFile) -> None:
    log_file.close()
