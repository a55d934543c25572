"""All topics of a run of to-file: those named, and those that match a pattern as they appear."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence

import gevent
from gevent.event import Event

from gnsq_like import LookupdClient
from gnsq_like.errors import InvalidOption
from gnsq_like.runtime.thread_pool import ThreadPool
from gnsq_like.tools.consuming import STOP_TIMEOUT, Consumption
from gnsq_like.tools.sources import Source
from gnsq_like.tools.to_file.leftovers import recover
from gnsq_like.tools.to_file.log_file import LogFile
from gnsq_like.tools.to_file.members import new_member
from gnsq_like.tools.to_file.outputs import Output, UploadedTo, make_output
from gnsq_like.tools.to_file.plan import FilePlan
from gnsq_like.tools.to_file.topic_archive import TopicArchive

logger = logging.getLogger(__name__)

#: Threads for disks; each topic uses one at a time.
_THREADS = 8
#: Seconds until a failed upload is tried again, doubled up to the second.
_FIRST_RETRY, _LAST_RETRY = 1.0, 60.0
#: Seconds between two looks for files to upload.
_UPLOAD_INTERVAL = 1.0


def archive_topics(
    source: Source,
    plan: FilePlan,
    *,
    stop: Event,
    channel: str = "to-file",
    topics: Sequence[str] = (),
    pattern: re.Pattern[str] | None = None,
    topic_refresh: float = 60.0,
    lookupd_timeout: float = 5.0,
    lookupd_connect_timeout: float = 2.0,
    hang_up: Event | None = None,
) -> int:
    """Write topics into files until ``stop`` is set. May switch.

    Files that an earlier run did not close are recovered first. When this returns, all messages in flight have been
    synced and finished, or given back, and files are closed; the next run repeats failed uploads.

    :param topics: empty for all that the nsqlookupds know, including those that appear later
    :param pattern: only topics with a match
    :param topic_refresh: seconds between two polls for new topics
    :param lookupd_timeout: seconds for each poll, including the connection
    :param hang_up: when it is set, all files are closed, and it is cleared
    :returns: the number of messages finished
    :raises InvalidOption: neither topics nor nsqlookupds
    :raises MissingPackage: a package for the compression or the store is not installed
    :raises OSError: a file cannot be written; what was not synced is delivered again
    :raises Unreachable: none of the nsqds could be reached
    """
    if not topics and not source.lookupd_http_addresses:
        raise InvalidOption("topic", (), "set topics, or nsqlookupds, which know them")
    if plan.compression:
        new_member(plan.compression, plan.compression_level)  # fails now if its package is missing
    output = make_output(plan)
    threads = ThreadPool(_THREADS)
    threads.call(lambda _: recover(plan, output), None)
    run = _Run(source, plan, output, threads, channel, pattern, stop)
    greenlets = [gevent.spawn(run.close_files_at, hang_up)] if hang_up is not None else []
    if topics:
        run.add(topics)
    else:
        greenlets.append(gevent.spawn(run.follow_topics, topic_refresh, lookupd_timeout, lookupd_connect_timeout))
    uploads = output if isinstance(output, UploadedTo) else None
    uploader = gevent.spawn(_keep_uploading, uploads, threads, stop) if uploads is not None else None
    try:
        stop.wait()
    finally:
        gevent.killall(greenlets)
        run.end()
        if uploads is not None and uploader is not None:
            uploader.join(STOP_TIMEOUT)
            _upload_rest(uploads, threads)
        threads.close()
    run.consumption.check()
    return run.finished


class _Run:
    """The topics of one run."""

    def __init__(
        self,
        source: Source,
        plan: FilePlan,
        output: Output,
        threads: ThreadPool,
        channel: str,
        pattern: re.Pattern[str] | None,
        stop: Event,
    ) -> None:
        self._source = source
        self._plan = plan
        self._output = output
        self._threads = threads
        self._channel = channel
        self._pattern = pattern
        self._archives: dict[str, TopicArchive] = {}
        self.consumption = Consumption(source, stop)
        stop.rawlink(self._stopping)

    @property
    def finished(self) -> int:
        """The messages finished so far."""
        return sum(archive.finished for archive in self._archives.values())

    def add(self, topics: Sequence[str]) -> None:
        """Begin with topics, unless they are written already. Never switches."""
        for topic in topics:
            if topic in self._archives:
                continue
            if self._pattern is not None and not self._pattern.search(topic):
                logger.debug("topic %s does not match %s", topic, self._pattern.pattern)
                continue
            log_file = LogFile(self._plan, topic, self._output)
            self._archives[topic] = TopicArchive(
                topic, self._channel, log_file, self.consumption, self._threads, self._plan.sync_interval
            )

    def follow_topics(self, interval: float, *timeouts: float) -> None:
        """Add topics as the nsqlookupds learn of them. May switch; never returns."""
        with self._source.daemons(*timeouts) as daemons:
            while True:
                known = daemons.ask_lookupds(LookupdClient.topics)
                if not known.answers:
                    logger.warning("cannot ask for topics: %s", "; ".join(known.warnings))
                self.add(sorted({topic for topics in known.answers.values() for topic in topics}))
                gevent.sleep(interval)

    def close_files_at(self, hang_up: Event) -> None:
        """Close all files each time the event is set. May switch; never returns."""
        while True:
            hang_up.wait()
            hang_up.clear()
            self._each(TopicArchive.hang_up)

    def _stopping(self, _: Event) -> None:
        self._each(TopicArchive.begin_to_end)

    def _each(self, method: Callable[[TopicArchive], object]) -> None:
        for archive in self._archives.values():
            method(archive)

    def end(self) -> None:
        """Stop the Readers, then close the files. May switch."""
        self.consumption.end()
        gevent.joinall([gevent.spawn(archive.end) for archive in self._archives.values()])


def _keep_uploading(output: UploadedTo, threads: ThreadPool, stop: Event) -> None:
    """Upload closed files, those of earlier runs first, until ``stop`` is set. May switch."""
    delay = _FIRST_RETRY
    while not stop.is_set():
        if _upload_rest(output, threads):
            delay = _FIRST_RETRY
            stop.wait(_UPLOAD_INTERVAL)
        else:
            stop.wait(delay)
            delay = min(2 * delay, _LAST_RETRY)


def _upload_rest(output: UploadedTo, threads: ThreadPool) -> bool:
    """Upload all closed files; whether that succeeded. May switch."""
    name = "the files that wait"
    try:
        for name in threads.call(lambda _: list(output.waiting()), None):
            threads.call(output.upload, name)
    except Exception as exc:  # each store has its own
        logger.warning("cannot upload %s, which stays: %s: %s", name, type(exc).__name__, exc)
        return False
    return True
