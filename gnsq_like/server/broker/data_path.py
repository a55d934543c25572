"""nsqd's data path: the directory with its disk queues and nsqd.dat, locked as nsqd locks it.

One greenlet, the syncer, waits for the disk on behalf of all queues, in a thread, one queue at a time. It
syncs a queue after ``sync_every`` messages, or ``sync_timeout`` after the first unsynced one. If the disk is slower,
only syncs are late. The syncer also writes nsqd.dat soon after a topic or channel is created or deleted, and retries
queues after a failure of the disk.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterable
from typing import Literal

import gevent
from gevent.event import Event

from gnsq_like.runtime.files import NotOurs, check_own, sync_directory
from gnsq_like.runtime.thread_pool import ThreadPool
from gnsq_like.server.broker.metadata import BadMetadata, Entry, decode, encode
from gnsq_like.server.broker.queues import MemoryQueue, OverflowQueue, Queue
from gnsq_like.server.broker.topic import Topic
from gnsq_like.server.daemon_options import NsqdOptions
from gnsq_like.server.storage.atomic_file import AtomicFile
from gnsq_like.server.storage.disk_queue import DiskError, DiskQueue
from gnsq_like.server.storage.queue_files import DATA_FILE

log = logging.getLogger("gnsq_like.nsqd")

#: Temporary files of ours, which begin with a dot, and of NSQ's own nsqd.
_DRAFT = re.compile(r"\.?(nsqd|.+\.diskqueue\.meta)\.dat\.[0-9a-f]+\.tmp")
#: Names of other files that are read.
_READ = re.compile(r"nsqd\.dat|.+\.diskqueue\.meta\.dat")

#: Seconds between two steps of a search in a damaged file, of some ms each: the rest of nsqd goes on meanwhile.
_SEARCH_PAUSE = 0.01
#: The tasks of the syncer: sync a queue, write nsqd.dat, or retry after a failure of the disk.
Task = DiskQueue | Literal["nsqd.dat", "retry"]


class DataPath:
    """The data path of a running nsqd.

    :param options: ``data_path`` is the directory
    :param on_retry: called from time to time after the disk failed, when reading may succeed again
    """

    def __init__(self, options: NsqdOptions, on_retry: Callable[[], None]) -> None:
        self._options = options
        self._directory = os.path.abspath(options.data_path)
        self._on_retry = on_retry
        self._metadata = AtomicFile(os.path.join(self._directory, "nsqd.dat"))
        #: Why the last write failed; empty if it succeeded.
        self.problem: str = ""
        #: The open directory that carries the lock.
        self._lock = -1
        #: Names of data files found at the start whose queues are not open yet, by the queue's name.
        self._found: dict[str, list[str]] = {}
        #: The queues of nsqd.dat that are not open yet.
        self._known: set[str] = set()
        self._queues: dict[OverflowQueue, None] = {}
        #: The due tasks of the syncer, with their times (monotonic).
        self._due: dict[Task, float] = {}
        #: When it may retry again.
        self._retry_at = 0.0
        self._topics: Callable[[], Iterable[Topic]] = tuple
        self._wake = Event()
        self._closing = False
        self._syncer: gevent.Greenlet | None = None

    # -- life ----------------------------------------------------------------------------------------

    def open(self) -> list[Entry]:
        """Lock the directory and list its files; returns the topics of nsqd.dat.

        :raises OSError: if it is locked or not writable, if a file in it may be another user's, or if nsqd.dat cannot
            be read; the text is nsqd's
        """
        self._take_lock()
        try:
            for name in os.listdir(self._directory):
                path = os.path.join(self._directory, name)
                if match := DATA_FILE.fullmatch(name):
                    check_own(path)
                    self._found.setdefault(match["queue"], []).append(name)
                elif _DRAFT.fullmatch(name):  # left by a process that was killed
                    os.unlink(path)
                elif _READ.fullmatch(name):
                    check_own(path)
            entries = self._load_metadata()
        except NotOurs as exc:
            self._release_lock()
            reason = f"{exc.filename}: {exc.strerror}"
            raise OSError(exc.errno, f"failed to open data-path: {reason}") from None
        except BaseException:
            self._release_lock()
            raise
        for topic in entries:
            self._known |= {topic.name, *(f"{topic.name}:{channel.name}" for channel in topic.channels)}
        return entries

    def start(self, topics: Callable[[], Iterable[Topic]]) -> None:
        """Begin to sync. Never switches.

        :param topics: returns all topics, for nsqd.dat
        """
        self._topics = topics
        self._syncer = gevent.spawn(self._sync)
        self.metadata_changed()

    def close(self, close_queues: Callable[[], int]) -> int:
        """Write everything to disk, if it was started, and release the lock. May switch; waits for the disk.

        :param close_queues: closes all queues, and returns how many of their messages are lost
        :return: what that returned
        """
        lost = 0
        if self._syncer is not None:
            self._closing = True
            self._wake.set()
            self._syncer.join()
            self.save_metadata()
            lost = close_queues()
        self._release_lock()
        return lost

    def _take_lock(self) -> None:
        directory = self._directory
        if os.path.isdir(directory) and not os.access(directory, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, f"failed to persist metadata - open {self._metadata.path}: permission denied")
        try:
            self._lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            reason = f"open {directory}: {_lowered(exc)}"
            raise OSError(exc.errno, f"failed to lock data-path: {reason}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            self._release_lock()
            reason = f"cannot flock directory {directory} - {_lowered(exc)}"
            hint = "possibly in use by another instance of nsqd"
            raise OSError(exc.errno, f"failed to lock data-path: {reason} ({hint})") from None

    def _release_lock(self) -> None:
        # Unlock explicitly: where os is monkey-patched, close takes effect only in the event loop's next turn.
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        os.close(self._lock)
        self._lock = -1

    # -- nsqd.dat ------------------------------------------------------------------------------------

    def _load_metadata(self) -> list[Entry]:
        path = self._metadata.path
        try:
            with open(path, "rb") as file:
                data = file.read()
            return decode(data)
        except FileNotFoundError:
            return []
        except BadMetadata as bad:
            raise OSError(0, f"failed to load metadata - failed to parse metadata in {path} - {bad}") from None
        except OSError as exc:
            reason = f"failed to read metadata from {path} - {_lowered(exc)}"
            raise OSError(exc.errno, f"failed to load metadata - {reason}") from None

    def metadata_changed(self) -> None:
        """Have nsqd.dat written soon: topics or channels were created or deleted. Never switches."""
        self._do_at("nsqd.dat", 0.0)

    def save_metadata(self) -> None:
        """Write nsqd.dat now. Waits for the disk; never switches."""
        try:
            self._metadata.replace(encode(self._topics()), sync=True)
        except OSError as exc:
            self._note_metadata_failed(exc)

    def _note_metadata_failed(self, exc: OSError) -> None:
        log.error("failed to persist metadata - %s", exc)
        self._do_at("nsqd.dat", time.monotonic() + self._options.sync_timeout)

    # -- queues --------------------------------------------------------------------------------------

    def make_queue(self, name: str, ephemeral: bool) -> Queue:
        """Make the queue of a topic or channel, with its messages on disk."""
        options = self._options
        if ephemeral:
            return MemoryQueue(options.mem_queue_size)
        limits = options.max_bytes_per_file, options.sync_every
        disk = DiskQueue(self._directory, name, *limits, self._note_unsynced, self._note_search)
        disk.open(self._found.pop(name, ()), is_known=name in self._known)
        self._known.discard(name)
        queue = OverflowQueue(disk, options.mem_queue_size, self._note_use, self._queues.pop)
        self._queues[queue] = None
        return queue

    def _note_use(self, error: DiskError | None) -> None:
        if error is None:
            self.problem = ""
        else:
            log.error("the backend of a topic or channel failed - %s", error)
            self.problem = str(error)
            self._do_at("retry", self._retry_at)

    # -- syncing -------------------------------------------------------------------------------------

    def _do_at(self, task: Task, due: float) -> None:
        """Schedule a task of the syncer at ``due``, unless it is due earlier. Never switches."""
        if due < self._due.get(task, math.inf):
            self._due[task] = due
            self._wake.set()

    def _note_unsynced(self, disk: DiskQueue, now: bool) -> None:
        self._do_at(disk, 0.0 if now else time.monotonic() + self._options.sync_timeout)

    def _note_search(self) -> None:
        """Called by a queue that searches for messages behind damage: have it read again soon."""
        self._do_at("retry", time.monotonic() + _SEARCH_PAUSE)

    def _sync(self) -> None:
        """Greenlet: the syncer."""
        threads = ThreadPool(1)
        while not self._closing:
            self._wake.wait(max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None)
            self._wake.clear()
            now = time.monotonic()
            for task in [task for task, due in self._due.items() if due <= now]:
                if self._closing:
                    break
                del self._due[task]
                if isinstance(task, DiskQueue):
                    self._sync_queue(task, threads)
                elif task == "nsqd.dat":
                    self._store_metadata(threads)
                else:
                    self._retry_at = now + self._options.sync_timeout
                    self._retry()
        threads.close()

    def _sync_queue(self, disk: DiskQueue, threads: ThreadPool) -> None:
        try:
            sync = disk.begin_sync()
            if sync is not None:
                try:
                    threads.call(type(sync).run, sync)
                finally:
                    disk.end_sync(sync)
        except OSError as exc:
            log.error("DISKQUEUE(%s) failed to sync - %s", disk.name, exc)
            self._note_unsynced(disk, now=False)

    def _store_metadata(self, threads: ThreadPool) -> None:
        draft = self._metadata.draft(encode(self._topics()))
        try:
            threads.call(type(draft).store, draft)
            self._metadata.publish(draft)
            threads.call(sync_directory, self._directory)
        except OSError as exc:
            self._note_metadata_failed(exc)

    def _retry(self) -> None:
        """Move waiting messages to disk, and retry failed reads; a new failure schedules a retry."""
        for queue in list(self._queues):
            try:
                queue.settle()
            except DiskError:
                break
        self._on_retry()


def _lowered(exc: OSError) -> str:
    """The reason in Go's words."""
    return (exc.strerror or str(exc)).lower()
